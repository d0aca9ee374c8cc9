// Package texts collects the constant texts of Go packages from their source, for tests of their
// English and of the docs.
package texts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Text is a constant text. Operands of a sum that are not constant are "X" in it.
type Text struct{ Place, Text string }

// Texts are texts by kind. Debug are log messages of level debug, Logs those of other levels.
type Texts struct{ Debug, Logs, Errors, Others []Text }

// sql matches parts of statements.
var sql = regexp.MustCompile(`\b[A-Z]{3,} |\b(AND|NULL)\b|^{`)

// AddPackage adds the texts of the package in folder, without those of its tests.
func (t *Texts) AddPackage(folder string) error {
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return err
	}
	c := collector{Texts: t, constants: map[string]string{}, seen: map[ast.Node]bool{}}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(&c.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
		ast.Inspect(file, c.addConstants)
	}
	for _, file := range files {
		ast.Inspect(file, c.addTexts)
	}
	return nil
}

// collector collects the texts of one package.
type collector struct {
	*Texts
	fset token.FileSet
	// constants are the texts of the package's constants by name.
	constants map[string]string
	seen      map[ast.Node]bool
}

// addConstants adds the constants that n declares.
func (c *collector) addConstants(n ast.Node) bool {
	if group, ok := n.(*ast.GenDecl); ok && group.Tok == token.CONST {
		for _, spec := range group.Specs {
			declared, _ := spec.(*ast.ValueSpec)
			for i, e := range declared.Values {
				if text, ok := c.text(e); ok {
					c.constants[declared.Names[i].Name] = text
				}
			}
		}
	}
	return true
}

// addTexts adds the texts of n, but not those of nodes below it that the collector visits later.
func (c *collector) addTexts(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.Field:
		c.seen[n.Tag] = true
	case *ast.CaseClause: // compared, not shown
		for _, e := range n.List {
			c.seen[e] = true
		}
	case *ast.CallExpr:
		to, positions := c.messages(callee(n.Fun))
		for i, argument := range n.Args {
			if slices.Contains(positions, i) {
				c.add(to, argument)
			}
		}
	case *ast.BasicLit:
		c.add(&c.Others, n)
	case *ast.BinaryExpr:
		c.add(&c.Others, n)
	}
	return true
}

// messages returns the kind of the texts of a function, and their positions among its arguments.
func (c *collector) messages(function string) (*[]Text, []int) {
	switch name := function[strings.LastIndex(function, ".")+1:]; name {
	case "New", "Errorf", "TextError":
		if name == "TextError" || function == "errors.New" || function == "fmt.Errorf" {
			return &c.Errors, []int{0, 1, 2}
		}
	case "Debug":
		return &c.Debug, []int{0}
	case "DebugContext":
		return &c.Debug, []int{1}
	case "Info", "Warn", "Error", "logWarning":
		return &c.Logs, []int{0}
	case "InfoContext", "WarnContext", "ErrorContext":
		return &c.Logs, []int{1}
	case "LogDone":
		return &c.Logs, []int{1, 2}
	case "Log", "LogAttrs":
		return &c.Logs, []int{2}
	}
	return nil, nil
}

// add adds the text of e, if e has one that is not SQL.
func (c *collector) add(to *[]Text, e ast.Expr) {
	text, ok := c.text(e)
	if !ok || c.seen[e] {
		return
	}
	ast.Inspect(e, func(n ast.Node) bool {
		c.seen[n] = true
		return true
	})
	if strings.TrimSpace(text) != "" && (to != &c.Others || !sql.MatchString(text)) {
		*to = append(*to, Text{c.fset.Position(e.Pos()).String(), text})
	}
}

// text returns the text of a constant, a literal or a sum, and whether e has one.
func (c *collector) text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		text, ok := c.constants[e.Name]
		return text, ok
	case *ast.BinaryExpr:
		left, is := c.text(e.X)
		right, isToo := c.text(e.Y)
		if !is {
			left = "X"
		}
		if !isToo {
			right = "X"
		}
		return left + right, e.Op == token.ADD && (is || isToo)
	}
	return "", false
}

// callee returns the name of a function with its qualifier.
func callee(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return callee(e.X) + "." + e.Sel.Name
	}
	return ""
}

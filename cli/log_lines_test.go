package cli_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// messageAt is which arguments of a method of loggers are messages, if the method is one that logs at info or above.
func messageAt(call *ast.CallExpr) []int {
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	switch called.Sel.Name {
	case "Info", "Warn", "Error", "logWarning":
		return []int{0}
	case "InfoContext", "WarnContext", "ErrorContext":
		return []int{1}
	case "Log", "LogAttrs":
		return []int{2}
	case "LogDone":
		return []int{1, 2}
	}
	return nil
}

// texts are the constants of a package that are strings, by name.
type texts map[string]string

// add adds those that a file declares for its package.
func (c texts) add(file *ast.File) {
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			value, ok := s.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for i := range value.Values {
				if text, ok := c.fold(value.Values[i]); ok {
					c[value.Names[i].Name] = text
				}
			}
		}
	}
}

// fold is the text of an expression of literals and constants.
func (c texts) fold(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		text, ok = c[e.Name]
		return text, ok
	case *ast.BinaryExpr:
		left, ok := c.fold(e.X)
		right, also := c.fold(e.Y)
		return left + right, ok && also
	}
	return "", false
}

// logged are the messages in a file that are constant.
func (c texts) logged(file *ast.File) (messages []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		for _, i := range messageAt(call) {
			if i < len(call.Args) {
				if message, ok := c.fold(call.Args[i]); ok {
					messages = append(messages, message)
				}
			}
		}
		return true
	})
	return messages
}

// loggedIn are the messages of the package in a folder, without its tests.
func loggedIn(t *testing.T, folder string) (messages []string) {
	t.Helper()
	names := assert.Must(filepath.Glob(filepath.Join(folder, "*.go")))(t)
	var files []*ast.File
	constants := texts{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file := assert.Must(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t)
		files = append(files, file)
		constants.add(file)
	}
	for _, file := range files {
		messages = append(messages, constants.logged(file)...)
	}
	return messages
}

func TestLog_EveryMessageIsInTheDocuments(t *testing.T) {
	t.Parallel()
	content := assert.Must(os.ReadFile("../docs/log.md"))(t)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(content), -1) {
		documented[strings.Join(strings.Fields(m[1]), " ")] = true
	}
	folders := assert.Must(filepath.Glob("../*"))(t)
	below := assert.Must(filepath.Glob("../service/*"))(t)
	// What is no constant of its package: one from another package, and one with a number in it.
	messages := []string{
		"Maximum deletion attempts (15) reached. Making the final attempt to delete the placeholder user.", "finished call",
	}
	for _, folder := range append(folders, below...) {
		if folder != "../bench" {
			messages = append(messages, loggedIn(t, folder)...)
		}
	}
	for _, want := range []string{"run finished", "user migrated", "queue rolled to a new partition"} {
		assert.That(t, slices.Contains(messages, want), "%q is not found in the code", want)
	}
	for _, message := range messages {
		if !documented[message] && message != "job interrupted, it will be worked again" && message != "job snoozed" {
			t.Errorf("docs/log.md has nothing about %q", message)
		}
	}
	assert.That(t, len(messages) >= 80, "only %d messages found", len(messages))
}

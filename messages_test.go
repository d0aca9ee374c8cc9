package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// maxLogWords is the maximum number of words of a log message.
const maxLogWords = 8

// Calls and keys whose first string is a log message, an error, or another text for people.
var (
	logCalls = strings.Fields("DebugContext InfoContext WarnContext ErrorContext Debug Info Warn Error " +
		"LogDone logWarning")
	errorCalls = []string{"errors.New", "fmt.Errorf", "TextError", "dberr.TextError"}
	textKeys   = []string{"Text", "Description", "Message", "Detail", "Reason"}
)

// message is a text of the product with its place in the code.
type message struct{ place, text string }

// messages are the texts of production code by kind.
type messages struct{ logs, errors, others []message }

// forbidden are the patterns of the word table of tools/vale that Go's regular expressions know.
// The others have lookarounds, and are left to Vale.
func forbidden(t *testing.T) (patterns []*regexp.Regexp) {
	t.Helper()
	for _, name := range []string{"Terms", "Actors"} {
		var rule struct {
			Swap   map[string]string
			Tokens []string
		}
		content := assert.Must(os.ReadFile("tools/vale/styles/Caretaker/" + name + ".yml"))(t)
		assert.NoError(t, yaml.Unmarshal(content, &rule))
		for pattern := range rule.Swap {
			rule.Tokens = append(rule.Tokens, pattern)
		}
		for _, pattern := range rule.Tokens {
			if compiled, err := regexp.Compile(`(?i)\b(?:` + pattern + `)\b`); err == nil {
				patterns = append(patterns, compiled)
			}
		}
	}
	assert.That(t, len(patterns) > 20, "only %d patterns", len(patterns))
	return patterns
}

func TestMessages_FollowTheRulesOfPlainEnglish(t *testing.T) {
	patterns, all := forbidden(t), collectMessages(t)
	for _, m := range all.logs {
		words := len(strings.Fields(m.text))
		assert.That(t, words <= maxLogWords, "%s: a log message of %d words: %s", m.place, words, m.text)
	}
	for _, m := range all.errors {
		assert.That(t, !strings.HasSuffix(m.text, "."), "%s: an error ends with a full stop: %s", m.place, m.text)
		first, second := []rune(m.text + "  ")[0], []rune(m.text + "  ")[1]
		assert.That(t, !unicode.IsUpper(first) || unicode.IsUpper(second) || knownName(m.text),
			"%s: an error begins with a capital letter: %s", m.place, m.text)
	}
	for _, m := range slices.Concat(all.logs, all.errors, all.others) {
		for _, pattern := range patterns {
			found := pattern.FindString(m.text)
			assert.That(t, found == "", "%s: tools/vale has a better term for %q: %s", m.place, found, m.text)
		}
	}
	assert.That(t, len(all.logs) > 80 && len(all.errors) > 100 && len(all.others) > 50,
		"only %d, %d and %d messages found", len(all.logs), len(all.errors), len(all.others))
}

// knownName reports whether a text begins with the name of a product or of a method of the API.
func knownName(text string) bool {
	return regexp.MustCompile(`^(PostgreSQL|OpenTelemetry|ListRuns|ListJobs)\b`).MatchString(text)
}

// collectMessages collects the texts of all parts but cli, whose texts are help and output.
func collectMessages(t *testing.T) (all messages) {
	t.Helper()
	for part := range ceilings {
		if part == "cli" || strings.Contains(part, "/") {
			continue
		}
		assert.NoError(t, filepath.WalkDir(part, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.Contains(path, "servicetest") || strings.Contains(path, "testdata") {
				return err
			}
			fset := token.NewFileSet()
			file := assert.Must(parser.ParseFile(fset, path, nil, 0))(t)
			ast.Inspect(file, func(n ast.Node) bool {
				all.add(n, func(text string) message { return message{fset.Position(n.Pos()).String(), text} })
				return true
			})
			return nil
		}))
	}
	return all
}

// add adds the text of a call or of a key's value.
func (all *messages) add(n ast.Node, at func(string) message) {
	switch n := n.(type) {
	case *ast.CallExpr:
		name := calleeOf(n.Fun)
		for _, argument := range n.Args {
			text, ok := constantText(argument)
			if !ok || strings.TrimSpace(text) == "" {
				continue
			}
			switch short := name[strings.LastIndex(name, ".")+1:]; {
			case slices.Contains(errorCalls, name):
				all.errors = append(all.errors, at(text))
			case slices.Contains(logCalls, short) && name != "http.Error" && argument == firstText(n):
				all.logs = append(all.logs, at(text))
			case !isSQL(text):
				all.others = append(all.others, at(text))
			}
		}
	case *ast.KeyValueExpr:
		if text, ok := constantText(n.Value); ok && slices.Contains(textKeys, calleeOf(n.Key)) {
			all.others = append(all.others, at(text))
		}
	}
}

// firstText is the first text among the arguments of a call.
func firstText(call *ast.CallExpr) ast.Expr {
	for _, argument := range call.Args {
		if _, ok := constantText(argument); ok {
			return argument
		}
	}
	return nil
}

// isSQL reports whether a text is a part of a statement.
func isSQL(text string) bool {
	return regexp.MustCompile(`\b[A-Z]{3,} |\b(AND|NULL)\b|^{`).MatchString(text)
}

// calleeOf is the name of a function or key, with its qualifier.
func calleeOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return calleeOf(e.X) + "." + e.Sel.Name
	}
	return ""
}

// constantText is the text of a literal, or of a sum of literals. Other operands of a sum are "X".
func constantText(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, is := constantText(e.X)
		right, isToo := constantText(e.Y)
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

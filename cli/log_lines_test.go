package cli_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// messageAt is which argument of a method of loggers is the message, if the method is one that logs at info or above.
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
	case "logDone":
		return []int{1, 2}
	}
	return nil
}

// logged are the messages in a file that are literals.
func logged(t *testing.T, file string) (messages []string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		for _, i := range messageAt(call) {
			if i >= len(call.Args) {
				continue
			}
			if text, ok := call.Args[i].(*ast.BasicLit); ok && text.Kind == token.STRING {
				message, _ := strconv.Unquote(text.Value)
				messages = append(messages, message)
			}
		}
		return true
	})
	return messages
}

func TestLog_EveryMessageIsInTheDocuments(t *testing.T) {
	content, err := os.ReadFile("../docs/log.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(content), -1) {
		documented[strings.Join(strings.Fields(m[1]), " ")] = true
	}
	files, err := filepath.Glob("../*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	workers, err := filepath.Glob("../service/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, workers...)
	// Constants, and one with a number in it.
	messages := []string{
		"run finished", "end of the run not recorded, it will show as LEASE_LOST: look at maintenance.runs, its triggers and its rights",
		"Maximum deletion attempts (15) reached. Making the final attempt to delete the placeholder user.", "finished call",
	}
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") && filepath.Dir(file) != "../bench" {
			messages = append(messages, logged(t, file)...)
		}
	}
	for _, message := range messages {
		if !documented[message] && message != "job interrupted, it will be worked again" && message != "job snoozed" {
			t.Errorf("docs/log.md has nothing about %q", message)
		}
	}
	if len(messages) < 80 {
		t.Errorf("only %d messages found", len(messages))
	}
}

package servicetest

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
)

// WantFindings fails the test unless lint finds exactly these: "severity code database object", in any order.
func WantFindings(t *testing.T, keys admin.Admin, want ...string) admin.Lint {
	t.Helper()
	result := assert.Must(keys.Lint(context.Background()))(t)
	wanted := map[string]bool{}
	for _, w := range want {
		wanted[w] = true
	}
	for _, f := range result.Findings {
		line := strings.Join([]string{f.Severity, f.Code, f.Database, f.Object}, " ")
		assert.That(t, wanted[line], "unexpected finding %s: %s", line, f.Advice)
		delete(wanted, line)
		assert.That(t, f.Advice != "" && !strings.Contains(f.Advice, "%!"), "%s has no usable advice: %q", line, f.Advice)
	}
	for line := range wanted {
		t.Errorf("missing finding: %s", line)
	}
	assert.That(t, len(result.Findings) == result.Errors+result.Warnings,
		"%d errors and %d warnings, but %d findings", result.Errors, result.Warnings, len(result.Findings))
	return result
}

// AddDown adds a database that does not answer.
func (e *Estate) AddDown() {
	e.T.Helper()
	d := assert.Must(repo.Open(context.Background(), "down", "postgres://caretaker@127.0.0.1:1/x?connect_timeout=2"))(e.T)
	e.T.Cleanup(d.Close)
	e.Open = append(e.Open, d)
}

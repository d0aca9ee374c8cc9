package cli_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// runbook is the part of docs/operations.md about alerts.
func runbook(t *testing.T) string {
	t.Helper()
	content := assert.Must(os.ReadFile("../docs/operations.md"))(t)
	_, text, found := strings.Cut(string(content), "\n## Alerts\n")
	assert.Require(t, found, "docs/operations.md has no section Alerts")
	return text
}

func TestRunbook_NamesCommandsAndFlagsThatThereAre(t *testing.T) {
	sh := newShell(t)
	commands := regexp.MustCompile("`caretaker\\s([^`]+)`").FindAllStringSubmatch(runbook(t), -1)
	for _, m := range commands {
		// With --help a command's flags are looked at, and nothing is done.
		words := regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(m[1], -1)
		if code, _, errOut := sh.caretaker(append(words, "--help")...); code != 0 {
			t.Errorf("caretaker %s: exit %d, %s", m[1], code, errOut)
		}
	}
	assert.That(t, len(commands) >= 40, "only %d commands found", len(commands))
}

func TestRunbook_StatementsWork(t *testing.T) {
	sh := newShell(t)
	url := databases.Clone(t, devdb.Template{Name: "bare", Schema: "main"})
	sh.set("CARETAKER_DATABASES_MAIN_URL", url)
	sh.migrate()
	s := newShared(t, url)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(runbook(t), -1)
	for _, m := range blocks {
		s.exec(m[1])
	}
	inline := regexp.MustCompile("`(SELECT[^`…]+);?`").FindAllStringSubmatch(runbook(t), -1)
	for _, m := range inline {
		s.exec(m[1])
	}
	if len(blocks) < 9 || len(inline) < 2 {
		t.Errorf("only %d blocks and %d statements within lines found", len(blocks), len(inline))
	}
}

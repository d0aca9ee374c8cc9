package cli_test

import (
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// everyCommand calls see for each command.
func everyCommand(command *cobra.Command, see func(*cobra.Command)) {
	see(command)
	for _, child := range command.Commands() {
		everyCommand(child, see)
	}
}

// words splits a line as a shell would that knows only single quotes.
func words(line string) (all []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			all = append(all, part)
		} else {
			all = append(all, strings.Fields(part)...)
		}
	}
	return all
}

// examples is a shell in a folder that has the files of the examples, and an address without a
// listener.
func examples(t *testing.T) *shell {
	t.Helper()
	sh := alone(t)
	t.Chdir(t.TempDir())
	assert.NoError(t, os.WriteFile("heads.txt", []byte("main 1 "+strings.Repeat("0", 64)), 0o600))
	sh.set("CARETAKER_ADDRESS", "127.0.0.1:1")
	return sh
}

// Examples are tried on an address without a listener, and without databases: the remainder is
// usage.
func TestHelp_ExamplesOfEveryCommandParse(t *testing.T) {
	sh, tried := examples(t), 0
	everyCommand(cli.Root(cli.Streams{}), func(c *cobra.Command) {
		if !c.Runnable() {
			return
		}
		if c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			command, _, _ := strings.Cut(line, " >")
			args := words(command)
			if len(args) == 0 || args[0] != "caretaker" {
				t.Fatalf("%s: %q", c.CommandPath(), line)
			}
			if len(args) > 1 && args[1] == "dev" {
				args = append(args, "--help")
			}
			tried++
			if code, out, errOut := sh.caretaker(args[1:]...); code == 2 {
				t.Errorf("%s: %s%s", strings.TrimSpace(line), out, errOut)
			}
		}
	})
	assert.That(t, tried >= 40, "only %d examples", tried)
}

func TestVersion_SaysWhatItIsMadeOf(t *testing.T) {
	sh := newShell(t)
	sh.want(0, "version", "caretaker ", runtime.Version(), "in every database")
	v := document(t, sh.want(0, "version -o json"))
	assert.That(t, v["go"] == runtime.Version() && v["schema"] != nil && v["version"] != "", "%v", v)
}

func TestCompletion_OffersNamesAndFilesOnlyWhereFilesAreMeant(t *testing.T) {
	sh := newShell(t)
	sh.set("CARETAKER_ADDRESS", "127.0.0.1:1")
	sh.set("CARETAKER_DATABASES_EU_SHOP_URL", "postgres://127.0.0.1:1/x")
	for line, offered := range map[string]string{
		"run ":                        "loose_foreign_keys_cleanup ghost_user_migration adjourned_group_deletion placeholder_user_cleanup inactive_token_deletion orphan_audit :4",
		"flags set a_flag o":          "on off :4",
		"run ghost_user_migration ":   ":4",
		"runs --state s":              "running succeeded failed cancelled skipped :4",
		"jobs --kind delete_u":        "delete_placeholder_user delete_user destroy_group continue_inactive_token_deletion :4",
		"run x --database s":          "ci eu_shop main sec :4",
		"protect u":                   "user group :4",
		"status --output ":            "text json yaml wide :4",
		"serve --config ":             ":0",
		"dev --data-dir ":             ":16",
		"lfk track ":                  ":4",
		"jobs retry ":                 ":4",
		"completion ":                 "bash fish powershell zsh :4",
		"status --token-file ":        ":0",
		"pause ghost_user --reason ":  ":4",
		"lfk retry --all nothing-yet": ":4",
	} {
		args := append([]string{"__complete"}, strings.Fields(line)...)
		if strings.HasSuffix(line, " ") {
			args = append(args, "")
		}
		_, out, errOut := sh.caretaker(args...)
		var got []string
		for one := range strings.Lines(out) {
			name, _, _ := strings.Cut(strings.TrimSpace(one), "\t")
			got = append(got, name)
		}
		assert.Equal(t, strings.Join(got, " "), offered, line, errOut)
	}
}

// runbook is the part of docs/operate/runbook.md about alerts.
func runbook(t *testing.T) string {
	t.Helper()
	content := assert.Must(os.ReadFile("../docs/operate/runbook.md"))(t)
	_, text, found := strings.Cut(string(content), "\n## Alerts\n")
	assert.Require(t, found, "docs/operate/runbook.md has no section Alerts")
	return text
}

func TestRunbook_NamesCommandsAndFlagsThatThereAre(t *testing.T) {
	sh := newShell(t)
	commands := regexp.MustCompile("`caretaker\\s([^`]+)`").FindAllStringSubmatch(runbook(t), -1)
	for _, m := range commands {
		// With --help a command's flags are checked, and nothing is done.
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
	assert.That(t, len(blocks) >= 9 && len(inline) >= 2,
		"only %d blocks and %d statements within lines found", len(blocks), len(inline))
}

// Every command is called as in its examples, with a file that does not exist, and one with a key that does not.
func TestConfig_AWrongFileIsAnErrorOfEveryCommand(t *testing.T) {
	sh, wrong := examples(t), saved(t, "wrong.yml", "listn: 127.0.0.1:0")
	tried := 0
	everyCommand(cli.Root(cli.Streams{}), func(c *cobra.Command) {
		// init writes the file of --config.
		if c.Name() == "init" || !c.Runnable() || c.HasSubCommands() && c.Name() != "jobs" && c.Name() != "flags" || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		line, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
		line, _, _ = strings.Cut(line, " >")
		line = strings.ReplaceAll(line, " --config caretaker.yml", "")
		for file, mistake := range map[string]string{"/nowhere.yml": "/nowhere.yml", wrong: "did you mean listen?"} {
			tried++
			code, out, errOut := sh.caretaker(append(words(line)[1:], "--config", file)...)
			if code != 1 && c.Name() != "doctor" || code == 0 || !strings.Contains(out+errOut, mistake) {
				t.Errorf("%s --config %s: exit %d: %s%s", line, file, code, out, errOut)
			}
		}
	})
	assert.That(t, tried >= 60, "only %d were tried", tried)
}

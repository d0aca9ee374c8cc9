package cli_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/cli"
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

// examples is a shell in a folder that has the files of the examples, and an address at which nobody listens.
func examples(t *testing.T) *shell {
	t.Helper()
	sh := alone(t)
	t.Chdir(t.TempDir())
	assert.NoError(t, os.WriteFile("heads.txt", []byte("main 1 "+strings.Repeat("0", 64)), 0o600))
	sh.set("CARETAKER_ADDRESS", "127.0.0.1:1")
	return sh
}

// Examples are tried on an address at which nobody listens, and without databases: what is left is usage.
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
		"pause gh":                    "ghost_user_migration :4",
		"run ghost_user_migration ":   ":4",
		"runs --state s":              "succeeded skipped :4",
		"jobs --kind delete_u":        "delete_user :4",
		"run x --database s":          "sec :4",
		"run x --database e":          "eu_shop :4",
		"protect u":                   "user :4",
		"status --output ":            "text json :4",
		"serve --config ":             ":0",
		"dev --data-dir ":             ":16",
		"lfk track ":                  ":4",
		"jobs retry ":                 ":4",
		"completion ":                 "bash fish powershell zsh :4",
		"flags set x o":               "on off :4",
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

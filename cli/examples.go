package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are shown in the help, by command. A test tries them.
func examples() map[string][]string {
	return map[string][]string{
		"caretaker": {
			"caretaker dev", "caretaker doctor --config caretaker.yml", "caretaker status",
			"caretaker run ghost_user_migration --dry-run",
		},
		"caretaker dev":     {"caretaker dev", "caretaker dev --data-dir /var/tmp/caretaker"},
		"caretaker serve":   {"caretaker serve --config caretaker.yml"},
		"caretaker migrate": {"caretaker migrate --config caretaker.yml"},
		"caretaker lfk":     {"caretaker lfk lint --config caretaker.yml"},
		"caretaker lfk track": {
			"caretaker lfk track projects", "caretaker lfk track projects --column id --database main",
		},
		"caretaker lfk dead":          {"caretaker lfk dead", "caretaker lfk dead --failing --table projects"},
		"caretaker lfk retry":         {"caretaker lfk retry --all", "caretaker lfk retry --table projects"},
		"caretaker lfk accept-absent": {"caretaker lfk accept-absent epics", "caretaker lfk accept-absent --list"},
		"caretaker lfk adopt": {
			"caretaker lfk adopt members.user_id --plan", "caretaker lfk adopt members.user_id --yes",
		},
		"caretaker lfk revert": {"caretaker lfk revert members.user_id"},
		"caretaker lfk orphans": {
			"caretaker lfk orphans", "caretaker lfk orphans members.user_id --fix --database main",
		},
		"caretaker run": {
			"caretaker run ghost_user_migration --dry-run",
			"caretaker run loose_foreign_keys_cleanup --database ci",
		},
		"caretaker status": {"caretaker status", "caretaker status ghost_user_migration -o json"},
		"caretaker leases": {"caretaker leases", "caretaker leases loose_foreign_keys_cleanup"},
		"caretaker runs": {
			"caretaker runs", "caretaker runs ghost_user_migration --state failed --since 24h",
		},
		"caretaker fires": {"caretaker fires", "caretaker fires --outcome missed"},
		"caretaker pause": {
			"caretaker pause ghost_user_migration --reason 'upgrade' --for 2h",
			"caretaker pause --all --reason 'incident 4711'",
		},
		"caretaker resume": {"caretaker resume ghost_user_migration", "caretaker resume --all"},
		"caretaker jobs": {
			"caretaker jobs", "caretaker jobs --kind delete_user --state discarded",
			"caretaker jobs --since 2026-11-01T00:00:00Z --until 2026-11-02T00:00:00Z",
		},
		"caretaker flags":     {"caretaker flags", "caretaker flags set loose_foreign_keys_turbo_mode_ci on"},
		"caretaker flags set": {"caretaker flags set loose_foreign_keys_turbo_mode_ci on"},
		"caretaker help":      {"caretaker help run"},
	}
}

// addExamples gives a command and those below it their examples; one that has none gets its usage
// line with values.
func addExamples(command *cobra.Command, all map[string][]string) {
	lines := all[command.CommandPath()]
	if len(lines) == 0 {
		lines = []string{strings.TrimSpace(command.CommandPath() + " " + values(command.Use))}
	}
	if command.Example == "" {
		command.Example = "  " + strings.Join(lines, "\n  ")
	}
	for _, child := range command.Commands() {
		addExamples(child, all)
	}
}

// values stand for what a usage line asks for.
func values(use string) string {
	known := map[string]string{
		"WORKER": "ghost_user_migration", "RUN": "01a1fbb2-62fe-7420-8c8f-e59373dcf4f4", "JOB": "42",
		"TABLE": "projects", "ID": "42", "REASON": "'incident 4711'", "DIR": "man", "IDS": "42",
		"COMMAND": "run", "CHILD": "epics",
	}
	var words []string
	for _, word := range strings.Fields(use)[1:] {
		if strings.HasPrefix(word, "[") {
			break
		}
		one, _, _ := strings.Cut(strings.Trim(word, "."), "|")
		if value, ok := known[one]; ok {
			one = value
		}
		words = append(words, one)
	}
	return strings.Join(words, " ")
}

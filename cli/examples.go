package cli

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"
)

// examples are shown in the help of their command. A test tries them.
const examples = `caretaker audit
caretaker audit --since 24h
caretaker audit --since 2026-11-01T00:00:00Z --page-size 1000 --output json
caretaker cancel 01a1fbb2-62fe-7420-8c8f-e59373dcf4f4
caretaker dev
caretaker dev --data-dir /var/tmp/caretaker
caretaker doctor --config caretaker.yml
caretaker doctor --config caretaker.yml --output json
caretaker doctor --config caretaker.yml --grants --role caretaker
caretaker doctor --config caretaker.yml --grants --database main > grants-main.sql
caretaker fires
caretaker fires --outcome missed
caretaker flags set loose_foreign_keys_turbo_mode_ci on
caretaker init --url postgres://caretaker@db:5432/shop
caretaker init --url postgres://caretaker@db:5432/shop --use loose_foreign_keys --yes
caretaker jobs
caretaker jobs --kind delete_user --state discarded
caretaker jobs --since 2026-11-01T00:00:00Z --until 2026-11-02T00:00:00Z
caretaker jobs cancel 42 --reason 'incident 4711'
caretaker jobs outside
caretaker jobs outside 42 --all
caretaker jobs outside --plain
caretaker jobs outside done 4711 4712
caretaker jobs retry 42
caretaker jobs show 42
caretaker leases
caretaker leases loose_foreign_keys_cleanup
caretaker lfk accept-absent epics
caretaker lfk accept-absent --list
caretaker lfk adopt members.user_id --plan
caretaker lfk adopt members.user_id --yes
caretaker lfk dead
caretaker lfk dead --failing --table projects
caretaker lfk orphans
caretaker lfk orphans members.user_id --fix --database main
caretaker lfk retry --all
caretaker lfk retry --table projects
caretaker lfk revert members.user_id
caretaker lfk track projects
caretaker lfk track projects --column id --database main
caretaker lfk untrack projects
caretaker migrate --config caretaker.yml
caretaker pause ghost_user_migration --reason 'upgrade' --for 2h
caretaker pause --all --reason 'incident 4711'
caretaker plan user 42
caretaker protect user 42 --reason 'incident 4711'
caretaker receipts head --config caretaker.yml >> heads.txt
caretaker receipts list --table issues --key 4711
caretaker receipts list --database ci --table p_ci_builds
caretaker receipts verify --config caretaker.yml
caretaker receipts verify --config caretaker.yml --head heads.txt
caretaker resume ghost_user_migration
caretaker resume --all
caretaker run ghost_user_migration --dry-run
caretaker run loose_foreign_keys_cleanup --database ci
caretaker runs
caretaker runs ghost_user_migration --state failed --since 24h
caretaker serve --config caretaker.yml
caretaker status
caretaker status ghost_user_migration -o json
caretaker unprotect user 42
caretaker watch 01a1fbb2-62fe-7420-8c8f-e59373dcf4f4`

// addExamples gives the commands their examples; one that has none gets its name.
func addExamples(root *cobra.Command) {
	for line := range strings.SplitSeq(examples, "\n") {
		if c, _, err := root.Find(strings.Fields(line)[1:]); err == nil {
			c.Example = strings.TrimPrefix(c.Example+"\n  "+line, "\n")
		}
	}
	nameExample(root)
}

func nameExample(c *cobra.Command) {
	c.Example = cmp.Or(c.Example, "  "+c.CommandPath())
	for _, child := range c.Commands() {
		nameExample(child)
	}
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// errWhichAbsent is a command that does not say what to do with which children, or says two things.
var errWhichAbsent = errors.New("say which child tables: CHILD…, --all, --list or --revoke CHILD…")

func (l *lfk) acceptAbsent() *cobra.Command {
	var all, list, revoke bool
	command := &cobra.Command{
		Use:   "accept-absent (CHILD… | --all | --list | --revoke CHILD…)",
		Short: "Accept that child tables are in no database, so that their definitions are skipped",
		Long: "Records of parents are not removed while a child table of the definitions is in no configured database: if it is in one that\n" +
			"the configuration lacks, its rows would be orphaned for good. Configure that database; or, where there is no such table,\n" +
			"accept that here. Every configured database has to answer. The acceptance ends by itself when a run finds the table.",
		RunE: func(c *cobra.Command, children []string) error {
			if l.only != "" {
				return &exitError{exitUsage, errors.New("a child is absent only if no configured database has it: leave --database out")}
			}
			if (len(children) == 0) != (all || list) {
				return &exitError{exitUsage, errWhichAbsent}
			}
			return l.with(c, func(ctx context.Context, keys loosefk.Admin) error {
				switch {
				case list:
					return l.listAbsent(ctx, keys)
				case revoke:
					return l.revokeAbsent(ctx, keys, children)
				}
				return l.acceptChildren(ctx, keys, children)
			})
		},
	}
	flags := command.Flags()
	flags.BoolVar(&all, "all", false, "accept all child tables that are in no configured database")
	flags.BoolVar(&list, "list", false, "list the child tables that were accepted")
	flags.BoolVar(&revoke, "revoke", false, "end the acceptance of the child tables")
	command.MarkFlagsMutuallyExclusive("all", "list", "revoke")
	command.SetHelpFunc(func(c *cobra.Command, args []string) {
		_ = c.Flags().MarkHidden("database") // It is refused here.
		c.Parent().HelpFunc()(c, args)
	})
	return command
}

func (l *lfk) acceptChildren(ctx context.Context, keys loosefk.Admin, children []string) error {
	done, err := keys.AcceptAbsent(ctx, children, operator())
	if err != nil {
		return err
	}
	return l.report(nil, map[string]any{"accepted": done}, func() {
		for _, c := range done {
			how := "accepted as absent"
			if c.Before {
				how = "already accepted as absent"
			}
			l.say("%s: %s (%s)", how, c.Child, strings.Join(c.Definitions, ", "))
		}
		if len(done) == 0 {
			l.say("nothing new to accept")
		} else {
			l.note("held records are removed when they are due again, within the hour, unless their parent has no other child: " +
				"caretaker lfk lint lists those")
		}
	})
}

// operator is who works with the databases directly, as their tables put it down: the user and the host.
func operator() string {
	host, _ := os.Hostname()
	return cmp.Or(userName(), "unknown") + "@" + cmp.Or(host, "unknown")
}

func (l *lfk) listAbsent(ctx context.Context, keys loosefk.Admin) error {
	children, err := keys.AbsentChildren(ctx)
	switch {
	case err != nil:
		return err
	case l.asJSON:
		return l.json(map[string]any{"absent_children": children})
	case len(children) == 0:
		l.say("no child table is accepted as absent")
		return nil
	}
	heading := []string{"CHILD", "ACCEPTED", "BY"}
	return printTable(l.app, heading, children, func(c repo.AbsentChild) []string {
		return []string{c.Child, utc(c.AcceptedAt), c.AcceptedBy}
	})
}

func (l *lfk) revokeAbsent(ctx context.Context, keys loosefk.Admin, children []string) error {
	if err := keys.RevokeAbsent(ctx, children); err != nil {
		return err
	}
	return l.report(nil, map[string]any{"revoked": children}, func() {
		for _, c := range children {
			l.say("no longer accepted as absent: %s", c)
		}
	})
}

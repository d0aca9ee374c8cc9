package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
)

// lfkCommands are the commands for loose foreign keys. They connect to the databases, not to a
// server.
type lfkCommands struct {
	*terminal
	app *app
	// database is the name of the selected database, "" for all.
	database string
}

// lfkCommand groups the commands that connect to the databases instead of a server.
func lfkCommand(a *app) *cobra.Command {
	l := &lfkCommands{terminal: a.terminal, app: a}
	list := l.list()
	command := &cobra.Command{
		Use:     "lfk",
		GroupID: groupServe,
		Short:   "Set up and check loose foreign keys: queue, triggers, definitions, records, orphans",
		Args:    commandOnly,
		RunE:    list.RunE,
	}
	command.PersistentFlags().StringVar(&l.database, "database", "",
		"database `name`, as in the configuration (default all)")
	command.AddCommand(list, l.lint(), l.install(), l.track(), l.untrack(), l.dead(), l.retry(), l.reused(),
		l.acceptAbsent(), l.adopt(), l.revert(), l.orphans())
	return command
}

// action is the work of a command on the configured databases.
type action func(ctx context.Context, keys admin.Admin, args []string) error

// with returns the body of a command: it opens the configured databases for do. Unknown databases,
// tables, records and children are usage errors.
func (l *lfkCommands) with(do action) func(*cobra.Command, []string) error {
	return l.body(true, do)
}

// withTables is with for a command that runs without the definitions if it cannot read them.
func (l *lfkCommands) withTables(do action) func(*cobra.Command, []string) error {
	return l.body(false, do)
}

// body is the common part of with and withTables. Without needsDefinitions, an unreadable file of
// definitions is only a warning.
func (l *lfkCommands) body(needsDefinitions bool, do action) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		err := l.app.withDatabases(c, func(
			ctx context.Context, s *settings, open []*repo.Database,
		) error {
			keys, err := lfkAdmin(service.Settings[lfk.Config](&s.service), l.database)
			if _, wrong := errors.AsType[*lfk.DefinitionsError](err); wrong && !needsDefinitions {
				l.note("warning: cannot read the definitions, so they were not checked: %v", err)
				err = nil
			}
			if err != nil {
				return err
			}
			keys.Databases, keys.Progress = open, l.status
			defer l.endStatus()
			return do(ctx, keys, args)
		})
		if admin.Misused(err) {
			return usage(err)
		}
		return err
	}
}

// lfkAdmin uses the worker settings that affect these commands.
func lfkAdmin(worker *lfk.Config, database string) (keys admin.Admin, err error) {
	keys.Only = database
	// With RotationAll every scheduled run covers all databases, so no schedule can omit one.
	if *worker.Enabled && worker.Rotation != lfk.RotationAll {
		keys.Schedule = worker.Schedule
	}
	if worker.DefinitionsFile != "" {
		keys.Definitions, err = lfk.LoadDefinitions(worker.DefinitionsFile)
		keys.Unread = err != nil
	}
	return keys, err
}

// reportDatabases prints the results of each database, as report does.
func reportDatabases[T any](l *lfkCommands, err error, done []T, text func(T)) error {
	return l.report(err, map[string]any{"databases": done}, func() {
		for _, d := range done {
			text(d)
		}
	})
}

// lint prints the findings, and exits with 1 if one of them is an error.
func (l *lfkCommands) lint() *cobra.Command {
	return &cobra.Command{
		Use:   "lint",
		Short: "Check the definitions against the databases, without changing anything",
		Args:  between(0, 0),
		RunE: l.with(func(ctx context.Context, keys admin.Admin, _ []string) error {
			result, err := keys.Lint(ctx)
			if result.Findings != nil {
				if printErr := l.report(nil, result, func() { l.findings(result) }); printErr != nil {
					return printErr
				}
			}
			if err == nil && result.Errors > 0 {
				return &exitError{code: exitFailed}
			}
			return err
		}),
	}
}

// findings prints a line for each finding, and a summary with the databases that were not checked.
func (l *lfkCommands) findings(result admin.Lint) {
	for _, f := range result.Findings {
		l.println("%-7s  %s  %s  %s: %s", f.Severity, f.Code, cmp.Or(f.Database, none), f.Object, f.Advice)
	}
	summary := format.Pluralize(result.Errors, "error") + ", " + format.Pluralize(result.Warnings, "warning")
	if len(result.Unchecked) > 0 {
		summary += "; not checked: " + strings.Join(result.Unchecked, ", ")
	}
	l.println("%s", summary)
}

// install creates or updates the queue in each selected database. It can be repeated.
func (l *lfkCommands) install() *cobra.Command {
	var schema string
	command := &cobra.Command{
		Use:   "install",
		Short: "Create the queue of deleted parents and its trigger functions, if they are missing",
		Args:  between(0, 0),
		RunE: l.withTables(func(ctx context.Context, keys admin.Admin, _ []string) error {
			keys.Schema = schema
			done, err := keys.Install(ctx)
			return reportDatabases(l, err, done, func(d admin.Installed) {
				l.println("%s: %s", d.Database, d.Result)
			})
		}),
	}
	command.Flags().StringVar(&schema, "schema", "",
		"create the queue in this `schema`, even if another schema has a queue")
	return command
}

// track creates triggers for up to maxNamed tables. It ends at the first table that fails.
func (l *lfkCommands) track() *cobra.Command {
	var columns []string
	command := &cobra.Command{
		Use:   "track TABLE...",
		Short: "Create the triggers that record deletions from a table and all its partitions",
		Args:  between(1, maxNamed),
		RunE: l.withTables(func(ctx context.Context, keys admin.Admin, args []string) error {
			plan := keys
			plan.Plan = true
			return eachNamed(l, args, func(table string) (admin.Tracked, error) {
				return plan.Track(ctx, table, columns...)
			}, func(table string) (admin.Tracked, func(), error) {
				done, err := keys.Track(ctx, table, columns...)
				return done, func() { l.showTracked(done) }, err
			})
		}),
	}
	command.Flags().StringSliceVar(&columns, "column", nil,
		"key column `name`, or up to four names separated by commas (default id)")
	return command
}

// showTracked prints the triggers dropped and created, or that the table was already tracked.
func (l *lfkCommands) showTracked(done admin.Tracked) {
	if len(done.Triggers)+len(done.Dropped) == 0 {
		l.println("%s: %s: already tracked", done.Database, done.Table)
	}
	for _, t := range done.Dropped {
		l.println("%s: dropped trigger %s", done.Database, t)
	}
	for _, t := range done.Triggers {
		l.println("%s: created trigger %s", done.Database, t)
	}
}

// untrack drops the triggers of one table. Before, it asks if that orphans children.
func (l *lfkCommands) untrack() *cobra.Command {
	yes := false
	command := &cobra.Command{
		Use:   "untrack TABLE",
		Short: "Drop the triggers that record deletions from a table, or from one partition",
		Args:  between(1, 1),
		RunE: l.withTables(func(ctx context.Context, keys admin.Admin, args []string) error {
			if err := l.agreeToOrphans(ctx, keys, args[0], yes); err != nil {
				return err
			}
			keys.Discard = true
			done, err := keys.Untrack(ctx, args[0])
			return reportDatabases(l, err, done, func(d admin.Untracked) {
				for _, t := range d.Triggers {
					l.println("%s: dropped trigger %s", d.Database, t)
				}
				if d.Discarded > 0 {
					l.println("%s: deleted %s of %s that no definition needs", d.Database,
						format.Pluralize(int(d.Discarded), "record"), d.Table)
				}
			})
		}),
	}
	command.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation when definitions "+
		"or adopted foreign keys still use the table, or when records would be deleted")
	return command
}

// agreeToOrphans asks before untracking a table whose deletions then orphan children, or warns of
// that with --yes. Untracking itself reports an unreachable database.
func (l *lfkCommands) agreeToOrphans(
	ctx context.Context, keys admin.Admin, table string, yes bool,
) error {
	orphaned, _ := keys.OrphanedBy(ctx, table)
	names, adopted := orphaned.Definitions, ""
	if len(orphaned.Adopted) > 0 {
		adopted = " (first run `caretaker lfk revert` for the adopted foreign keys " + format.List(orphaned.Adopted) + ")"
	}
	if len(names) == 0 {
		names = orphaned.Adopted
	}
	if len(names) == 0 {
		if !orphaned.Discarded || yes {
			return nil
		}
		const records = "records of %s are pending or dead, and no definition needs these records"
		return l.agree(fmt.Sprintf("nothing was dropped, because "+records+": add a definition, or run this "+
			"command again with --yes to delete the records", table),
			"untrack %s and delete its records? "+strings.ToUpper(records[:1])+records[1:]+" [y/N] ", table, table)
	}
	orphans := fmt.Sprintf("without the triggers, deletions from %s leave orphaned rows (%s)", table,
		format.List(names))
	if yes {
		l.note("warning: %s. caretaker still processes pending records if their key columns are known", orphans)
		return nil
	}
	return l.agree(fmt.Sprintf("nothing was dropped, because %s: to drop the triggers, run this command again with "+
		"--yes%s", orphans, adopted), "untrack %s? %s [y/N] ", table, strings.ToUpper(orphans[:1])+orphans[1:])
}

// operator returns the name of the command's user for records.
func operator() string {
	host, _ := os.Hostname()
	return cmp.Or(userName(), "unknown") + "@" + cmp.Or(host, "unknown")
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
)

// listing describes how to print a list of records.
type listing[T any] struct {
	// key names the list in a JSON document.
	key string
	// empty is the text for an empty list.
	empty   string
	columns []column
	row     func(T) []any
}

// show prints the records. err has the errors of records that could not be read.
func (t listing[T]) show(l *lfkCommands, records []T, err error) error {
	switch {
	case err != nil && len(records) == 0:
		return err
	case l.asJSON:
		return l.report(err, map[string]any{t.key: records}, nil)
	case len(records) == 0:
		l.println("%s", t.empty)
		return nil
	}
	return errors.Join(err, printTable(l.terminal, t.columns, records, t.row))
}

// dead lists dead records, or with --failing those that will be retried.
func (l *lfkCommands) dead() *cobra.Command {
	var table string
	var failing bool
	command := &cobra.Command{
		Use:   "dead",
		Short: "List dead records, whose cleanup failed ten times",
		Args:  between(0, 0),
		RunE: l.withTables(func(ctx context.Context, keys admin.Admin, _ []string) error {
			if failing {
				records, err := keys.Failing(ctx, table)
				return l.failingRecords().show(l, records, err)
			}
			records := []admin.DeadRecord{}
			err := keys.Dead(ctx, table, func(r admin.DeadRecord) error {
				records = append(records, r)
				return nil
			})
			return l.deadRecords().show(l, records, err)
		}),
	}
	command.Flags().StringVar(&table, "table", "", "parent table `name` (default all)")
	command.Flags().BoolVar(&failing, "failing", false, "list failed and held records that will be retried, instead of dead records")
	l.localFlag(command.Flags())
	return command
}

// deadRecords returns the columns of dead records. Line breaks in error messages become spaces.
func (l *lfkCommands) deadRecords() listing[admin.DeadRecord] {
	return listing[admin.DeadRecord]{
		key: "dead_records", empty: "no dead records",
		columns: []column{
			col("DATABASE"), col("ID"), col("TABLE", cut), col("KEY"), col("DEFINITION", cut),
			col("SQLSTATE"), col("FAILURES", dropSecond), col("RECORDED", timestamp, dropSecond),
			col("DEAD SINCE", timestamp, dropSecond), col("MESSAGE", cut, dropSecond),
		},
		row: func(r admin.DeadRecord) []any {
			return []any{
				r.Database, r.ID, r.Table, r.Key(), r.Definition, r.SQLState, r.Failures, r.RecordedAt,
				r.DeadAt, strings.Join(strings.Fields(r.Message), " "),
			}
		},
	}
}

// failingRecords returns the columns of failing records. A next attempt that is already due shows
// as now.
func (l *lfkCommands) failingRecords() listing[admin.FailingRecord] {
	return listing[admin.FailingRecord]{
		key: "failing_records", empty: "no failing records",
		columns: []column{
			col("DATABASE"), col("ID"), col("TABLE", cut), col("KEY"), col("DEFINITION", cut),
			col("CAUSE", cut), col("FAILURES", dropSecond), col("FAILED", timestamp, dropSecond),
			col("NEXT TRY", timestamp, dropSecond),
		},
		row: func(r admin.FailingRecord) []any {
			next := any("now")
			if r.NextTry != nil && r.NextTry.After(time.Now()) {
				next = *r.NextTry
			}
			return []any{
				r.Database, r.ID, r.Table, r.Key(), r.Definition, cmp.Or(r.SQLState, none), r.Setbacks,
				r.FailedAt, next,
			}
		},
	}
}

// retry puts dead records back into the queue. Exactly one of --id, --table and --all is required.
func (l *lfkCommands) retry() *cobra.Command {
	var id int64
	var table string
	var all bool
	command := &cobra.Command{
		Use:   "retry (--id N | --table T | --all)",
		Short: "Queue dead records again",
	}
	flags := command.Flags()
	command.Args = cobra.MatchAll(between(0, 0), func(*cobra.Command, []string) error {
		if howMany(flags.Changed("id"), flags.Changed("table"), all) != 1 {
			return errors.New("select the records with --id N, --table T or --all")
		}
		return nil
	})
	flags.Int64Var(&id, "id", 0, "`id` of the dead record")
	flags.StringVar(&table, "table", "", "parent table `name`")
	flags.BoolVar(&all, "all", false, "queue all dead records again")
	command.RunE = l.withTables(func(ctx context.Context, keys admin.Admin, _ []string) error {
		var only *int64
		if flags.Changed("id") {
			only = &id
		}
		done, err := keys.Retry(ctx, only, table)
		return reportDatabases(l, err, done, func(d admin.Retried) {
			l.println("%s: %s queued again", d.Database, format.Pluralize(d.Records, "record"))
		})
	})
	return command
}

// reused lists reused keys. With --clean or --keep it decides on all of one table.
func (l *lfkCommands) reused() *cobra.Command {
	var clean, keep bool
	command := &cobra.Command{
		Use:   "reused [TABLE [--clean | --keep]]",
		Short: "List records with reused keys, and clean up or keep their child rows",
	}
	flags := command.Flags()
	flags.BoolVar(&clean, "clean", false, "clean up the child rows in the next run")
	flags.BoolVar(&keep, "keep", false, "keep the child rows and close the records")
	l.localFlag(flags)
	command.Args = cobra.MatchAll(between(0, 1), func(_ *cobra.Command, tables []string) error {
		switch {
		case clean && keep:
			return errors.New("--clean and --keep are mutually exclusive")
		case (clean || keep) && len(tables) == 0:
			return errors.New("--clean and --keep require a table")
		}
		return nil
	})
	command.RunE = l.withTables(func(ctx context.Context, keys admin.Admin, tables []string) error {
		table := strings.Join(tables, "")
		if !clean && !keep {
			records, err := keys.Reused(ctx, table)
			return l.reusedRecords().show(l, records, err)
		}
		done, err := keys.DecideReused(ctx, table, clean)
		return reportDatabases(l, err, done, func(d admin.Retried) {
			records := format.Pluralize(d.Records, "record")
			if clean {
				l.println("%s: the next run deletes or nullifies the child rows of %s", d.Database, records)
			} else {
				l.println("%s: closed %s and kept the child rows", d.Database, records)
			}
		})
	})
	return command
}

// reusedRecords returns the columns of records whose key another row uses now.
func (l *lfkCommands) reusedRecords() listing[admin.FailingRecord] {
	return listing[admin.FailingRecord]{
		key: "reused_records", empty: "no reused keys",
		columns: []column{
			col("DATABASE"), col("ID"), col("TABLE", cut), col("KEY"),
			col("LAST CHECK", timestamp, dropSecond),
		},
		row: func(r admin.FailingRecord) []any {
			return []any{r.Database, r.ID, r.Table, r.Key(), r.FailedAt}
		},
	}
}

// acceptAbsent accepts child tables as absent, lists those accepted, or revokes the acceptance. It
// refuses --database, because a child is absent only if no configured database has it.
func (l *lfkCommands) acceptAbsent() *cobra.Command {
	var all, list, revoke bool
	accept := l.with(func(ctx context.Context, keys admin.Admin, children []string) error {
		switch {
		case list:
			records, err := keys.AbsentChildren(ctx)
			return l.absentChildren().show(l, records, err)
		case revoke:
			if err := keys.RevokeAbsent(ctx, children); err != nil {
				return err
			}
			return l.report(nil, map[string]any{"revoked": children}, func() {
				for _, c := range children {
					l.println("no longer accepted as absent: %s", c)
				}
			})
		}
		return l.acceptChildren(ctx, keys, children)
	})
	command := &cobra.Command{
		Use:   "accept-absent (CHILD… | --all | --list | --revoke CHILD…)",
		Short: "Accept that child tables do not exist in any database, and skip their definitions",
		RunE: func(c *cobra.Command, children []string) error {
			if l.database != "" {
				return usage(errors.New("--database is not allowed: a child table is absent only " +
					"if no configured database contains it"))
			}
			if given := howMany(all, list, revoke); given > 1 || (len(children) == 0) != (all || list) {
				return usage(errors.New("use one of CHILD…, --all, --list or --revoke CHILD…"))
			}
			return accept(c, children)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&all, "all", false, "accept all child tables that no configured database contains")
	flags.BoolVar(&list, "list", false, "list the child tables accepted as absent")
	flags.BoolVar(&revoke, "revoke", false, "stop accepting the child tables as absent")
	l.localFlag(flags)
	command.SetHelpFunc(func(c *cobra.Command, args []string) {
		_ = c.Flags().MarkHidden("database") // This command refuses the flag.
		c.Parent().HelpFunc()(c, args)
	})
	return command
}

// acceptChildren accepts the children and prints each with its definitions. No children stands for
// all absent ones.
func (l *lfkCommands) acceptChildren(ctx context.Context, keys admin.Admin, children []string) error {
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
			if c.Databases != nil {
				how += " on " + strings.Join(c.Databases, ", ")
			}
			l.println("%s: %s (%s)", how, c.Child, strings.Join(c.Definitions, ", "))
		}
		if len(done) == 0 {
			l.println("nothing new to accept")
			return
		}
		l.note("caretaker removes the held records within an hour if the parent has other child tables. " +
			"To list the parents without other child tables, run `caretaker lfk lint`")
	})
}

// absentChildren returns the columns of accepted child tables.
func (l *lfkCommands) absentChildren() listing[lfk.AbsentChild] {
	return listing[lfk.AbsentChild]{
		key: "absent_children", empty: "no child table is accepted as absent",
		columns: []column{
			col("CHILD"), col("DATABASE"), col("ACCEPTED", timestamp), col("BY", cut),
		},
		row: func(c lfk.AbsentChild) []any {
			return []any{c.Child, cmp.Or(c.Database, none), c.AcceptedAt, c.AcceptedBy}
		},
	}
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
	service "github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/lfk/orphans"
)

// orphans searches all databases for children without a parent, up to --limit parents. With --fix
// it queues records for them, under a lease that it releases at the end.
func (l *lfkCommands) orphans() *cobra.Command {
	var fix bool
	var limit int
	var parent string
	command := &cobra.Command{
		Use:   "orphans [TABLE.COLUMN]",
		Short: "Find child rows whose parent row is missing",
		Args:  between(0, 1),
		RunE: l.with(func(ctx context.Context, keys admin.Admin, args []string) error {
			// The search covers all databases: --database selects a child table.
			if _, err := keys.Selected(); err != nil {
				return err
			}
			if keys.Definitions == nil {
				return errors.New("no definitions file configured: set " +
					"workers.loose_foreign_keys_cleanup.definitions to the definitions file")
			}
			var only *reference
			if len(args) > 0 {
				r, err := parseReference(args[0])
				if err != nil {
					return err
				}
				only = &r
			}
			if limit < 1 {
				return usage(errors.New("--limit must be at least 1"))
			}
			search := &orphans.Search{
				Audit: orphans.Audit{Databases: keys.Databases, Keys: keys.Definitions.Keys},
				Which: func(t *orphans.Task) bool {
					return (only == nil || only.matches(t.Key)) && (parent == "" || parent == t.Key.Parent) &&
						(l.database == "" || l.database == t.Database())
				},
				Limit: limit, Progress: l.status,
			}
			if fix {
				search.Fix = &orphans.Repair{Main: keys.Databases[0], Holder: operator()}
				defer search.Fix.End(context.WithoutCancel(ctx))
			}
			found, err := search.Run(ctx)
			if errors.Is(err, orphans.ErrNoTask) {
				return usage(fmt.Errorf("%w%s: run `caretaker lfk lint` to check the definitions", err,
					similar(only, parent, keys.Definitions.Keys)))
			}
			if err != nil {
				return err
			}
			if len(search.LeftOut) > 0 {
				l.note("warning: skipped %s: run `caretaker lfk lint` for details", format.List(search.LeftOut))
			}
			err = l.showOrphans(found)
			if !fix && !l.asJSON && slices.ContainsFunc(found, func(f orphans.Found) bool { return f.Keys > 0 }) {
				l.note("to delete or update these rows, run this command again with --fix")
			}
			return err
		}),
	}
	flags := command.Flags()
	flags.BoolVar(&fix, "fix", false, "queue records for the missing parents")
	flags.StringVar(&parent, "parent", "", "parent `table`, if the column refers to several tables")
	flags.IntVar(&limit, "limit", 100_000, "maximum `number` of missing parents")
	return command
}

// similar asks whether another parent of the column was meant. For an unknown column it asks for the
// most similar name, or else for columns of the same table, in any schema.
func similar(only *reference, parent string, keys []lfk.Definition) string {
	bare := func(table string) string {
		t, _ := catalog.ParseTable(table)
		return t.Name
	}
	var parents, columns, others []string
	for _, k := range keys {
		column := k.Table + "." + lfk.ColumnList(k.Columns)
		switch columns = append(columns, column); {
		case only == nil || only.matches(k):
			parents = append(parents, k.Parent)
		case bare(k.Table) == bare(only.table) && len(others) < 3:
			others = append(others, column)
		}
	}
	if only == nil || len(parents) > 0 {
		return format.DidYouMean(parent, parents)
	}
	return cmp.Or(format.DidYouMean(only.table+"."+lfk.ColumnList(only.columns), columns),
		service.Parenthesized(service.DidYouMean(slices.Compact(others)...)))
}

// showOrphans prints the orphans, and the tables that may have more.
func (l *lfkCommands) showOrphans(found []orphans.Found) error {
	some, failed, more := false, false, false
	for _, f := range found {
		some, failed = some || f.Keys > 0 || f.Fault != "", failed || f.Fault != ""
		more = more || f.More
	}
	if l.asJSON {
		if err := l.json(map[string]any{"orphans": found, "more": more}); err != nil {
			return err
		}
	} else if err := l.orphanTable(found, some || more); err != nil {
		return err
	}
	if failed {
		return &exitError{code: exitFailed}
	}
	return nil
}

// orphanTable prints a line for each definition. Warnings and errors are printed to the standard
// error.
func (l *lfkCommands) orphanTable(found []orphans.Found, some bool) error {
	for _, f := range found {
		if f.Guess != "" {
			l.note("warning: %s on %s: %s", f.Definition, f.Database, f.Guess)
		}
	}
	if !some {
		l.println("no orphans")
		return nil
	}
	columns := []column{
		col("DEFINITION", cut), col("DATABASE"), col("KEYS"), col("ROWS"), col("QUEUED"),
	}
	err := printTable(l.terminal, columns, found, func(f orphans.Found) []any {
		least := ""
		if f.AtLeast {
			least = "at least "
		}
		return []any{f.Definition, f.Database, least + number(f.Keys), least + number(f.Rows), f.Queued}
	})
	for _, f := range found {
		if f.Fault != "" {
			l.note("error: %s on %s: %s", f.Definition, f.Database, f.Fault)
		}
		if f.More {
			l.note("%s may have more orphans on %s: increase --limit, or fix the listed orphans and run "+
				"the command again", f.Definition, f.Database)
		}
	}
	return err
}

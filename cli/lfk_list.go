package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
)

// list prints the loose foreign keys and tracked tables, and how to track the parents that are not.
func (l *lfkCommands) list() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List tracked tables, definitions and adopted foreign keys",
		Args:  between(0, 0),
		RunE: l.withTables(func(ctx context.Context, keys admin.Admin, _ []string) error {
			all, err := keys.List(ctx)
			if err != nil && all.Keys == nil {
				return err
			}
			return l.report(err, all, func() { l.overview(all) })
		}),
	}
}

// overview prints a line for each loose foreign key, then what to do about untracked parents.
func (l *lfkCommands) overview(all admin.Overview) {
	if len(all.Keys) == 0 {
		l.println("no definitions and no tracked tables")
		return
	}
	columns := []column{
		col("PARENT", cut), col("CHILD", cut), col("ACTION"), col("TRACKED ON"), col("CHILD ON"),
		col("ADOPTED", dropSecond),
	}
	_ = printTable(l.terminal, columns, all.Keys, func(k admin.ListedKey) []any {
		child, adopted := none, none
		if k.Table != "" {
			child = k.Table + "." + lfk.ColumnList(k.Columns)
		}
		if k.Conditions != "" {
			child += " if " + k.Conditions
		}
		if k.Adopted {
			adopted = "yes"
		}
		action := cmp.Or(k.OnDelete, none)
		if k.Adopted && k.OnDelete == "" {
			action = "no definition"
		}
		tracked := slices.Clone(k.Tracked)
		for _, database := range k.Untracked {
			tracked = append(tracked, "not "+database)
		}
		return []any{
			k.Parent, child, action, cmp.Or(strings.Join(tracked, ", "), none),
			cmp.Or(strings.Join(k.Children, ", "), none), adopted,
		}
	})
	if len(all.Unknown) > 0 {
		l.note("no configured database contains the parents %s: run `caretaker lfk lint` for details",
			format.List(all.Unknown))
	}
	if commands := all.TrackCommands(); len(commands) > 0 {
		l.note("%s not tracked: run %s", format.Pluralize(len(all.Untracked), "parent"),
			strings.Join(commands, ", then "))
	}
}

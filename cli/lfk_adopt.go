package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
)

// adopting has the flags of adopt and revert.
type adopting struct {
	constraint, onDelete string
	plan, yes, list, all bool
}

// addTo adds the flags that adopt and revert share.
func (f *adopting) addTo(command *cobra.Command) *pflag.FlagSet {
	flags := command.Flags()
	flags.StringVar(&f.constraint, "constraint", "", "`name` of the foreign key, if the "+
		"column has several foreign keys")
	flags.BoolVar(&f.plan, "plan", false, "show each step with its SQL, but change nothing")
	return flags
}

// request returns the adoption of one TABLE.COLUMN with the flags given. A malformed argument is a
// usage error.
func (f *adopting) request(argument string) (admin.AdoptRequest, error) {
	r, err := parseReference(argument)
	return admin.AdoptRequest{
		Table: r.table, Columns: r.columns, Constraint: f.constraint, OnDelete: f.onDelete, Holder: operator(),
	}, err
}

// adopt plans and runs the adoption of each foreign key given, and ends at the first error.
func (l *lfkCommands) adopt() *cobra.Command {
	f := &adopting{}
	command := &cobra.Command{
		Use:   "adopt (TABLE.COLUMN... | --list | --all)",
		Short: "Turn real foreign keys into loose foreign keys, in two steps",
		Args:  f.arguments,
		RunE: l.with(func(ctx context.Context, keys admin.Admin, args []string) error {
			switch {
			case f.list:
				return listAdoptable(ctx, l, keys)
			case f.all:
				return l.adoptAll(ctx, keys, f)
			}
			all, err := checkEach(l, args, func(name string) (c chosen, err error) {
				if c.request, err = f.request(name); err != nil {
					return c, err
				}
				a, err := keys.PlanAdoption(ctx, c.request)
				if err == nil {
					c = chosen{a.Database, a.Constraint, c.request, a.Ready() && !a.Dropped()}
				}
				return c, err
			})
			if err != nil {
				return err
			}
			done, err := l.adoptEach(ctx, keys, f, all)
			return namedResults(l, args, done, err)
		}),
	}
	flags := f.addTo(command)
	flags.StringVar(&f.onDelete, "on-delete", "", "`action` in the definition: async_delete or "+
		"async_nullify (default: the constraint's action)")
	flags.BoolVar(&f.yes, "yes", false,
		"drop the constraint without asking (all servers must have read the definition)")
	flags.BoolVar(&f.list, "list", false,
		"list the foreign keys with ON DELETE CASCADE or SET NULL, and show which can be adopted")
	flags.BoolVar(&f.all, "all", false, "adopt every listed foreign key that can be adopted")
	return command
}

// arguments accepts foreign keys, or one of --list and --all.
func (f *adopting) arguments(command *cobra.Command, args []string) error {
	switch {
	case !f.list && !f.all && len(args) == 0:
		return errors.New("specify TABLE.COLUMN, --list or --all")
	case !f.list && !f.all:
		return between(1, maxNamed)(command, args)
	case f.list && f.all:
		return errors.New("--list and --all are mutually exclusive")
	case len(args) > 0 || f.constraint != "" || f.onDelete != "":
		return errors.New("--list and --all cannot be used with TABLE.COLUMN, --constraint or --on-delete")
	}
	return nil
}

// doneSteps marks steps as done, and prints the newly done steps.
func (l *lfkCommands) doneSteps(a *admin.Adoption, numbers ...int) {
	for _, n := range numbers {
		if !a.Steps[n].Done {
			a.Steps[n].Done = true
			l.text("%s: %s: %s: done", a.Database, a.Definition, a.Steps[n].Text)
		}
	}
}

// planned prints plans. It prints the shared step once.
func (l *lfkCommands) planned(all []*admin.Adoption) {
	for n, a := range all {
		if a.Dropped() && a.Steps == nil {
			l.println("%s: %s: already a loose foreign key", a.Database, a.Definition)
			continue
		}
		l.println("%s: %s (%s)", a.Database, a.Definition, a.Constraint)
		for i, step := range a.Steps {
			done := ""
			if step.Done {
				done = ": already done"
			}
			if step.Shared && n > 0 {
				step.Text = "once for all foreign keys: see above"
			}
			l.println("%d. %s%s", i+1, step.Text, done)
			for _, sql := range step.SQL {
				l.println("     %s", sql)
			}
		}
		for _, warning := range a.Warnings {
			l.note("warning: %s", warning)
		}
	}
}

// revert makes each adopted key a real foreign key again, and ends at the first error. With --plan
// it only prints the steps.
func (l *lfkCommands) revert() *cobra.Command {
	f := &adopting{}
	command := &cobra.Command{
		Use:   "revert TABLE.COLUMN...",
		Short: "Turn adopted foreign keys back into real foreign keys",
		Args:  between(1, maxNamed),
		RunE: l.with(func(ctx context.Context, keys admin.Admin, args []string) error {
			plan := func(name string) (*admin.Adoption, error) {
				request, err := f.request(name)
				if err != nil {
					return nil, err
				}
				return keys.PlanReversion(ctx, request)
			}
			// The definitions that each tracked parent of a reverted key still has.
			left, removed := map[string][]string{}, false
			defer func() { l.showLeft(left, removed) }()
			return eachNamed(l, args, plan, func(name string) (*admin.Adoption, func(), error) {
				a, err := plan(name)
				if err == nil && f.plan && !a.NotAdopted() {
					return a, func() { l.planned([]*admin.Adoption{a}) }, nil
				}
				if err == nil && !f.plan {
					err = l.reverted(ctx, a, left)
				}
				removed = removed || err == nil && a.Ready()
				return a, func() {
					result := "a real foreign key again"
					if a.NotAdopted() {
						result = "not adopted: nothing to do"
					}
					l.println("%s: %s is %s", a.Database, a.Constraint, result)
				}, err
			})
		}),
	}
	f.addTo(command)
	return command
}

// reverted continues a reversion as far as possible, and adds what a tracked parent still has to left.
func (l *lfkCommands) reverted(ctx context.Context, a *admin.Adoption, left map[string][]string) error {
	if err := a.Restore(ctx); err != nil {
		return err
	}
	l.doneSteps(a, 0)
	others, err := a.Finish(ctx)
	if err != nil {
		return err
	}
	for n := range a.Steps[1:] {
		l.doneSteps(a, n+1)
	}
	if a.Tracked {
		left[a.Parent()] = others
	}
	return nil
}

// showLeft prints what to do after a reversion, for each tracked parent, and for removed definitions.
func (l *lfkCommands) showLeft(left map[string][]string, removed bool) {
	for _, parent := range slices.Sorted(maps.Keys(left)) {
		if len(left[parent]) > 0 {
			l.note("%s stays tracked for %s", parent, strings.Join(left[parent], ", "))
		} else {
			l.note("nothing else needs the records of %s: run `caretaker lfk untrack %s` to stop recording",
				parent, format.Argument(parent))
		}
	}
	if removed {
		l.note("send SIGHUP to every server to unload the removed definitions")
	}
}

// maxNamed is how many tables or columns a command takes.
const maxNamed = 1000

// checkEach calls check for each name before a command changes anything. It returns the results, or
// the errors of all wrong names.
func checkEach[T any](l *lfkCommands, names []string, check func(name string) (T, error)) (all []T, err error) {
	for n, name := range names {
		if len(names) > 1 {
			l.status("checking %s, %d of %d", name, n+1, len(names))
		}
		checked, wrong := check(name)
		if all, err = append(all, checked), errors.Join(err, wrong); wrong != nil && !admin.Misused(wrong) {
			break
		}
	}
	if err != nil && len(names) > 1 {
		l.note("nothing was changed")
	}
	return all, err
}

// eachNamed calls check for all arguments, then do for each argument until an error, and prints the
// results. With several arguments it also prints which one failed, and how many are done.
func eachNamed[T any](
	l *lfkCommands, names []string, check func(name string) (T, error),
	do func(name string) (result T, text func(), err error),
) error {
	var done []T
	_, err := checkEach(l, names, check)
	if err != nil {
		return err
	}
	for n, name := range names {
		if len(names) > 1 {
			l.status("%s, %d of %d", name, n+1, len(names))
		}
		result, text, failed := do(name)
		if err = failed; err != nil {
			if len(names) > 1 {
				l.note("stopped at %s: %d of %d done", name, n, len(names))
			}
			break
		}
		if done = append(done, result); !l.asJSON {
			text()
		}
	}
	return namedResults(l, names, done, err)
}

// namedResults prints the results of the names as JSON: one of one name, or the list of several.
func namedResults[T any](l *lfkCommands, names []string, done []T, err error) error {
	switch {
	case !l.asJSON || len(done) == 0:
		return err
	case len(names) == 1:
		return errors.Join(err, l.json(done[0]))
	}
	return errors.Join(err, l.json(done))
}

// reference is the argument TABLE.COLUMN, TABLE.COLUMN,COLUMN or TABLE.(COLUMN, COLUMN), as lists print it. Each name may
// have PostgreSQL quotes: "Price.List"."Customer.Id".
type reference struct {
	table   string
	columns []string
}

// parseReference splits TABLE.COLUMN at its last dot outside quotes, and several columns at commas.
func parseReference(argument string) (r reference, err error) {
	const name = `(?:"(?:[^"]|"")+"|[^\s",.()][^",.()]*)`
	parts := regexp.MustCompile(`(?s)^((?:"(?:[^"]|"")+"|[^"])+)\.\(?(` + name + `(?:,\s*` + name + `)*)\)?$`).FindStringSubmatch(argument)
	if parts == nil {
		return r, usage(fmt.Errorf("%s: use the form TABLE.COLUMN, or TABLE.COLUMN,COLUMN for a multi-column key", argument))
	}
	// Definitions spell the table without quotes: "orders" is orders.
	r.table = parts[1]
	if table, err := catalog.ParseTable(r.table); err == nil {
		r.table = table.Written()
	}
	for _, column := range regexp.MustCompile(name).FindAllString(parts[2], -1) {
		if column = strings.TrimSpace(column); column[0] == '"' {
			column = strings.ReplaceAll(column[1:len(column)-1], `""`, `"`)
		}
		r.columns = append(r.columns, column)
	}
	return r, nil
}

// matches reports whether a definition has these columns.
func (r reference) matches(key lfk.Definition) bool {
	return key.Table == r.table && slices.Equal(key.Columns, r.columns)
}

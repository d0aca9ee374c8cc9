package cli

import (
	"context"
	"errors"
	"fmt"
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
	// pending are the constraints that the next command drops.
	pending []string
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
		Table: r.table, Columns: r.columns, Constraint: f.constraint, OnDelete: f.onDelete,
		Holder: operator(),
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
			defer l.showPending(f)
			return eachNamed(l, args, func(name string) (*admin.Adoption, func(), error) {
				request, err := f.request(name)
				if err != nil {
					return nil, nil, err
				}
				a, err := keys.PlanAdoption(ctx, request)
				if err != nil {
					return nil, nil, err
				}
				text, err := l.adopted(ctx, a, f)
				return a, text, err
			})
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
	case !f.list && !f.all:
		return between(1, maxNamed)(command, args)
	case f.list && f.all:
		return errors.New("--list and --all are mutually exclusive")
	case len(args) > 0 || f.constraint != "" || f.onDelete != "":
		return errors.New("--list and --all cannot be used with TABLE.COLUMN, --constraint or --on-delete")
	}
	return nil
}

// adopted continues an adoption as far as possible. It returns the text of the result.
func (l *lfkCommands) adopted(
	ctx context.Context, a *admin.Adoption, f *adopting,
) (text func(), err error) {
	if a.Dropped() {
		return func() { l.println("%s: %s: already a loose foreign key", a.Database, a.Definition) }, nil
	}
	if f.plan {
		return func() { l.plannedSteps(a) }, nil
	}
	ready := a.Ready()
	if err := l.prepare(ctx, a); err != nil {
		return nil, err
	}
	if !ready {
		f.pending = append(f.pending, a.Constraint)
		return func() {}, nil
	}
	if !f.yes {
		if err := l.agree("nothing was dropped: send SIGHUP to every server, so that it reads the "+
			"definition, then run this command again with --yes",
			"drop %s on %s? First make sure that every server has read the definition (send SIGHUP) [y/N] ",
			a.Constraint, a.Database); err != nil {
			return nil, err
		}
	}
	if err := l.drop(ctx, a); err != nil {
		return nil, err
	}
	return func() { l.println("%s: %s: now a loose foreign key", a.Database, a.Definition) }, nil
}

// prepare writes the definition and tracks the parent.
func (l *lfkCommands) prepare(ctx context.Context, a *admin.Adoption) error {
	if err := a.Prepare(ctx); err != nil {
		return err
	}
	l.doneSteps(a, 0, 1)
	return nil
}

// drop drops the constraint. The operator has confirmed that the servers know the definition.
func (l *lfkCommands) drop(ctx context.Context, a *admin.Adoption) error {
	if err := a.Drop(ctx); err != nil {
		return err
	}
	a.Steps[2].Done = true
	l.doneSteps(a, 3)
	return nil
}

// showPending prints what to do before the constraints are dropped.
func (l *lfkCommands) showPending(f *adopting) {
	if len(f.pending) > 0 && !l.asJSON {
		l.note("send SIGHUP to every server, so that it reads the definition, then run this command "+
			"again to drop %s", format.List(f.pending))
	}
}

// agree asks for consent on a terminal. Without a terminal it returns the error refused.
func (l *lfkCommands) agree(refused, question string, args ...any) error {
	if !l.interactive() {
		return errors.New(refused)
	}
	l.note(question, args...)
	if !l.agreed() {
		return errors.New("nothing was dropped")
	}
	return nil
}

// doneSteps marks steps as done, and prints the newly done steps.
func (l *lfkCommands) doneSteps(a *admin.Adoption, numbers ...int) {
	for _, n := range numbers {
		if !a.Steps[n].Done {
			a.Steps[n].Done = true
			l.text("%s: %s: done", a.Database, a.Steps[n].Text)
		}
	}
}

// plannedSteps prints the steps of a plan.
func (l *lfkCommands) plannedSteps(a *admin.Adoption) {
	l.println("%s: %s (%s)", a.Database, a.Definition, a.Constraint)
	for i, step := range a.Steps {
		done := ""
		if step.Done {
			done = ": already done"
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

// revert makes each adopted key a real foreign key again, and ends at the first error. With --plan
// it only prints the steps.
func (l *lfkCommands) revert() *cobra.Command {
	f := &adopting{}
	command := &cobra.Command{
		Use:   "revert TABLE.COLUMN...",
		Short: "Turn adopted foreign keys back into real foreign keys",
		Args:  between(1, maxNamed),
		RunE: l.with(func(ctx context.Context, keys admin.Admin, args []string) error {
			return eachNamed(l, args, func(name string) (*admin.Adoption, func(), error) {
				request, err := f.request(name)
				if err != nil {
					return nil, nil, err
				}
				a, err := keys.PlanReversion(ctx, request)
				switch {
				case err != nil:
					return nil, nil, err
				case f.plan:
					return a, func() { l.plannedSteps(a) }, nil
				}
				text, err := l.reverted(ctx, a)
				return a, text, err
			})
		}),
	}
	f.addTo(command)
	return command
}

// reverted continues a reversion as far as possible. It returns the text of the result.
func (l *lfkCommands) reverted(ctx context.Context, a *admin.Adoption) (text func(), err error) {
	if err := a.Restore(ctx); err != nil {
		return nil, err
	}
	l.doneSteps(a, 0)
	others, err := a.Finish(ctx)
	if err != nil {
		return nil, err
	}
	for n := range a.Steps[1:] {
		l.doneSteps(a, n+1)
	}
	return func() {
		l.println("%s: %s is a real foreign key again", a.Database, a.Constraint)
		if len(others) == 0 {
			l.note("nothing else needs the records of %s: run `caretaker lfk untrack %s` to stop recording, "+
				"and send SIGHUP to every server to unload the definition",
				a.Parent(), format.Argument(a.Parent()))
			return
		}
		l.note("%s stays tracked for %s: send SIGHUP to every server to unload the removed definition",
			a.Parent(), strings.Join(others, ", "))
	}, nil
}

// maxNamed is how many tables or columns a command takes.
const maxNamed = 1000

// eachNamed calls do for each argument until an error, and prints the results. With
// several arguments it also prints which one failed, and how many are done. As JSON it prints the
// result of one argument, or the list of several.
func eachNamed[T any](
	l *lfkCommands, names []string, do func(name string) (result T, text func(), err error),
) error {
	var done []T
	var err error
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
	switch {
	case !l.asJSON || len(done) == 0:
		return err
	case len(names) == 1:
		return l.json(done[0])
	}
	return errors.Join(err, l.json(done))
}

// reference is the argument TABLE.COLUMN, TABLE.COLUMN,COLUMN or TABLE.(COLUMN, COLUMN). Each name may have PostgreSQL
// quotes: "Price.List"."Customer.Id".
type reference struct {
	table   string
	columns []string
}

// parseReference splits TABLE.COLUMN at its last dot outside quotes, and several columns at
// commas. A missing table or column is a usage error.
func parseReference(argument string) (reference, error) {
	parts := outsideQuotes(argument, '.')
	last := len(parts) - 1
	r := reference{table: strings.Join(parts[:last], ".")}
	columns := parts[last]
	// Lists print several columns as (a, b).
	if n := len(columns); n > 1 && columns[0] == '(' && columns[n-1] == ')' {
		columns = columns[1 : n-1]
	}
	for _, name := range outsideQuotes(columns, ',') {
		name = strings.TrimSpace(name)
		if n := len(name); n > 1 && name[0] == '"' && name[n-1] == '"' {
			name = strings.ReplaceAll(name[1:n-1], `""`, `"`)
		}
		r.columns = append(r.columns, name)
	}
	if r.table == "" || slices.Contains(r.columns, "") {
		return r, usage(fmt.Errorf("%s: use the form TABLE.COLUMN, or TABLE.COLUMN,COLUMN for a "+
			"multi-column key", argument))
	}
	// Definitions spell the table without quotes: "orders" is orders.
	if table, err := catalog.ParseTable(r.table); err == nil {
		r.table = table.Written()
	}
	return r, nil
}

// outsideQuotes splits a text at each separator outside double quotes.
func outsideQuotes(text string, separator rune) []string {
	quoted, from := false, 0
	var parts []string
	for i, c := range text {
		if c == '"' {
			quoted = !quoted
		}
		if c == separator && !quoted {
			parts, from = append(parts, text[from:i]), i+1
		}
	}
	return append(parts, text[from:])
}

// matches reports whether a definition has these columns.
func (r reference) matches(key lfk.Definition) bool {
	return key.Table == r.table && slices.Equal(key.Columns, r.columns)
}

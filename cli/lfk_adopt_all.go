package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
)

// listAdoptable prints the foreign keys to adopt, then why the others cannot be adopted.
func listAdoptable(ctx context.Context, l *lfkCommands, keys admin.Admin) error {
	all, err := keys.Adoptable(ctx)
	if err = l.candidates().show(l, all, err); l.asJSON {
		return err
	}
	for _, c := range all {
		if c.Refused != "" {
			l.note("cannot adopt %s of %s on %s: %s", c.Constraint, c.Table, c.Database, c.Refused)
		}
	}
	return err
}

// candidates returns the columns of foreign keys to adopt.
func (l *lfkCommands) candidates() listing[admin.Candidate] {
	return listing[admin.Candidate]{
		key: "foreign_keys", empty: "no foreign keys with ON DELETE CASCADE or SET NULL",
		columns: []column{
			col("DATABASE", dropFirst), col("FOREIGN KEY", dropFirst), col("CHILD"), col("PARENT"),
			col("ON DELETE", dropSecond), col("CHILD ROWS", dropSecond), col("INDEX", dropFirst),
			col("ADOPTABLE"),
		},
		row: func(c admin.Candidate) []any {
			rows, index, adoptable := "unknown", "yes", "yes"
			if c.Rows != nil {
				rows = "about " + number(*c.Rows)
			}
			if !c.Indexed {
				index = "no"
			}
			switch {
			case c.Refused != "":
				adoptable = "no"
			case c.Started:
				adoptable = "started"
			}
			return []any{
				c.Database, c.Constraint, c.Table + "." + lfk.ColumnList(c.Columns), c.Parent, c.OnDelete,
				rows, index, adoptable,
			}
		},
	}
}

// adoptAll adopts all foreign keys that can be adopted, as far as possible. It prints those that it
// skips, and asks once before it drops those whose definitions were in the file before.
func (l *lfkCommands) adoptAll(ctx context.Context, keys admin.Admin, f *adopting) error {
	all, err := keys.Adoptable(ctx)
	if err != nil {
		return err
	}
	skipped, added, started := []admin.Candidate{}, []admin.Candidate{}, []admin.Candidate{}
	noQueue := ""
	for _, c := range all {
		switch {
		case c.Refused != "":
			l.note("skipped %s of %s on %s: %s", c.Constraint, c.Table, c.Database, c.Refused)
			skipped = append(skipped, c)
			if c.NoQueue {
				noQueue = c.Database
			}
		case c.Started:
			started = append(started, c)
		default:
			added = append(added, c)
		}
	}
	switch {
	case len(added)+len(started) > 0:
	case noQueue != "":
		return fmt.Errorf("database %s has no queue of deleted parents: run `caretaker lfk install` first", noQueue)
	case len(skipped) > 0:
		l.text("no foreign keys to adopt: %d skipped", len(skipped))
	default:
		l.text("no foreign keys to adopt")
	}
	// Nothing is dropped for the new definitions, so these come before the question.
	done := []*admin.Adoption{}
	err = l.adoptEach(ctx, keys, f, added, &done)
	if err == nil && len(started) > 0 && !f.plan && !f.yes {
		err = l.agreeToDrop(started)
	}
	if err == nil {
		err = l.adoptEach(ctx, keys, f, started, &done)
	}
	l.showPending(f)
	return l.report(err, map[string]any{"adopted": done, "skipped": skipped}, func() {})
}

// agreeToDrop asks before the foreign keys are dropped.
func (l *lfkCommands) agreeToDrop(all []admin.Candidate) error {
	var names []string
	for _, c := range all {
		names = append(names, c.Constraint)
	}
	return l.agree("nothing was dropped: send SIGHUP to every server, so that it reads the definitions, "+
		"then run this command again with --yes",
		"drop %s (%s)? First make sure that every server has read the definitions (send SIGHUP) [y/N] ",
		format.Pluralize(len(all), "foreign key"), format.List(names))
}

// adoptEach continues the adoption of each foreign key, and ends at the first error.
func (l *lfkCommands) adoptEach(
	ctx context.Context, keys admin.Admin, f *adopting, all []admin.Candidate, done *[]*admin.Adoption,
) error {
	for n, c := range all {
		l.status("%s: %s, %d of %d", c.Database, c.Constraint, n+1, len(all))
		keys.Only = c.Database
		a, err := keys.PlanAdoption(ctx, c.Request(operator()))
		switch {
		case err != nil:
		case f.plan:
			if !l.asJSON {
				l.plannedSteps(a)
			}
		case c.Started:
			if err = l.prepare(ctx, a); err == nil {
				err = l.drop(ctx, a)
			}
			if err == nil {
				l.text("%s: %s: now a loose foreign key", a.Database, a.Definition)
			}
		default:
			if err = l.prepare(ctx, a); err == nil {
				f.pending = append(f.pending, a.Constraint)
			}
		}
		if unwritten, ok := errors.AsType[*admin.UnwrittenError](err); ok {
			return alsoUnwritten(ctx, keys, unwritten, all[n+1:])
		}
		if err != nil {
			return err
		}
		*done = append(*done, a)
	}
	return nil
}

// alsoUnwritten adds the definitions of the remaining foreign keys to an error, so that the operator
// can write all of them at once.
func alsoUnwritten(
	ctx context.Context, keys admin.Admin, unwritten *admin.UnwrittenError, remaining []admin.Candidate,
) error {
	for _, c := range remaining {
		keys.Only = c.Database
		a, err := keys.PlanAdoption(ctx, c.Request(operator()))
		if err != nil {
			return errors.Join(unwritten, err)
		}
		unwritten.And(a)
	}
	return unwritten
}

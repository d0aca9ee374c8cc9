package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo/lfk"
	lfkworker "github.com/caretaker-go/caretaker/service/lfk"
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
	skipped, noQueue := []admin.Candidate{}, ""
	var adoptable []chosen
	for _, c := range all {
		if c.Refused == "" {
			adoptable = append(adoptable, chosen{c.Database, c.Constraint, c.Request(operator()), c.Started})
			continue
		}
		l.note("skipped %s of %s on %s: %s", c.Constraint, c.Table, c.Database, c.Refused)
		if skipped = append(skipped, c); c.NoQueue {
			noQueue = c.Database
		}
	}
	switch {
	case len(adoptable) > 0:
	case noQueue != "":
		return fmt.Errorf("database %s has no queue of deleted parents: run `caretaker lfk install` first", noQueue)
	case len(skipped) > 0:
		l.text("no foreign keys to adopt: %d skipped", len(skipped))
	default:
		l.text("no foreign keys to adopt")
	}
	done, err := l.adoptEach(ctx, keys, f, adoptable)
	return l.report(err, map[string]any{"adopted": done, "skipped": skipped}, func() {})
}

// chosen is a foreign key to adopt.
type chosen struct {
	database, constraint string
	request              admin.AdoptRequest
	// started: its definition was in the file at the start of the command.
	started bool
}

// adoptEach continues the adoption of each foreign key as far as possible, and ends at the first
// error. Nothing is dropped for the new definitions, so these come first. It asks once before it
// drops the others.
func (l *lfkCommands) adoptEach(
	ctx context.Context, keys admin.Admin, f *adopting, all []chosen,
) (done []*admin.Adoption, err error) {
	done = []*admin.Adoption{}
	if f.plan {
		if err = l.eachChosen(ctx, keys, all, &done, nil); err == nil && !l.asJSON {
			l.planned(done)
		}
		return done, err
	}
	var added, started []chosen
	var pending, drops []string
	for _, c := range all {
		if c.started {
			started, drops = append(started, c), append(drops, c.constraint)
		} else {
			added = append(added, c)
		}
	}
	err = l.eachChosen(ctx, keys, added, &done, func(a *admin.Adoption) error {
		if a.Dropped() {
			l.text("%s: %s: already a loose foreign key", a.Database, a.Definition)
			return nil
		}
		err := a.Prepare(ctx)
		if err == nil {
			pending = append(pending, a.Constraint)
			l.doneSteps(a, 0, 1)
		}
		return err
	})
	again := "run this command again"
	cannotAsk := !f.yes && !l.interactive()
	if cannotAsk {
		again += " with --yes"
	}
	switch {
	case err != nil || f.yes || len(started) == 0:
	case cannotAsk && len(pending) > 0:
		pending, started = append(pending, drops...), nil
	default:
		err = l.agree("nothing was dropped: "+admin.BeforeDrop+". Then "+again, "drop %s? First "+
			admin.BeforeDrop+" [y/N] ", format.List(drops))
	}
	if err == nil {
		err = l.eachChosen(ctx, keys, started, &done, func(a *admin.Adoption) error { return l.drop(ctx, a) })
	}
	if len(pending) > 0 && !l.asJSON {
		l.note(admin.BeforeDrop+". Then %s to drop %s", again, format.List(slices.Compact(pending)))
	}
	return done, err
}

// eachChosen plans the adoption of each foreign key and calls do, until an error. nil means only
// planning.
func (l *lfkCommands) eachChosen(
	ctx context.Context, keys admin.Admin, all []chosen, done *[]*admin.Adoption, do func(*admin.Adoption) error,
) error {
	var unwritten *lfkworker.UnwrittenError
	var left error
	for n, c := range all {
		l.status("%s: %s, %d of %d", c.database, c.constraint, n+1, len(all))
		keys.Only = c.database
		a, err := keys.PlanAdoption(ctx, c.request)
		if err == nil && unwritten != nil {
			a.AddTo(unwritten) // The operator can write all definitions at once.
			continue
		}
		if err == nil && do != nil {
			err = do(a)
		}
		if errors.As(err, &unwritten) {
			left = err
			continue
		}
		if err != nil {
			if len(all) > 1 && do != nil {
				l.note("stopped at %s on %s: %d of %d done", c.constraint, c.database, n, len(all))
			}
			return errors.Join(left, err)
		}
		*done = append(*done, a)
	}
	return left
}

// drop drops the constraint. The operator has confirmed that the servers know the definition.
func (l *lfkCommands) drop(ctx context.Context, a *admin.Adoption) error {
	if err := a.Prepare(ctx); err != nil {
		return err
	}
	l.doneSteps(a, 0, 1)
	if err := a.Drop(ctx); err != nil {
		return err
	}
	a.Steps[2].Done = true
	l.doneSteps(a, 3)
	l.text("%s: %s: now a loose foreign key", a.Database, a.Definition)
	return nil
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

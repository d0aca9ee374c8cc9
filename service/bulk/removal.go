package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// Bounded removal of rows: what depends on them first, then the rows.

// StillReferencedError means that rows cannot be removed because others refer to them by a foreign key that neither
// cascades nor is set to NULL, or by an id alone: the column that is missing would say whether they do.
type StillReferencedError struct{ Table, Column, Missing string }

func (e *StillReferencedError) Error() string {
	text := fmt.Sprintf("%s: %s.%s still refers to it", run.ReasonStillReferenced, e.Table, e.Column)
	if e.Missing != "" {
		text += fmt.Sprintf(", or to something else: %s has no column %s that would say so", e.Table, e.Missing)
	}
	return text
}

// Public says that the text is fit for clients.
func (e *StillReferencedError) Public() {}

// TypedReason is STILL_REFERENCED.
func (e *StillReferencedError) TypedReason() string { return run.ReasonStillReferenced }

// IsStillReferenced says whether an error is a [StillReferencedError].
func IsStillReferenced(err error) bool {
	_, is := errors.AsType[*StillReferencedError](err)
	return is
}

// RequiredError means that a reference cannot be set to NULL.
func RequiredError(table, column string) error {
	return &run.FailedError{Text: fmt.Sprintf("%s.%s is NOT NULL: it cannot be cleared", table, column)}
}

// Removal removes rows of one table with all that depends on them.
type Removal struct {
	RowChanger
	Catalog *repo.Catalog
	GoOn    func() error
	// path are the tables whose rows wait for this removal. They are not entered again.
	path []repo.Table
	// except are tables that are left to the caller.
	except []string
}

// RowChanger changes rows: a [Sweeper], or a [DryRun], which counts them.
type RowChanger interface {
	// Sweep changes all rows.
	Sweep(ctx context.Context, rows repo.Rows, c repo.Change) error
	// take reads values of the next rows that are to be removed; none: there are no more.
	Take(ctx context.Context, rows repo.Rows, columns []repo.Column, t *Taking) ([][]string, error)
	// any says whether there are rows.
	any(ctx context.Context, rows repo.Rows) (bool, error)
}

// Taking is how far a removal has come with the rows of one table.
type Taking struct {
	// Aside are values of rows that cannot be removed for now, by column.
	Aside [][]string
	// after is where a dry run goes on.
	after repo.Place
	// waited: locked rows have been waited for.
	waited bool
}

// Clear removes or nullifies all that depends on rows of a table, given as values of its columns, but not the rows.
// Tables named by except, and those of path, are not touched.
func (w *Sweeper) Clear(ctx context.Context, table repo.Table, columns []repo.Column, values [][]string, except ...string) error {
	r := &Removal{RowChanger: w, Catalog: w.Catalog, GoOn: w.GoOn, except: except}
	_, err := r.clear(ctx, table, columns, values)
	return err
}

// Remove works in portions: keys of some rows, what depends on them, the rows.
func (r *Removal) Remove(ctx context.Context, rows repo.Rows) error {
	columns := KeyColumns(Dependants(r.Catalog, rows.Table))
	if len(columns) == 0 {
		return Deleted(r.Catalog, r.Sweep(ctx, rows, deletion(r.Catalog, rows.Table)))
	}
	t := &Taking{Aside: make([][]string, len(columns))}
	var locked error
	for {
		values, err := r.Take(ctx, rows, columns, t)
		switch {
		case err != nil:
			return err
		case len(values[0]) == 0:
			return locked
		}
		free, err := r.clear(ctx, rows.Table, columns, values)
		if IsLocked(err) {
			locked = err
			t.putAside(values, free)
		} else if err != nil {
			return err
		}
		if len(free) == 0 {
			continue
		}
		err = Deleted(r.Catalog, r.Sweep(ctx, portion(rows, columns, values, free), deletion(r.Catalog, rows.Table)))
		if IsLocked(err) {
			locked = err
			t.putAside(values, nil)
		} else if err != nil {
			return err
		}
	}
}

// Clear deals with the dependants of rows with these values. If some of them are locked, the places of the values that
// nothing depends on any more are returned with the error. What is forbidden may be so by rows that other dependants take
// along: it is tried again behind them.
func (r *Removal) clear(ctx context.Context, table repo.Table, columns []repo.Column, values [][]string) (free []int, err error) {
	inner := *r
	inner.path = append(slices.Clone(r.path), table)
	pending, err := inner.present(ctx, table, columns, values)
	if err != nil {
		return nil, err
	}
	for i := range values[0] {
		free = append(free, i)
	}
	var locked error
	for len(pending) > 0 {
		var forbidden []Dependant
		var why error
		for _, d := range pending {
			rows := d.of(columns, values)
			err := inner.settle(ctx, d, rows)
			if IsLocked(err) {
				locked = err
				free, err = inner.without(ctx, free, rows)
			}
			switch {
			case IsStillReferenced(err) && !d.waiting:
				forbidden, why = append(forbidden, d), err
			case err != nil:
				return nil, err
			}
		}
		if len(forbidden) == len(pending) {
			if locked == nil {
				return nil, why
			}
			// It may be so by what is locked.
			return nil, locked
		}
		pending = forbidden
	}
	return free, locked
}

// settle does with a dependant's rows what is their fate.
func (r *Removal) settle(ctx context.Context, d Dependant, rows repo.Rows) error {
	switch d.fate {
	case removed:
		return r.Remove(ctx, rows)
	case nullified:
		return r.nullify(ctx, rows, d)
	case forbidding:
	}
	return r.Forbid(ctx, rows, StillReferencedError{d.table.Name, d.column, d.missing})
}

// portion of the rows with some of the values, by their places.
func portion(rows repo.Rows, columns []repo.Column, values [][]string, places []int) repo.Rows {
	some := make([][]string, len(columns))
	for i := range columns {
		for _, place := range places {
			some[i] = append(some[i], values[i][place])
		}
	}
	return rows.Where(repo.Match{Columns: columns, Values: some})
}

// putAside keeps the values that are not free from being taken again.
func (t *Taking) putAside(values [][]string, free []int) {
	for place := range values[0] {
		if !slices.Contains(free, place) {
			for i := range values {
				t.Aside[i] = append(t.Aside[i], values[i][place])
			}
		}
	}
}

// without takes out the values that some rows still refer to.
func (r *Removal) without(ctx context.Context, free []int, rows repo.Rows) ([]int, error) {
	if err := r.GoOn(); err != nil {
		return nil, err
	}
	referred, err := rows.Refer(ctx, ProbeLimits())
	return slices.DeleteFunc(free, func(place int) bool { return slices.Contains(referred, place) }), err
}

// nullify clears the reference of a dependant's rows.
func (r *Removal) nullify(ctx context.Context, rows repo.Rows, d Dependant) error {
	if d.required == "" {
		return r.Sweep(ctx, rows, d.nullify)
	}
	has, err := r.any(ctx, rows)
	if err == nil && has {
		return RequiredError(d.table.Name, d.required)
	}
	return err
}

// Forbid is an error if there are such rows.
func (r *Removal) Forbid(ctx context.Context, rows repo.Rows, why StillReferencedError) error {
	has, err := r.any(ctx, rows)
	if err == nil && has {
		return &why
	}
	return err
}

// Deleted names what the database itself has found to forbid a deletion.
func Deleted(c *repo.Catalog, err error) error {
	if refused, is := errors.AsType[*repo.Error](err); is {
		if key, found := c.Violated(refused); found {
			return fmt.Errorf("%w: %w", &StillReferencedError{Table: key.Child.Name, Column: key.ColumnNames()}, err)
		}
	}
	return err
}

// takenAtOnce is how many rows that others depend on are removed together: every dependant is asked for all of them.
const takenAtOnce = 1000

// takes are the statements that read keys of rows to be removed.
type takes struct{ rows repo.Rows }

func (t takes) SizeKey() SizeKey {
	return SizeKey{What: t.rows.String(), Action: "take", Database: t.rows.Database.Name}
}

// Take finds rows of a parent and what depends on them, page by page, before they are removed.
func (w *Sweeper) Take(ctx context.Context, rows repo.Rows, columns []repo.Column, t *Taking) ([][]string, error) {
	for {
		if err := w.GoOn(); err != nil {
			return nil, err
		}
		b := repo.Batch{Rows: min(takenAtOnce, w.Sizes.Get(takes{rows})), SkipLocked: !t.waited}
		began := time.Now()
		values, err := w.take(ctx, rows, columns, t, &b)
		class := ClassOf(err, time.Since(began), b.Limits)
		switch {
		case err == nil && len(values[0]) == 0 && !t.waited:
			t.waited = true
		case err == nil:
			// Fewer than asked for are all that nobody has locked.
			t.waited = t.waited || int64(len(values[0])) < b.Rows
			return values, nil
		case class == repo.ClassLock && !t.waited:
			t.waited = true
		case class == repo.ClassLock:
			return nil, &lockedError{rows.String()}
		case class == repo.ClassTimeout && b.Rows > 1:
			w.Sizes.Halve(takes{rows}, b.Rows)
		default:
			return nil, err
		}
	}
}

// take sends one statement, and notes its permit in b.
func (w *Sweeper) take(
	ctx context.Context, rows repo.Rows, columns []repo.Column, t *Taking, b *repo.Batch,
) (values [][]string, err error) {
	limits := repo.Limits{Statement: StatementTime + LongLockTime, Lock: LongLockTime}
	if b.Rows == 1 {
		limits.Statement = SingleRowTime
	}
	permit, err := w.Writer.Permit(ctx, rows.Database, rows.Table, limits)
	if err != nil {
		return nil, err
	}
	defer permit.End(&err)
	b.Permit = permit.Permit
	return rows.Take(ctx, columns, t.Aside, *b)
}

func (w *Sweeper) any(ctx context.Context, rows repo.Rows) (bool, error) {
	if err := w.GoOn(); err != nil {
		return false, err
	}
	has, err := rows.Database.Any(ctx, []repo.Rows{rows}, ProbeLimits())
	if ClassOf(err, 0, repo.Limits{}) == repo.ClassLock {
		return false, &lockedError{rows.String()}
	}
	return err == nil && has[0], err
}

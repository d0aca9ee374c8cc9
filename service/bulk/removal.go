package bulk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// StillReferencedError means that rows cannot be removed because others refer to them. They do so
// by a foreign key that neither cascades nor is set to NULL, or by an id alone.
type StillReferencedError struct {
	Table, Column string
	// Missing is the column that would decide whether an id refers to the rows. "" means a foreign
	// key.
	Missing string
}

// Error names the table and column that still refer to the row. With Missing, the reference could
// not be identified.
func (e *StillReferencedError) Error() string {
	column := fmt.Sprintf("%s: %s.%s", fault.ReasonStillReferenced, e.Table, e.Column)
	if e.Missing != "" {
		return fmt.Sprintf("%s may still refer to the target, but %s has no column %s to confirm the reference: "+
			"check the rows of %[2]s, then retry the job", column, e.Table, e.Missing)
	}
	return column + " still refers to the target"
}

// Public marks the text as fit for clients.
func (e *StillReferencedError) Public() {}

// TypedReason is STILL_REFERENCED.
func (e *StillReferencedError) TypedReason() string { return fault.ReasonStillReferenced }

// IsStillReferenced reports whether an error is a [StillReferencedError].
func IsStillReferenced(err error) bool {
	_, ok := errors.AsType[*StillReferencedError](err)
	return ok
}

// Deleted turns a deletion that the database refused because of a foreign key into a
// [StillReferencedError] that names the key's table and columns.
func Deleted(c *catalog.Catalog, err error) error {
	if refused, ok := errors.AsType[*dberr.Error](err); ok {
		if key, found := c.Violated(refused); found {
			referenced := &StillReferencedError{Table: key.Child.Name, Column: key.ColumnNames()}
			return fmt.Errorf("%w: %w", referenced, err)
		}
	}
	return err
}

// RequiredError returns the error that a reference cannot be set to NULL.
func RequiredError(table, column string) error {
	return &fault.FailedError{Text: table + "." + column + " cannot be cleared, because the column is NOT NULL"}
}

// Removal removes rows of one table with all dependants.
type Removal struct {
	RowChanger
	Catalog   *catalog.Catalog
	CheckStop func() error
	// path are the tables whose rows wait for this removal. They are not entered again.
	path []catalog.Table
	// except are tables that the caller handles.
	except []string
}

// RowChanger changes rows: a [Sweeper], or a [DryRun], which only counts them.
type RowChanger interface {
	// Sweep changes all rows.
	Sweep(ctx context.Context, rows rowset.Rows, c rowset.Change) error
	// NextKeys reads values of columns of the next rows to be removed. None means no row remains.
	NextKeys(
		ctx context.Context, rows rowset.Rows, columns []catalog.Column, c *Cursor,
	) (values [][]string, err error)
	// any reports whether there are rows.
	any(ctx context.Context, rows rowset.Rows) (bool, error)
	// planned returns the [DryRun] that counts for a plan, or nil.
	planned() *DryRun
}

// Cursor is the progress of a removal in the rows of one table.
type Cursor struct {
	// Skipped lists values of rows that cannot be removed for now, by column.
	Skipped [][]string
	// after is where a dry run continues.
	after rowset.Place
	// waited: locked rows have been waited for.
	waited bool
}

// skip excludes the values that are not free from further reads.
func (c *Cursor) skip(values [][]string, free []int) {
	for place := range values[0] {
		if !slices.Contains(free, place) {
			for i := range values {
				c.Skipped[i] = append(c.Skipped[i], values[i][place])
			}
		}
	}
}

// Clear removes or nullifies all dependants of rows of a table, given as values of its columns. It
// does not change the rows themselves and the tables in except.
func (w *Sweeper) Clear(
	ctx context.Context, table catalog.Table, columns []catalog.Column, values [][]string, except ...string,
) error {
	r := &Removal{RowChanger: w, Catalog: w.Catalog, CheckStop: w.CheckStop, except: except}
	_, err := r.clear(ctx, table, columns, values)
	return err
}

// Remove works in portions: it reads the keys of some rows, clears their dependants, and deletes
// the rows. Locked rows come last.
func (r *Removal) Remove(ctx context.Context, rows rowset.Rows) error {
	columns := KeyColumns(r.Catalog, rows.Table)
	if len(columns) == 0 {
		return r.deleteRows(ctx, rows)
	}
	cursor := &Cursor{Skipped: make([][]string, len(columns))}
	var locked error
	for {
		// 1. Read the keys of the next rows.
		values, err := r.NextKeys(ctx, rows, columns, cursor)
		switch {
		case err != nil:
			return err
		case len(values[0]) == 0:
			return locked
		}
		// 2. Clear their dependants. free are the rows that have none now.
		free, err := r.clear(ctx, rows.Table, columns, values)
		// 3. Delete the free rows.
		if len(free) > 0 {
			deleted := r.deleteRows(ctx, portion(rows, columns, values, free))
			if deleted != nil {
				free, err = nil, deleted
			}
		}
		switch {
		// Locked rows are skipped from here on. The removal ends with their error.
		case IsLocked(err):
			locked = err
			cursor.skip(values, free)
		case err != nil:
			return err
		}
	}
}

// deleteRows deletes rows without dependants.
func (r *Removal) deleteRows(ctx context.Context, rows rowset.Rows) error {
	return Deleted(r.Catalog, r.Sweep(ctx, rows, deletion(r.Catalog, rows.Table)))
}

// portion returns the rows with some of the values, by their places.
func portion(rows rowset.Rows, columns []catalog.Column, values [][]string, places []int) rowset.Rows {
	some := make([][]string, len(columns))
	for i := range columns {
		for _, place := range places {
			some[i] = append(some[i], values[i][place])
		}
	}
	return rows.Where(rowset.Match{Columns: columns, Values: some})
}

// clear processes the dependants of rows with these values, and returns the places of the values
// without dependants. If the error means locked rows these are some, after any other error none.
//
// Rows that prevent the removal may themselves depend on rows still to be removed. They are checked
// again after the other dependants, as long as that helps.
func (r *Removal) clear(
	ctx context.Context, table catalog.Table, columns []catalog.Column, values [][]string,
) (free []int, err error) {
	inner := *r
	inner.path = append(slices.Clone(r.path), table)
	pending, err := inner.present(ctx, table, columns, values)
	if err != nil {
		return nil, err
	}
	for place := range values[0] {
		free = append(free, place)
	}
	var locked error
	for len(pending) > 0 {
		var forbidden []dependant
		var why error
		for _, d := range pending {
			rows := d.of(columns, values)
			err := inner.process(ctx, d, rows)
			if IsLocked(err) {
				locked = err
				free, err = inner.unreferenced(ctx, free, rows)
			}
			switch {
			case IsStillReferenced(err) && !d.waiting:
				forbidden, why = append(forbidden, d), err
			case err != nil:
				return nil, err
			}
		}
		switch stuck := len(forbidden) == len(pending); {
		case stuck && locked != nil:
			// Locked rows may be the reason.
			return nil, locked
		case stuck:
			return nil, why
		}
		pending = forbidden
	}
	return free, locked
}

// process applies the action to a dependant's rows.
func (r *Removal) process(ctx context.Context, d dependant, rows rowset.Rows) error {
	switch {
	case d.onDelete == removed:
		return r.Remove(ctx, rows)
	case d.onDelete == nullified && d.required == "":
		return r.Sweep(ctx, rows, d.nullify)
	case d.onDelete == nullified:
		return r.FailIfAny(ctx, rows, RequiredError(d.table.Name, d.required))
	}
	return r.FailIfAny(ctx, rows, &StillReferencedError{d.table.Name, d.column, d.missing})
}

// FailIfAny returns why if such rows exist.
func (r *Removal) FailIfAny(ctx context.Context, rows rowset.Rows, why error) error {
	has, err := r.any(ctx, rows)
	if err == nil && has {
		return why
	}
	return err
}

// unreferenced returns those of the free values that none of the rows refers to.
func (r *Removal) unreferenced(ctx context.Context, free []int, rows rowset.Rows) ([]int, error) {
	if err := r.CheckStop(); err != nil {
		return nil, err
	}
	referred, err := rows.Refer(ctx, ProbeLimits())
	return slices.DeleteFunc(free, func(place int) bool {
		return slices.Contains(referred, place)
	}), err
}

// portionRows is how many rows are removed together. Every dependant is queried for all of them.
const portionRows = 1000

// takes is the kind of the statements that read keys of rows to be removed.
type takes struct{ rows rowset.Rows }

func (t takes) SizeKey() SizeKey {
	return SizeKey{t.rows.String(), "take", t.rows.Database.Name}
}

// NextKeys reads the keys of the next rows: see [RowChanger]. It reads the unlocked rows first,
// then, having waited, all rows.
func (w *Sweeper) NextKeys(
	ctx context.Context, rows rowset.Rows, columns []catalog.Column, c *Cursor,
) ([][]string, error) {
	if w.DryRun != nil {
		return w.DryRun.NextKeys(ctx, rows, columns, c)
	}
	for {
		if err := w.CheckStop(); err != nil {
			return nil, err
		}
		b := rowset.Batch{
			Rows: min(portionRows, w.Sizes.Get(takes{rows})), SkipLocked: !c.waited,
		}
		values, took, err := w.take(ctx, rows, columns, c, &b)
		class := ClassOf(err, took, b.Limits)
		switch {
		case err == nil && len(values[0]) == 0 && !c.waited:
			c.waited = true
		case err == nil:
			// Fewer than requested are all unlocked rows.
			c.waited = c.waited || int64(len(values[0])) < b.Rows
			return values, nil
		case class == dberr.ClassLock && !c.waited:
			c.waited = true
		case class == dberr.ClassLock:
			return nil, &lockedError{rows.String()}
		case class == dberr.ClassTimeout && b.Rows > 1:
			w.Sizes.Learn(takes{rows}, Statement{
				Took: took, TimedOut: true, Limit: b.Rows, Empty: func() (time.Duration, error) {
					_, took, err := w.take(ctx, rows, columns, c, &rowset.Batch{SkipLocked: !c.waited})
					return took, err
				},
			})
		default:
			return nil, err
		}
	}
}

// take sends one statement, and stores its permit in b.
func (w *Sweeper) take(
	ctx context.Context, rows rowset.Rows, columns []catalog.Column, c *Cursor, b *rowset.Batch,
) (values [][]string, took time.Duration, err error) {
	permit, err := w.Writer.Permit(ctx, repo.Of(rows.Database), rows.Table,
		w.Sizes.waitingLimits(takes{rows}, b.Rows))
	if err != nil {
		return nil, 0, err
	}
	defer permit.End(&err)
	b.Permit = permit.Permit
	began := time.Now()
	values, err = rows.Take(ctx, columns, c.Skipped, *b)
	return values, time.Since(began), err
}

// planned returns the dry run that counts for a plan. It returns nil for a real sweep.
func (w *Sweeper) planned() *DryRun {
	if w.DryRun == nil {
		return nil
	}
	return w.DryRun.planned()
}

// any reports whether rows has a row, in one round trip under the limits of a probe. A locked
// table is a lockedError. A stop request ends it before the query.
func (w *Sweeper) any(ctx context.Context, rows rowset.Rows) (bool, error) {
	if w.DryRun != nil {
		return w.DryRun.any(ctx, rows)
	}
	if err := w.CheckStop(); err != nil {
		return false, err
	}
	has, err := rowset.NewSweeps(rows.Database).Any(ctx, []rowset.Rows{rows}, ProbeLimits())
	if ClassOf(err, 0, fencing.Limits{}) == dberr.ClassLock {
		return false, &lockedError{rows.String()}
	}
	return err == nil && has[0], err
}

package bulk

import (
	"context"
	"math"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// DryRun is the [RowChanger] of a dry run. It walks through the same rows as a [Sweeper], counts
// them, and remembers those that would be deleted, so that no row counts twice.
type DryRun struct {
	// Seen are the rows that would be deleted by now.
	Seen Seen
	// CheckStop and Count are as those of a [Sweeper].
	CheckStop func() error
	Count     func(ctx context.Context, table string, c rowset.Change, rows int64)
	// For is the plan to count for, up to its limits. nil means a dry run, which counts all rows.
	For     *plan.Plan
	Catalog *catalog.Catalog
}

// ForPlan returns a [DryRun] that counts for a plan, in the database of a catalogue.
func ForPlan(p *plan.Plan, c *catalog.Catalog) *DryRun {
	deleted, _ := p.Visited(repo.Of(c.Database))
	return &DryRun{
		Seen: deleted, CheckStop: p.CheckStop, For: p, Catalog: c,
		Count: func(_ context.Context, table string, change rowset.Change, rows int64) {
			p.Count(repo.Of(c.Database), table, change, rows)
		},
	}
}

// room returns how many more rows of a table are counted.
func (r *DryRun) room(table catalog.Table) int64 {
	if r.For == nil {
		return math.MaxInt64 - 1
	}
	return r.For.Remaining(repo.Of(r.Catalog.Database), table.Name)
}

// cut marks a table as counted in part: no more of its rows are counted, nor of their dependants.
func (r *DryRun) cut(table catalog.Table) {
	reached := map[catalog.Table]bool{}
	for left := []catalog.Table{table}; len(left) > 0; left = left[1:] {
		if reached[left[0]] {
			continue
		}
		reached[left[0]] = true
		r.For.AtLeast(repo.Of(r.Catalog.Database), left[0].Name)
		for _, d := range dependantsOf(r.Catalog, left[0]) {
			switch d.onDelete {
			case removed:
				left = append(left, d.table)
			case nullified:
				r.For.AtLeast(repo.Of(r.Catalog.Database), d.table.Name)
			case forbidding:
			}
		}
	}
}

// tooSlow reports whether an error of a statement only cuts a plan short.
func (r *DryRun) tooSlow(err error) bool { return r.For != nil && isLockOrTimeout(err) }

// Seen are rows, by their place.
type Seen map[rowset.Place]struct{}

// dryRunRows is how many rows a dry run reads at a time.
const dryRunRows = 100_000

// page is the result of one read of a dry run.
type page struct {
	// places of the rows not deleted, and their values by column.
	places []rowset.Place
	values [][]string
	// last is the place of the last row read, deleted or not. more: further rows may follow.
	last rowset.Place
	more bool
}

// read reads up to limit rows after a place.
func (r *DryRun) read(
	ctx context.Context, rows rowset.Rows, columns []catalog.Column, after rowset.Place, limit int64,
) (p page, err error) {
	p = page{values: make([][]string, len(columns)), last: after}
	if err := r.CheckStop(); err != nil {
		return p, err
	}
	all, values, err := rows.Places(ctx, columns, after, limit, ProbeLimits())
	if err != nil || len(all) == 0 {
		return p, err
	}
	p.last, p.more = all[len(all)-1], int64(len(all)) == limit
	for i, place := range all {
		if _, deleted := r.Seen[place]; deleted {
			continue
		}
		p.places = append(p.places, place)
		for c := range columns {
			p.values[c] = append(p.values[c], values[c][i])
		}
	}
	return p, nil
}

// Sweep counts the rows that a sweep would change, and remembers those that it would delete.
func (r *DryRun) Sweep(ctx context.Context, rows rowset.Rows, c rowset.Change) (err error) {
	for p := (page{more: true}); p.more; {
		room := r.room(rows.Table)
		p, err = r.read(ctx, rows, nil, p.last, min(dryRunRows, room+1))
		over := int64(len(p.places)) > room
		if over || r.tooSlow(err) {
			r.cut(rows.Table)
		}
		switch {
		case r.tooSlow(err):
			return nil
		case err != nil:
			return err
		case over:
			p.places, p.more = p.places[:room], false
		}
		for _, place := range p.places {
			if c.Delete {
				r.Seen[place] = struct{}{}
			}
		}
		if len(p.places) > 0 {
			r.Count(ctx, rows.Table.Name, c, int64(len(p.places)))
		}
	}
	return nil
}

// NextKeys reads values of the next rows: see [RowChanger].
func (r *DryRun) NextKeys(
	ctx context.Context, rows rowset.Rows, columns []catalog.Column, c *Cursor,
) ([][]string, error) {
	none := make([][]string, len(columns))
	for {
		room := r.room(rows.Table)
		p, err := r.read(ctx, rows, columns, c.after, min(portionRows, max(room, 1)))
		switch {
		case r.tooSlow(err), room == 0 && len(p.places) > 0:
			r.cut(rows.Table)
			return none, nil
		}
		c.after = p.last
		if err != nil || len(p.places) > 0 || !p.more {
			return p.values, err
		}
	}
}

// any counts all rows that it finds for a plan: they prevent the planned deletion.
func (r *DryRun) any(ctx context.Context, rows rowset.Rows) (has bool, err error) {
	for p := (page{more: true}); p.more; {
		p, err = r.read(ctx, rows, nil, p.last, min(dryRunRows, r.room(rows.Table)+1))
		switch found := len(p.places) > 0; {
		case r.tooSlow(err):
			r.cut(rows.Table)
			return has, nil
		case err != nil, found && r.For == nil:
			return found, err
		case found && has:
			// The first page is enough.
			r.For.AtLeast(repo.Of(r.Catalog.Database), rows.Table.Name)
			return true, nil
		case found:
			has = true
			r.For.Keep(repo.Of(r.Catalog.Database), rows.Table.Name, p.places)
		}
	}
	return has, nil
}

// planned returns this dry run if it counts for a plan, else nil. A dry run of a worker counts for
// none.
func (r *DryRun) planned() *DryRun {
	if r.For == nil {
		return nil
	}
	return r
}

// takenAlong handles rows that the database itself deletes with others of their table. If they are
// not counted otherwise, the plan is not exact.
func (r *DryRun) takenAlong(rows rowset.Rows) {
	r.For.Later(func(ctx context.Context) error {
		for p := (page{more: true}); p.more; {
			var err error
			p, err = r.read(ctx, rows, nil, p.last, dryRunRows)
			if len(p.places) > 0 || r.tooSlow(err) {
				r.For.AtLeast(repo.Of(r.Catalog.Database), rows.Table.Name)
				return nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

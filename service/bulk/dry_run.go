package bulk

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// DryRun is the [RowChanger] of a dry run. It walks through the same rows as a [Sweeper], counts
// them, and remembers those that would be gone, so that no row counts twice.
type DryRun struct {
	// Seen are the rows that would be gone by now.
	Seen Seen
	// CheckStop and Count are as those of a [Sweeper].
	CheckStop func() error
	Count     func(ctx context.Context, table string, c repo.Change, rows int64)
}

// Seen are rows, by their place.
type Seen map[repo.Place]struct{}

// dryRunRows is how many rows a dry run reads at a time.
const dryRunRows = 100_000

// page is what a dry run reads in one statement.
type page struct {
	// places of the rows that are not gone, and their values by column.
	places []repo.Place
	values [][]string
	// last is the place of the last row read, gone or not. more: there may be further ones.
	last repo.Place
	more bool
}

// read reads up to limit rows behind a place.
func (r *DryRun) read(
	ctx context.Context, rows repo.Rows, columns []repo.Column, after repo.Place, limit int64,
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
		if _, gone := r.Seen[place]; gone {
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
func (r *DryRun) Sweep(ctx context.Context, rows repo.Rows, c repo.Change) (err error) {
	for p := (page{more: true}); p.more; {
		if p, err = r.read(ctx, rows, nil, p.last, dryRunRows); err != nil {
			return err
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

// NextKeys reads values of the next rows, as [RowChanger] says.
func (r *DryRun) NextKeys(
	ctx context.Context, rows repo.Rows, columns []repo.Column, c *Cursor,
) ([][]string, error) {
	for {
		p, err := r.read(ctx, rows, columns, c.after, portionRows)
		c.after = p.last
		if err != nil || len(p.places) > 0 || !p.more {
			return p.values, err
		}
	}
}

func (r *DryRun) any(ctx context.Context, rows repo.Rows) (bool, error) {
	for p := (page{more: true}); p.more; {
		var err error
		if p, err = r.read(ctx, rows, nil, p.last, dryRunRows); err != nil || len(p.places) > 0 {
			return len(p.places) > 0, err
		}
	}
	return false, nil
}

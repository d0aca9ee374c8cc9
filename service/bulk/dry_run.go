package bulk

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// DryRun is what a dry run has instead of a [Sweeper]: it walks through the same rows and counts them once, as they
// would be gone after they were removed.
type DryRun struct {
	// Seen are the rows that would be gone by now.
	Seen  Seen
	GoOn  func() error
	Count func(ctx context.Context, table string, c repo.Change, rows int64)
}

// Seen are rows, by their place.
type Seen map[repo.Place]struct{}

// rehearsedAtOnce is how many rows a dry run reads at a time.
const rehearsedAtOnce = 100_000

// next reads the rows behind a place that are not gone; more says that there may be further ones behind last.
func (r *DryRun) next(ctx context.Context, rows repo.Rows, columns []repo.Column, after repo.Place, limit int64) (
	places []repo.Place, values [][]string, last repo.Place, more bool, err error,
) {
	if err := r.GoOn(); err != nil {
		return nil, nil, after, false, err
	}
	all, read, err := rows.Places(ctx, columns, after, limit, ProbeLimits())
	if err != nil || len(all) == 0 {
		return nil, nil, after, false, err
	}
	values = make([][]string, len(columns))
	for i, place := range all {
		if _, gone := r.Seen[place]; gone {
			continue
		}
		places = append(places, place)
		for c := range columns {
			values[c] = append(values[c], read[c][i])
		}
	}
	return places, values, all[len(all)-1], int64(len(all)) == limit, nil
}

// Sweep counts the rows that a sweep would change, and remembers those that it would delete.
func (r *DryRun) Sweep(ctx context.Context, rows repo.Rows, c repo.Change) error {
	var after repo.Place
	for more := true; more; {
		var places []repo.Place
		var err error
		if places, _, after, more, err = r.next(ctx, rows, nil, after, rehearsedAtOnce); err != nil {
			return err
		}
		for _, place := range places {
			if c.Delete {
				r.Seen[place] = struct{}{}
			}
		}
		if len(places) > 0 {
			r.Count(ctx, rows.Table.Name, c, int64(len(places)))
		}
	}
	return nil
}

// Take reads the values of rows page by page, as [Sweeper.Take] does, and changes nothing.
func (r *DryRun) Take(ctx context.Context, rows repo.Rows, columns []repo.Column, t *Taking) ([][]string, error) {
	for {
		_, values, last, more, err := r.next(ctx, rows, columns, t.after, takenAtOnce)
		t.after = last
		if err != nil || len(values) > 0 && len(values[0]) > 0 {
			return values, err
		}
		if !more {
			return make([][]string, len(columns)), nil
		}
	}
}

func (r *DryRun) any(ctx context.Context, rows repo.Rows) (bool, error) {
	var after repo.Place
	for more := true; more; {
		var places []repo.Place
		var err error
		if places, _, after, more, err = r.next(ctx, rows, nil, after, rehearsedAtOnce); err != nil || len(places) > 0 {
			return len(places) > 0, err
		}
	}
	return false, nil
}

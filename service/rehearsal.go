package service

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
)

// rehearsal is what a dry run has instead of a [sweeper]: it walks through the same rows and counts them once, as they
// would be gone after they were removed.
type rehearsal struct {
	// seen are the rows that would be gone by now.
	seen  rehearsed
	goOn  func() error
	count func(ctx context.Context, table string, c repo.Change, rows int64)
}

type rehearsed map[repo.Place]struct{}

// rehearsedAtOnce is how many rows a rehearsal reads at a time.
const rehearsedAtOnce = 100_000

// next reads the rows behind a place that are not gone; more says that there may be further ones behind last.
func (r *rehearsal) next(ctx context.Context, rows repo.Rows, columns []repo.Column, after repo.Place, limit int64) (
	places []repo.Place, values [][]string, last repo.Place, more bool, err error,
) {
	if err := r.goOn(); err != nil {
		return nil, nil, after, false, err
	}
	all, read, err := rows.Places(ctx, columns, after, limit, probeLimits())
	if err != nil || len(all) == 0 {
		return nil, nil, after, false, err
	}
	values = make([][]string, len(columns))
	for i, place := range all {
		if _, gone := r.seen[place]; gone {
			continue
		}
		places = append(places, place)
		for c := range columns {
			values[c] = append(values[c], read[c][i])
		}
	}
	return places, values, all[len(all)-1], int64(len(all)) == limit, nil
}

func (r *rehearsal) sweep(ctx context.Context, rows repo.Rows, c repo.Change) error {
	var after repo.Place
	for more := true; more; {
		var places []repo.Place
		var err error
		if places, _, after, more, err = r.next(ctx, rows, nil, after, rehearsedAtOnce); err != nil {
			return err
		}
		for _, place := range places {
			if c.Delete {
				r.seen[place] = struct{}{}
			}
		}
		if len(places) > 0 {
			r.count(ctx, rows.Table.Name, c, int64(len(places)))
		}
	}
	return nil
}

func (r *rehearsal) take(ctx context.Context, rows repo.Rows, columns []repo.Column, t *taking) ([][]string, error) {
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

func (r *rehearsal) any(ctx context.Context, rows repo.Rows) (bool, error) {
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

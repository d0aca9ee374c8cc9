package lfk

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// remainingSQL returns the positions of the keys that have at least one row.
const remainingSQL = `
SELECT k.n FROM {parents}
CROSS JOIN LATERAL (SELECT FROM {child} t WHERE {matched}{conditions} LIMIT 1) c`

// Remaining returns the keys that still have rows. If a partition that the run does not know is
// being detached from the child, the error is [dberr.ErrChildChanged].
func (c *Child) Remaining(ctx context.Context, keys []Key, l fencing.Limits) ([]Key, error) {
	l.Before = lockTrees(c.tree)
	var numbers []int64
	keys, err := c.Asked(ctx, keys, l, func(keys []Key) error {
		probe, err := c.Query("probe", remainingSQL, keys, nil)
		if err == nil {
			var args stmt.Parameters
			probe.Check = pg.FailIf(c.changed(false, &args), args)
			numbers, err = pg.ReadRows(ctx, c.Database, l, probe, pgx.RowTo[int64])
		}
		return err
	})
	return numbered(keys, numbers), err
}

// countChildrenSQL counts at most $2 rows, and reads at most $2 rows of each key.
const countChildrenSQL = `
SELECT count(*) FROM (
  SELECT FROM {parents}
  CROSS JOIN LATERAL (SELECT FROM {child} t WHERE {matched}{conditions} LIMIT $2) c
  LIMIT $2
) capped`

// Count counts the rows that Purge would change, up to limit. It changes nothing. A key that the
// database cannot encode counts as 0.
func (c *Child) Count(
	ctx context.Context, keys []Key, limit int64, l fencing.Limits,
) (n int64, err error) {
	_, err = c.Asked(ctx, keys, l, func(keys []Key) error {
		count, err := c.Query("count", countChildrenSQL, keys, []any{limit})
		if err == nil {
			err = pg.ReadRow(ctx, c.Database, l, count, &n)
		}
		return err
	})
	return n, err
}

// Asked queries the rows of the keys, and returns the keys. If the child's database cannot encode
// some keys, no row has them: Asked drops these and queries again. ask may be called twice, so it
// must replace its earlier result.
func (c *Child) Asked(
	ctx context.Context, keys []Key, l fencing.Limits, ask func([]Key) error,
) ([]Key, error) {
	err := ask(keys)
	if !dberr.Unencodable(err) {
		return keys, err
	}
	if keys, err = c.encodable(ctx, keys, l); err == nil {
		err = ask(keys)
	}
	return keys, err
}

// encodableSQL fails if the encoding of the database has no characters for a value.
const encodableSQL = `SELECT cardinality($1::text[])`

// encodable returns the keys whose values the encoding of the database can represent. It halves the
// list until each failing key is alone, with one statement for each part.
func (c *Child) encodable(ctx context.Context, keys []Key, l fencing.Limits) ([]Key, error) {
	var values []string
	for _, k := range keys {
		values = append(values, k.Values()...)
	}
	var n int
	err := pg.ReadRow(ctx, c.Database, l, pg.NewQuery("find characters", encodableSQL, values), &n)
	switch {
	case !dberr.Unencodable(err):
		return keys, err
	case len(keys) == 1:
		return nil, nil
	}
	first, err := c.encodable(ctx, keys[:len(keys)/2], l)
	if err != nil {
		return nil, err
	}
	second, err := c.encodable(ctx, keys[len(keys)/2:], l)
	return slices.Concat(first, second), err
}

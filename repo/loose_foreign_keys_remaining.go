package repo

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

const remainingSQL = `
SELECT k.n FROM {parents}
CROSS JOIN LATERAL (SELECT FROM {child} t WHERE {matched}{conditions} LIMIT 1) c`

// Remaining says which of the keys still have rows.
func (c *Child) Remaining(ctx context.Context, keys []Key, l Limits) ([]Key, error) {
	l.before = lockTrees(c.tree)
	var numbers []int64
	keys, err := c.asked(ctx, keys, l, func(keys []Key) error {
		probe, err := c.query("probe", remainingSQL, keys, nil)
		if err == nil {
			var args parameters
			probe.check = failIf(c.changed(false, &args), args)
			numbers, err = readRows(ctx, c.Database, l, probe, pgx.RowTo[int64])
		}
		return err
	})
	return numbered(keys, numbers), err
}

const countChildrenSQL = `
SELECT count(*) FROM (
  SELECT FROM {parents}
  CROSS JOIN LATERAL (SELECT FROM {child} t WHERE {matched}{conditions} LIMIT $2) c
  LIMIT $2
) capped`

// Count counts the rows that Purge would change, up to limit.
func (c *Child) Count(
	ctx context.Context, keys []Key, limit int64, l Limits,
) (n int64, err error) {
	_, err = c.asked(ctx, keys, l, func(keys []Key) error {
		count, err := c.query("count", countChildrenSQL, keys, []any{limit})
		if err == nil {
			err = c.Database.readRow(ctx, l, count, &n)
		}
		return err
	})
	return n, err
}

// asked asks for the rows of the keys; if that fails because the encoding of the child's database has
// no characters for some, which no row can have then, of the others, which it returns.
func (c *Child) asked(
	ctx context.Context, keys []Key, l Limits, ask func([]Key) error,
) ([]Key, error) {
	err := ask(keys)
	if !Unencodable(err) {
		return keys, err
	}
	if keys, err = c.encodable(ctx, keys, l); err == nil {
		err = ask(keys)
	}
	return keys, err
}

// encodableSQL fails if the encoding of the database has no characters for a value.
const encodableSQL = `SELECT cardinality($1::text[])`

func (c *Child) encodable(ctx context.Context, keys []Key, l Limits) ([]Key, error) {
	var values []string
	for _, k := range keys {
		values = append(values, k.Values()...)
	}
	var n int
	err := c.Database.readRow(ctx, l, newQuery("look for characters", encodableSQL, values), &n)
	switch {
	case !Unencodable(err):
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

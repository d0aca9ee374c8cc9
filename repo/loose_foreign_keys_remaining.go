package repo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const remainingSQL = `
SELECT k.n FROM {parents}
CROSS JOIN LATERAL (SELECT FROM {child} t WHERE {matched}{conditions} LIMIT 1) c`

// Remaining says which of the keys still have rows.
func (c *Child) Remaining(ctx context.Context, keys []Key, l Limits) ([]Key, error) {
	probe, err := c.query("probe", remainingSQL, keys, nil)
	if err != nil {
		return nil, err
	}
	numbers, err := readRows(ctx, c.Database, l, probe, pgx.RowTo[int64])
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
	count, err := c.query("count", countChildrenSQL, keys, []any{limit})
	if err == nil {
		err = c.Database.readRow(ctx, l, count, &n)
	}
	return n, err
}

package repo

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const remainingSQL = `
SELECT k.key FROM unnest($1::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT FROM {child} t WHERE t.{column} = k.key{conditions} LIMIT 1) c`

// Remaining says which of the keys still have rows.
func (c *Child) Remaining(ctx context.Context, keys []int64, l Limits) ([]int64, error) {
	sql, values := c.sql(remainingSQL, 2)
	probe := newQuery("probe "+c.Key.String(), sql, append([]any{keys}, values...)...)
	return readRows(ctx, c.Database, l, probe, pgx.RowTo[int64])
}

const countChildrenSQL = `
SELECT count(*) FROM (
  SELECT FROM unnest($1::bigint[]) AS k (key)
  CROSS JOIN LATERAL (SELECT FROM {child} t WHERE t.{column} = k.key{conditions} LIMIT $2) c
  LIMIT $2
) capped`

// Count counts the rows that Purge would change, up to limit.
func (c *Child) Count(
	ctx context.Context, keys []int64, limit int64, l Limits,
) (n int64, err error) {
	sql, values := c.sql(countChildrenSQL, 3)
	count := newQuery("count "+c.Key.String(), sql, append([]any{keys, limit}, values...)...)
	err = c.Database.readRow(ctx, l, count, &n)
	return n, err
}

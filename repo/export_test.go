package repo

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// OnPool is a Database on a pool of the test's making.
func OnPool(name string, pool *pgxpool.Pool) *Database {
	return &Database{Name: name, sessions: true, pool: pool, prepares: true}
}

// Unguarded is a guard that always holds.
func Unguarded() Guard { return unguarded() }

// Look sends a statement that changes nothing.
func (d *Database) Look(ctx context.Context) error {
	_, err := d.exec(ctx, "look", `SELECT 1`)
	return err
}

// Fail sends a statement that the server refuses.
func (d *Database) Fail(ctx context.Context) error {
	_, err := d.exec(ctx, "fail", `SELECT 1/0`)
	return err
}

// Exec sends a statement of a benchmark.
func (d *Database) Exec(ctx context.Context, sql string, args ...any) error {
	_, err := d.pool.Exec(ctx, sql, args...)
	return err
}

// PurgeWithoutReceipt is [Child.PurgeAll], uncounted, as it would be if there were no receipts.
func (c *Child) PurgeWithoutReceipt(ctx context.Context, p Purge) error {
	ending := strings.Replace(purgeAllResultSQL, "{noted}", "true", 1)
	q, err := c.query("clean without a receipt", strings.Replace(purgeUncountedSQL+ending, "{returned} AS key", "1", 1), p.Keys, []any{p.Cap})
	if err != nil {
		return err
	}
	var found, changed, removed int64
	return c.Database.write(ctx, p.Permit, q, &found, &changed, &removed)
}

// Backends are the server's processes behind the connections.
func (d *Database) Backends(ctx context.Context) (pids []int, err error) {
	rows, _ := d.pool.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`)
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

// ClampTimes makes a connection of a test read times as those of a Database do.
func ClampTimes(_ context.Context, conn *pgx.Conn) error {
	clampTimes(conn)
	return nil
}

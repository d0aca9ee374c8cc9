package repo

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// poolerAdvice is what to do when statements are prepared on one connection of a pooler and used on another.
func poolerAdvice(database string) string {
	key := database + ".url"
	if primary, is := strings.CutSuffix(database, replicaSuffix); is {
		key = primary + ".replica_url"
	}
	return "behind a pooler in transaction mode add default_query_exec_mode=exec to databases." + key + " (docs/databases.md)"
}

const backendSQL = `SELECT pg_backend_pid()`

// CheckPooler says if something stands between us and the server that may not keep prepared statements, while the URL
// does not forbid them. A pooler gives its clients numbers of its own instead of those of the server's processes. One in
// session mode does no harm.
func (d *Database) CheckPooler(ctx context.Context) error {
	if !d.sessions {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	var between bool
	err := d.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		var pid uint32
		err := c.QueryRow(ctx, backendSQL).Scan(&pid)
		between = pid != c.Conn().PgConn().PID()
		return err
	})
	if err == nil && between {
		return errors.New(poolerAdvice(d.Name))
	}
	return d.wrap(ctx, "look for a pooler", err)
}

package repo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Database is one configured PostgreSQL database. It connects when it is first needed.
type Database struct {
	// Name is the configured name: main, ci or sec.
	Name string
	pool *pgxpool.Pool
	// prepares: the URL does not say that statements must not be prepared (default_query_exec_mode).
	prepares bool
}

// maxConns of a database's pool; the URL's pool_max_conns wins.
const maxConns = 10

// Open prepares the connections to a database; it does not connect. The error names what is wrong with the URL and
// never contains a password.
func Open(ctx context.Context, name, url string) (*Database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("databases.%s.url: %w", name, err)
	}
	if config.MaxConns < maxConns {
		config.MaxConns = maxConns
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	if _, set := config.ConnConfig.RuntimeParams["application_name"]; !set {
		config.ConnConfig.RuntimeParams["application_name"] = "caretaker"
	}
	config.ConnConfig.Tracer = otelpgx.NewTracer(otelpgx.WithDisableSQLStatementInAttributes())
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("databases.%s.url: %w", name, err)
	}
	return &Database{Name: name, pool: pool, prepares: config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement}, nil
}

// Close waits for the statements in flight and closes the connections.
func (d *Database) Close() { d.pool.Close() }

// Ping says whether the database answers.
func (d *Database) Ping(ctx context.Context) error {
	return d.wrap(ctx, "ping", d.pool.Ping(ctx))
}

// Now is the clock of the database.
func (d *Database) Now(ctx context.Context) (time.Time, error) {
	var now time.Time
	err := d.queryRow(ctx, "read the clock", []any{&now}, `SELECT clock_timestamp()`)
	return now, err
}

// The helpers below are how every method of this package talks to the server.

// statementTimeout bounds the small statements of our own tables.
const statementTimeout = 5 * time.Second

// queryRow runs a statement of one row under the timeout for our own small statements. No row is ErrNotFound.
func (d *Database) queryRow(ctx context.Context, operation string, into []any, sql string, args ...any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	err := d.pool.QueryRow(ctx, sql, args...).Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%s on %s: %w", operation, d.Name, ErrNotFound)
	}
	return d.wrap(ctx, operation, err)
}

// exec runs a statement without result rows and returns how many rows it changed.
func (d *Database) exec(ctx context.Context, operation, sql string, args ...any) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	tag, err := d.pool.Exec(ctx, sql, args...)
	return tag.RowsAffected(), d.wrap(ctx, operation, err)
}

// collect runs a query and reads its rows.
func collect[T any](ctx context.Context, d *Database, operation string, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	rows, err := d.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, d.wrap(ctx, operation, err)
	}
	out, err := pgx.CollectRows(rows, scan)
	return out, d.wrap(ctx, operation, err)
}

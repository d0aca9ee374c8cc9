// Package pg is the kernel of package repo: connections, statements and transactions. Each is
// bounded, fenced and traced, and writes receipts of its changes. Only packages below repo can
// import pg, so no other package sends SQL.
//
// A function of this package takes the database as its second argument. Methods of [Database] send
// no SQL of the caller.
package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Database is one configured PostgreSQL database. It connects on first use.
type Database struct {
	// Name is the configured name, such as main.
	Name string
	// KeepKeys stores the keys of all rows in receipts, besides a digest. It is set before use.
	KeepKeys bool
	// LooseForeignKeysOnly: the tables of the workers for GitLab alone, and the queue of jobs, are
	// neither created nor read. It is set before use.
	LooseForeignKeysOnly bool
	// JobCascades are the deletions by jobs besides groups, projects and the user's own namespace.
	// They are set before use.
	JobCascades []JobCascade
	pool        *pgxpool.Pool
	// reachability is what our statements have learned about the server.
	reachability reachability
	// prepares: the URL does not forbid prepared statements (default_query_exec_mode).
	prepares bool
	// connectTimeout is the timeout of connecting.
	connectTimeout time.Duration
	// names are the databases that must differ. nil means no such requirement.
	names *names
	// Sessions: statements may be described or prepared in one transaction and used in another.
	Sessions bool
	// Replica is nil if none is configured.
	Replica *replica
	// LogMeter measures the log for Load.
	LogMeter logMeter
	// targets are known once both tables have been found, or for the current run.
	targets atomic.Pointer[fencing.Targets]
	// Owner is the repo.Database that owns this kernel.
	Owner any
	// Adopt sets the owner of the view that ReadCopy returns.
	Adopt func(view *Database)
	// Moved returns the reason if tables are missing because search_path no longer leads to them.
	// Otherwise it returns "". It is set before use.
	Moved func(ctx context.Context, d *Database) string
	// spans makes the spans of operations, all of which have these attributes.
	spans      trace.Tracer
	attributes []attribute.KeyValue
	// times measures the statements. nil on a pool of the caller.
	times *statementTimes
}

// maxConns of a database's pool. The URL's pool_max_conns overrides it. Each of the six workers
// may have one run, with the renewal of its lease and its heartbeat. loose_foreign_keys_cleanup
// sends two statements at a time. Six jobs run at a time. River fetches and completes them on
// connections of its own, and RPCs need more. Waiting for a connection would cost a lease. River
// listens on one connection, which never returns to the pool.
const maxConns = 20

// minConns: a migration holds its lock on one connection and works on another.
const minConns = 2

// connectTimeout is the timeout of connecting, unless the URL has connect_timeout.
const connectTimeout = 5 * time.Second

// Open prepares the connections to a database without connecting. The error names the fault in the
// URL and never contains a password.
func Open(ctx context.Context, name, address string) (*Database, error) {
	return open(ctx, name, source{"databases." + name + ".url", address, maxConns, connectTimeout})
}

// source is the origin of a database's connections.
type source struct {
	// key is the URL's key in the configuration.
	key, url string
	// conns is the maximum number of connections. connectTimeout is the timeout of connecting. The URL
	// overrides both.
	conns          int32
	connectTimeout time.Duration
}

// parsed returns the settings of the URL. No error quotes the URL, and the error of a malformed URL
// quotes no part of it: each part may belong to the password.
func (s source) parsed() (*pgxpool.Config, error) {
	before, _, _ := strings.Cut(s.url, "=")
	isURL := strings.HasPrefix(s.url, "postgres://") || strings.HasPrefix(s.url, "postgresql://")
	_, err := url.Parse(s.url)
	switch malformed := isURL && (err != nil || strayAt(s.url)); {
	case malformed:
		return nil, errors.New("is not a valid URL (not shown, because it may contain a password): in the password, " +
			"write % as %25, @ as %40, : as %3A, / as %2F, ? as %3F and # as %23")
	case !isURL && (strings.Contains(before, "://") || before == s.url):
		return nil, errors.New("is not a PostgreSQL URL (not shown, because it may contain a password): " +
			"use a URL such as postgres://caretaker@db:5432/gitlab")
	}
	config, err := pgxpool.ParseConfig(s.url)
	switch {
	case err != nil && isURL:
		text := err.Error()
		return nil, errors.New(text[strings.LastIndex(text, "`: ")+len("`: "):])
	case err != nil:
		return nil, errors.New("is not a valid connection string (not shown, because it may contain a password): " +
			"write NAME=VALUE, or NAME='VALUE' if the value has spaces")
	}
	return config, nil
}

// strayAt reports whether a URL has an @ that ends no user name or password as the driver reads it.
func strayAt(text string) bool {
	_, rest, _ := strings.Cut(text, "://")
	userinfo := strings.IndexAny(rest, "@/")
	if userinfo >= 0 && rest[userinfo] == '@' {
		rest = rest[userinfo+1:]
		userinfo = -1
	}
	host, query, _ := strings.Cut(rest, "?")
	return strings.Contains(host, "@") ||
		userinfo >= 0 && !strings.Contains(host, "/") && strings.Contains(query, "@")
}

func open(ctx context.Context, name string, from source) (*Database, error) {
	config, err := from.parsed()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from.key, err)
	}
	if !strings.Contains(from.url, "pool_max_conns") {
		config.MaxConns = from.conns
	}
	if config.MaxConns < minConns {
		return nil, fmt.Errorf("pool_max_conns in %s is %d: set pool_max_conns to at least %d",
			from.key, config.MaxConns, minConns)
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = from.connectTimeout
	}
	mode := config.ConnConfig.DefaultQueryExecMode
	d := &Database{Name: name, connectTimeout: config.ConnConfig.ConnectTimeout, prepares: mode == pgx.QueryExecModeCacheStatement}
	d.Sessions = d.prepares || mode == pgx.QueryExecModeDescribeExec
	addSettings(config.ConnConfig.RuntimeParams)
	times, err := newStatementTimes(ctx, name)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Tracer, d.times = &tracer{times}, times
	d.spans, d.attributes = newSpans(), traceAttributes(name, config.ConnConfig)
	config.AfterConnect = d.connected
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("%s: %w", from.key, err)
	}
	return d, nil
}

// OnPool returns a database on the caller's connections, each of which is a session.
func OnPool(name string, pool *pgxpool.Pool) *Database {
	return &Database{Name: name, pool: pool, Sessions: true, prepares: true}
}

// Close waits for running statements and closes the connections.
func (d *Database) Close() {
	d.pool.Close()
	if d.Replica != nil {
		d.Replica.Close()
	}
}

// ExplainMissing returns why tables are missing: the part of search_path in it, otherwise text.
func ExplainMissing(ctx context.Context, d *Database, text string) string {
	if d.Moved != nil {
		return cmp.Or(d.Moved(ctx, d), text)
	}
	return text
}

// PoolOf returns the connections of a database, for steps that need a connection of their own.
func PoolOf(d *Database) *pgxpool.Pool { return d.pool }

// Ping reports whether the database answers.
func (d *Database) Ping(ctx context.Context) error {
	return Wrap(ctx, d, "ping", d.pool.Ping(ctx))
}

// Now returns the clock of the database.
func (d *Database) Now(ctx context.Context) (now time.Time, err error) {
	err = d.queryRoutine(ctx, "read the clock", &now, `SELECT clock_timestamp()`)
	return now, err
}

// All methods of this package talk to the server through the helpers below.

// queryRoutine reads one value, such as the clock or a value of the catalogue.
func (d *Database) queryRoutine(ctx context.Context, operation string, into any, sql string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	ctx, o := BeginRoutine(ctx, d, operation)
	err := RetryConflicts(ctx, func() error { return d.pool.QueryRow(ctx, sql).Scan(into) })
	o.End(ctx, err)
	return Wrap(ctx, d, operation, err)
}

// QueryRow runs a statement of one row under the timeout for our own small statements. Without a
// row the error is ErrNotFound.
func QueryRow(
	ctx context.Context, d *Database, operation string, into []any, sql string, args ...any,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	ctx, o := d.begin(ctx, operation)
	err := RetryConflicts(ctx, func() error {
		return d.pool.QueryRow(ctx, sql, args...).Scan(into...)
	})
	o.End(ctx, err)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("cannot %s on %s: %w", operation, d.Name, dberr.ErrNotFound)
	}
	return Wrap(ctx, d, operation, err)
}

// Exec runs a statement without result rows and returns the number of changed rows.
func Exec(ctx context.Context, d *Database, operation, sql string, args ...any) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	ctx, o := d.begin(ctx, operation)
	var tag pgconn.CommandTag
	err := RetryConflicts(ctx, func() (err error) {
		tag, err = d.pool.Exec(ctx, sql, args...)
		return err
	})
	o.End(ctx, err)
	return tag.RowsAffected(), Wrap(ctx, d, operation, err)
}

// Collect runs a query and reads its rows.
func Collect[T any](
	ctx context.Context, d *Database, q Query, scan pgx.RowToFunc[T],
) (out []T, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	ctx, o := d.begin(ctx, q.Operation)
	err = RetryConflicts(ctx, func() error {
		rows, err := d.pool.Query(ctx, q.SQL, q.Args...)
		if err == nil {
			out, err = pgx.CollectRows(rows, scan)
		}
		return err
	})
	o.End(ctx, err)
	return out, Wrap(ctx, d, q.Operation, err)
}

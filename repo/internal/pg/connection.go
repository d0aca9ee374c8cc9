package pg

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// A database or a role may have settings of its own. The meaning of statements and their results
// must not depend on them:
//
//   - The format of strings and times is requested on connecting. That overrides the settings of
//     databases and roles. Every version of PgBouncer accepts it and keeps it on whichever
//     connection of the server.
//   - Transactions set the isolation that they need. For single statements the session sets it, if
//     there is a session.
//   - Every other setting that matters to a statement is set in its transaction, like the limits.
//   - Statements return no intervals and no bytea: as text, which poolers require, their format
//     depends on IntervalStyle and bytea_output.

// connectionSettings are sent on connecting.
func connectionSettings() map[string]string {
	return map[string]string{
		"client_encoding": "UTF8", "datestyle": "ISO",
		"standard_conforming_strings": "on", "timezone": "UTC",
	}
}

// sessionSQL is sent once on each connection that is a session.
const sessionSQL = `SET default_transaction_isolation = 'read committed'`

// addSettings adds the settings that statements rely on, and a name, to the parameters of
// connections.
func addSettings(params map[string]string) {
	if _, named := params["application_name"]; !named {
		params["application_name"] = "caretaker"
	}
	settings := connectionSettings()
	maps.DeleteFunc(params, func(name, _ string) bool {
		_, ours := settings[strings.ToLower(name)]
		return ours
	})
	maps.Copy(params, settings)
}

// connected prepares a new connection for use, or refuses it.
func (d *Database) connected(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.connectTimeout, dberr.ErrUnreachable)
	defer cancel()
	stmt.ClampTimes(conn)
	if d.Sessions {
		if err := conn.PgConn().Exec(ctx, sessionSQL).Close(); err != nil {
			return err
		}
	}
	return d.names.admit(ctx, d, conn.PgConn())
}

// names are the databases that must differ. Each new connection is checked before a statement uses
// it, so a database that does not answer at the start is checked later.
type names struct {
	// all are in their order: of two that are the same, the later is refused.
	all []*Database

	mu   sync.Mutex
	seen map[*Database]string
}

// MustDiffer refuses connections of a database that is the same as a previous one in the list. The
// error is [*dberr.SameDatabaseError], which is [dberr.ErrUnreachable]. Call MustDiffer before the
// databases are used. It does not connect.
func MustDiffer(databases []*Database) {
	n := &names{all: databases, seen: map[*Database]string{}}
	for _, d := range databases {
		d.names = n
	}
}

// identitySQL needs no privilege. A copied and promoted cluster, as after splitting a database, has
// the system identifier and the OIDs of the first. The start time of its server differs.
const identitySQL = `
SELECT extract(epoch FROM pg_postmaster_start_time()) || ' ' || oid FROM pg_database
WHERE datname = current_database()`

// admit refuses a connection to a database that a previous name also leads to. If the previous name
// connects second, the connections of the other are closed, and refused from then on.
func (n *names) admit(ctx context.Context, d *Database, conn *pgconn.PgConn) error {
	if n == nil || len(n.all) < 2 {
		return nil
	}
	results, err := conn.Exec(ctx, identitySQL).ReadAll()
	if _, refused := errors.AsType[*pgconn.PgError](err); refused {
		// A revoked default privilege leaves the identity unknown.
		return nil
	}
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[d] = string(results[0].Rows[0][0])
	earlier := true
	for _, other := range n.all {
		switch {
		case other == d:
			earlier = false
		case n.seen[other] != n.seen[d]:
		case earlier:
			return &dberr.SameDatabaseError{Name: d.Name, First: other.Name}
		default:
			other.pool.Reset()
		}
	}
	return nil
}

const backendSQL = `SELECT pg_backend_pid()`

// CheckPooler returns an error if a pooler between us and the server does not keep prepared
// statements, and the URL does not forbid them. A pooler in session mode does no harm.
func (d *Database) CheckPooler(ctx context.Context) error {
	if !d.Sessions {
		return nil
	}
	direct, err := d.Direct(ctx)
	if err == nil && !direct {
		return errors.New(dberr.PoolerAdvice(d.Name))
	}
	return err
}

// CheckReplicaPooler is [Database.CheckPooler] for the replica, if there is one.
func (d *Database) CheckReplicaPooler(ctx context.Context) error {
	if d.Replica == nil {
		return nil
	}
	return d.Replica.CheckPooler(ctx)
}

// Direct reports whether our connections are the server's own, so that LISTEN works. It is false if
// the URL is for poolers, or if an intermediary, as poolers do, replaces the numbers of the
// server's processes.
func (d *Database) Direct(ctx context.Context) (direct bool, err error) {
	if !d.Sessions {
		return false, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	err = d.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		var pid uint32
		err := c.QueryRow(ctx, backendSQL, pgx.QueryExecModeExec).Scan(&pid)
		direct = pid == c.Conn().PgConn().PID()
		return err
	})
	return direct, Wrap(ctx, d, "check for a pooler", err)
}

// PoolFigures are the figures of this process's connections to a database.
type PoolFigures struct {
	// Replica: the connections lead to the read replica.
	Replica bool
	// Used, Idle and Max are numbers of connections.
	Used, Idle, Max int64
	// Waits is the number of waits for a connection, Waited their total duration.
	Waits  int64
	Waited time.Duration
}

// PoolFigures returns the figures of the database and, if there is one, of its read replica.
func (d *Database) PoolFigures() (all []PoolFigures) {
	stat := d.pool.Stat()
	all = append(all, PoolFigures{
		Used: int64(stat.AcquiredConns()), Idle: int64(stat.IdleConns()), Max: int64(stat.MaxConns()),
		Waits: stat.EmptyAcquireCount(), Waited: stat.EmptyAcquireWaitTime(),
	})
	if d.Replica != nil {
		of := d.Replica.PoolFigures()[0]
		of.Replica = true
		all = append(all, of)
	}
	return all
}

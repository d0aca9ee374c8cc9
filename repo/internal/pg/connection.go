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

// A database or a role may come with settings of its own. What statements and their answers mean
// must not depend on them:
//
//   - The form of strings and times is asked for when connecting: that wins over the settings of
//     databases and roles, and every version of PgBouncer takes it, and keeps it on whichever
//     connection of the server.
//   - Transactions say which isolation they need. For single statements the session does, where there
//     is one.
//   - What else matters to a statement is set in its transaction, as limits are.
//   - Statements return no intervals and no bytea: as text, as behind a pooler, their form depends
//     on IntervalStyle and bytea_output.

// connectionSettings are sent when connecting.
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

// connected makes a new connection ready for use, or refuses it.
func (d *Database) connected(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.patience, dberr.ErrUnreachable)
	defer cancel()
	stmt.ClampTimes(conn)
	if d.Sessions {
		if err := conn.PgConn().Exec(ctx, sessionSQL).Close(); err != nil {
			return err
		}
	}
	return d.names.admit(ctx, d, conn.PgConn())
}

// names are those of databases that must not be one. Each new connection is looked at, so that a
// database that does not answer at the start is found out, too, before a statement reaches it.
type names struct {
	// all in their order: of two that are one the later is refused.
	all []*Database

	mu   sync.Mutex
	seen map[*Database]string
}

// MustDiffer makes connections of a database fail with [*dberr.SameDatabaseError], which is
// [dberr.ErrUnreachable], if it is the same as one before it in the list. It must be called before they
// are used; it does not connect.
func MustDiffer(databases []*Database) {
	n := &names{all: databases, seen: map[*Database]string{}}
	for _, d := range databases {
		d.names = n
	}
}

// identitySQL needs no privilege. Of a cluster that was copied as a whole and promoted, as when a
// database is split, the system identifier and the OIDs are those of the first; when its server was
// started is not.
const identitySQL = `
SELECT extract(epoch FROM pg_postmaster_start_time()) || ' ' || oid FROM pg_database
WHERE datname = current_database()`

// admit refuses a connection to a database that an earlier name leads to, too. If it is the earlier
// one that comes second, the connections of the other are given up, and will be refused.
func (n *names) admit(ctx context.Context, d *Database, conn *pgconn.PgConn) error {
	if n == nil || len(n.all) < 2 {
		return nil
	}
	results, err := conn.Exec(ctx, identitySQL).ReadAll()
	if _, refused := errors.AsType[*pgconn.PgError](err); refused {
		// Somebody has revoked what everybody may read: then nobody knows.
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

// CheckPooler says if something stands between us and the server that may not keep prepared
// statements, while the URL does not forbid them. One in session mode does no harm.
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

// CheckReplicaPooler is [Database.CheckPooler] of the replica, if there is one.
func (d *Database) CheckReplicaPooler(ctx context.Context) error {
	if d.Replica == nil {
		return nil
	}
	return d.Replica.CheckPooler(ctx)
}

// Direct reports whether our connections are the server's own: one can listen there. It is false if
// the URL is one for poolers, and if something in between gives its clients numbers of its own
// instead of those of the server's processes, as poolers do.
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
	return direct, Wrap(ctx, d, "look for a pooler", err)
}

// PoolFigures are those of the connections of this process to a database.
type PoolFigures struct {
	// Replica says that they lead to its read replica.
	Replica bool
	// Used, Idle and Max are connections.
	Used, Idle, Max int64
	// Waits is how often somebody has had to wait for a connection, Waited for how long in all.
	Waits  int64
	Waited time.Duration
}

// PoolFigures are those of the database and, if there is one, of its read replica.
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

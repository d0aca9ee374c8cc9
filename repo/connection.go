package repo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
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
	ctx, cancel := context.WithTimeoutCause(ctx, d.patience, ErrUnreachable)
	defer cancel()
	clampTimes(conn)
	if d.sessions {
		if err := conn.PgConn().Exec(ctx, sessionSQL).Close(); err != nil {
			return err
		}
	}
	return d.names.admit(ctx, d, conn.PgConn())
}

// SameDatabaseError says that two configured names lead to one database: side by side they would
// have twice the limits.
type SameDatabaseError struct {
	// Name is the one to be left out, First the other.
	Name, First string
}

// Error names both keys, and what to do.
func (e *SameDatabaseError) Error() string {
	return fmt.Sprintf("databases.%[1]s.url is the same database as databases.%[2]s.url: "+
		"leave databases.%[1]s.url out", e.Name, e.First)
}

// names are those of databases that must not be one. Each new connection is looked at, so that a
// database that does not answer at the start is found out, too, before a statement reaches it.
type names struct {
	// all in their order: of two that are one the later is refused.
	all []*Database

	mu   sync.Mutex
	seen map[*Database]string
}

// MustDiffer makes connections of a database fail with [*SameDatabaseError], which is
// [ErrUnreachable], if it is the same as one before it in the list. It must be called before they
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
			return &SameDatabaseError{Name: d.Name, First: other.Name}
		default:
			other.pool.Reset()
		}
	}
	return nil
}

// poolerAdvice is what to do when statements are prepared on one connection of a pooler and used on
// another.
func poolerAdvice(database string) string {
	key := database + ".url"
	if primary, ok := strings.CutSuffix(database, replicaSuffix); ok {
		key = primary + ".replica_url"
	}
	return "behind a pooler in transaction mode add default_query_exec_mode=exec to databases." +
		key + " (docs/databases.md)"
}

const backendSQL = `SELECT pg_backend_pid()`

// CheckPooler says if something stands between us and the server that may not keep prepared
// statements, while the URL does not forbid them. One in session mode does no harm.
func (d *Database) CheckPooler(ctx context.Context) error {
	if !d.sessions {
		return nil
	}
	direct, err := d.Direct(ctx)
	if err == nil && !direct {
		return errors.New(poolerAdvice(d.Name))
	}
	return err
}

// CheckReplicaPooler is [Database.CheckPooler] of the replica, if there is one.
func (d *Database) CheckReplicaPooler(ctx context.Context) error {
	if d.replica == nil {
		return nil
	}
	return d.replica.CheckPooler(ctx)
}

// Direct reports whether our connections are the server's own: one can listen there. It is false if
// the URL is one for poolers, and if something in between gives its clients numbers of its own
// instead of those of the server's processes, as poolers do.
func (d *Database) Direct(ctx context.Context) (direct bool, err error) {
	if !d.sessions {
		return false, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	err = d.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		var pid uint32
		err := c.QueryRow(ctx, backendSQL, pgx.QueryExecModeExec).Scan(&pid)
		direct = pid == c.Conn().PgConn().PID()
		return err
	})
	return direct, d.wrap(ctx, "look for a pooler", err)
}

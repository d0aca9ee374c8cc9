package repo

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// SameDatabaseError says that two configured names lead to one database: side by side they would have twice the limits.
type SameDatabaseError struct {
	// Name is the one to be left out, First the other.
	Name, First string
}

// Error names both keys, and what to do.
func (e *SameDatabaseError) Error() string {
	return fmt.Sprintf("databases.%[1]s.url is the same database as databases.%[2]s.url: leave databases.%[1]s.url out", e.Name, e.First)
}

// names are those of databases that must not be one. Each new connection is looked at, so that a database that does not
// answer at the start is found out, too, before a statement reaches it.
type names struct {
	// all in their order: of two that are one the later is refused.
	all []*Database

	mu   sync.Mutex
	seen map[*Database]string
}

// MustDiffer makes connections of a database fail with [*SameDatabaseError], which is [ErrUnreachable], if it is the same
// as one before it in the list. It must be called before they are used; it does not connect.
func MustDiffer(databases []*Database) {
	n := &names{all: databases, seen: map[*Database]string{}}
	for _, d := range databases {
		d.names = n
	}
}

// identitySQL needs no privilege. Of a cluster that was copied as a whole and promoted, as when a database is split, the
// system identifier and the OIDs are those of the first; when its server was started is not.
const identitySQL = `SELECT extract(epoch FROM pg_postmaster_start_time()) || ' ' || oid FROM pg_database WHERE datname = current_database()`

// admit refuses a connection to a database that an earlier name leads to, too. If it is the earlier one that comes second,
// the connections of the other are given up, and will be refused.
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

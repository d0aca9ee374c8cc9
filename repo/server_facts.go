package repo

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// ServerFacts are the facts of a server and of the connection to it.
type ServerFacts struct {
	// Version is server_version, Number server_version_num: 160004 is 16.4.
	Version string
	Number  int
	// Role is our role, quoted where necessary. TimeZone is the session's, which should be UTC.
	Role, TimeZone string
	// Standby: the server is a standby. ReadOnly: transactions are read-only by default, or on a
	// standby.
	Standby, ReadOnly bool
	// Encrypted: the connection uses TLS. Verified: the server's certificate was verified. Local:
	// the connection does not leave the machine.
	Encrypted, Verified, Local bool
	// Ahead is how far the server's clock is ahead of ours, accurate to Within.
	Ahead, Within time.Duration
	// Harmful are settings of the session that break or end statements.
	Harmful []string
}

// serverFactsSQL checks the settings of lists and bytes only where values travel as text ($1).
const serverFactsSQL = `
SELECT current_setting('server_version'), current_setting('server_version_num')::integer, quote_ident(current_user),
  current_setting('TimeZone'), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
  ARRAY(
    SELECT name::text FROM pg_settings
    WHERE $1::boolean AND (name, setting) IN (('array_nulls', 'off'), ('bytea_output', 'escape'))
      OR name IN ('statement_timeout', 'lock_timeout') AND setting::bigint BETWEEN 1 AND 999
    ORDER BY name),
  clock_timestamp()`

// ServerFacts queries the server.
func (d *Database) ServerFacts(ctx context.Context) (ServerFacts, error) {
	return serverFacts(ctx, d.Database)
}

func serverFacts(ctx context.Context, d *pg.Database) (f ServerFacts, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	err = pg.PoolOf(d).AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		secure, encrypted := c.Conn().PgConn().Conn().(*tls.Conn)
		if f.Encrypted = encrypted; encrypted {
			f.Verified = len(secure.ConnectionState().VerifiedChains) > 0
		}
		f.Local = local(c.Conn().PgConn().Conn().RemoteAddr())
		var theirs time.Time
		// The first query may have to read catalogs, which would falsify the measured time.
		for range 2 {
			before := time.Now() //nolint:forbidigo // to be compared with the database's
			// This statement is not prepared, as a pooler that loses prepared statements is still unknown.
			err := c.QueryRow(ctx, serverFactsSQL, pgx.QueryExecModeExec, !d.Sessions).Scan(&f.Version, &f.Number, &f.Role,
				&f.TimeZone, &f.Standby, &f.ReadOnly, &f.Harmful, &theirs)
			if err != nil {
				return err
			}
			f.Within = time.Since(before) / 2 //nolint:forbidigo // it measures
			f.Ahead = theirs.Sub(before.Add(f.Within))
		}
		return nil
	})
	return f, pg.Wrap(ctx, d, "read server information", err)
}

// local reports whether an address is one of this machine.
func local(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// replicaLagSQL reads the age of a standby's last transaction, and how long a query may delay its
// replay. NULL means without limit.
const replicaLagSQL = `
SELECT coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0)::float8,
  (SELECT setting::float8 / 1000 FROM pg_settings
    WHERE name = 'max_standby_streaming_delay' AND setting <> '-1'
      AND current_setting('hot_standby_feedback') = 'off')`

// ErrNoReplica means that no replica is configured.
var ErrNoReplica = errors.New("no replica is configured")

// ReplicaFacts are the facts of a standby.
type ReplicaFacts struct {
	ServerFacts
	// Late is the age of the last transaction if the standby does not catch up with the primary's
	// position. Otherwise it is 0.
	Late time.Duration
	// MaxQueryDelay is how long a query may delay replay before the server cancels it. nil means
	// without limit.
	MaxQueryDelay *time.Duration
}

// ReplicaFacts queries the replica. Without a replica the error is [ErrNoReplica].
func (d *Database) ReplicaFacts(ctx context.Context) (f ReplicaFacts, err error) {
	if d.Replica == nil {
		return f, ErrNoReplica
	}
	if f.ServerFacts, err = serverFacts(ctx, d.Replica.Database); err != nil {
		return f, err
	}
	late, err := pg.ReplicaLate(ctx, d.Database)
	if err != nil {
		return f, err
	}
	var seconds float64
	var delay *float64
	err = pg.QueryRow(ctx, d.Replica.Database, "measure the replica's lag", []any{&seconds, &delay}, replicaLagSQL)
	if late {
		f.Late = time.Duration(seconds * float64(time.Second))
	}
	if delay != nil {
		f.MaxQueryDelay = new(time.Duration(*delay * float64(time.Second)))
	}
	return f, err
}

package repo

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ServerFacts is what there is to know of a server and of the connection to it.
type ServerFacts struct {
	// Version is server_version, Number server_version_num: 160004 is 16.4.
	Version string
	Number  int
	// Role is ours, quoted where it has to be; TimeZone that of the session, for which UTC was asked.
	Role, TimeZone string
	// Standby: the server is one. ReadOnly: transactions are read-only by default, or for that.
	Standby, ReadOnly bool
	// Encrypted: the connection uses TLS. Verified: the certificate of the server was checked. Local:
	// it does not leave the machine.
	Encrypted, Verified, Local bool
	// Ahead is by how much the server's clock is ahead of ours, to within Within.
	Ahead, Within time.Duration
}

const serverFactsSQL = `
SELECT current_setting('server_version'), current_setting('server_version_num')::integer, quote_ident(current_user),
  current_setting('TimeZone'), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
  clock_timestamp()`

// ServerFacts asks the server.
func (d *Database) ServerFacts(ctx context.Context) (f ServerFacts, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	err = d.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		secure, encrypted := c.Conn().PgConn().Conn().(*tls.Conn)
		if f.Encrypted = encrypted; encrypted {
			f.Verified = len(secure.ConnectionState().VerifiedChains) > 0
		}
		f.Local = local(c.Conn().PgConn().Conn().RemoteAddr())
		var theirs time.Time
		// The first answer may have to prepare the statement.
		for range 2 {
			before := time.Now() //nolint:forbidigo // to be compared with the database's
			err := c.QueryRow(ctx, serverFactsSQL).Scan(&f.Version, &f.Number, &f.Role, &f.TimeZone,
				&f.Standby, &f.ReadOnly, &theirs)
			if err != nil {
				return err
			}
			f.Within = time.Since(before) / 2 //nolint:forbidigo // it measures
			f.Ahead = theirs.Sub(before.Add(f.Within))
		}
		return nil
	})
	return f, d.wrap(ctx, "look at the server", err)
}

// local says whether an address is one of this machine.
func local(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// replicaLagSQL: a standby that has replayed all that it has received is not late, however long ago
// the last write was.
const replicaLagSQL = `
SELECT CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
  ELSE coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0) END::float8`

// ErrNoReplica says that none is configured.
var ErrNoReplica = errors.New("no replica is configured")

// ReplicaFacts is ServerFacts of the replica, with how late it is. Without one the error is
// [ErrNoReplica].
func (d *Database) ReplicaFacts(ctx context.Context) (f ServerFacts, late time.Duration, err error) {
	if d.replica == nil {
		return f, 0, ErrNoReplica
	}
	if f, err = d.replica.ServerFacts(ctx); err != nil {
		return f, 0, err
	}
	var seconds float64
	err = d.replica.queryRow(ctx, "look how late the replica is", []any{&seconds}, replicaLagSQL)
	return f, time.Duration(seconds * float64(time.Second)), err
}

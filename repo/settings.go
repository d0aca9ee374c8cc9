package repo

import (
	"context"
	"maps"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A database or a role may come with settings of its own. What statements and their answers mean must not depend on them:
//
//   - The form of strings and times is asked for when connecting: that wins over the settings of databases and roles, and
//     every version of PgBouncer takes it, and keeps it on whichever connection of the server.
//   - Transactions of several statements say which isolation they need. For single ones the session does, where there is
//     one; behind a pooler they may collide (40001) more often, which is no different from a lock then.
//   - What else matters to a statement is set in its transaction, as limits are.
//   - Statements return no intervals and no bytea: as text, as behind a pooler, their form depends on IntervalStyle and
//     bytea_output.

// connectionSettings are sent when connecting.
func connectionSettings() map[string]string {
	return map[string]string{
		"client_encoding": "UTF8", "datestyle": "ISO", "standard_conforming_strings": "on", "timezone": "UTC",
	}
}

// sessionSQL is sent once on each connection that is a session.
const sessionSQL = `SET default_transaction_isolation = 'read committed'`

// settle adds the settings that statements rely on, and a name, to the parameters of connections.
func settle(params map[string]string) {
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

package repo_test

import (
	"bytes"
	"context"
	"log/slog"
	"path"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// pair is a database with a standby, and a plain connection to each. The database under test has the standby as its
// replica; what is said about that goes to said.
type pair struct {
	*bench
	standby *devdb.Cluster
	mirror  *pgx.Conn
	said    *bytes.Buffer
}

func newPair(t *testing.T, schema string) *pair {
	t.Helper()
	url := replicated.Clone(t, servicetest.Migrated(schema))
	standby := servicetest.Must(replicated.Cluster(t).Standby(t.Context(), nil))(t)
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	sql := connect(t, url)
	estate := &servicetest.Estate{T: t, SQL: map[string]*pgx.Conn{"main": sql}}
	p := &pair{bench: &bench{T: t, estate: estate, url: url, sql: sql}, standby: standby, said: &bytes.Buffer{}}
	p.mirror = connect(t, p.mirrorURL())
	p.Database = p.opened(url, p.mirrorURL())
	return p
}

// opened is the database with another URL for itself, or for its replica.
func (p *pair) opened(url, replica string) *repo.Database {
	p.Helper()
	d := open(p.T, url)
	servicetest.NoError(p.T, d.UseReplica(p.Context(), replica, slog.New(slog.NewTextHandler(p.said, nil))))
	return d
}

// mirrorURL is that of the database on the standby.
func (p *pair) mirrorURL() string {
	name, _, _ := strings.Cut(path.Base(p.url), "?")
	return p.standby.URL(name)
}

// pause stops the standby's replay, replay lets it go on until it has caught up.
func (p *pair) pause() {
	p.Helper()
	p.caughtUp()
	p.onMirror(`SELECT pg_wal_replay_pause()`)
	p.until(func() bool { return p.onMirror(`SELECT pg_get_wal_replay_pause_state()`) == "paused" })
}

func (p *pair) replay() {
	p.Helper()
	p.onMirror(`SELECT pg_wal_replay_resume()`)
	p.caughtUp()
}

func (p *pair) caughtUp() {
	p.Helper()
	written := p.value(`SELECT pg_current_wal_insert_lsn()`)
	p.until(func() bool { return p.onMirror(`SELECT pg_last_wal_replay_lsn() >= '`+written+`'::pg_lsn`) == "true" })
}

func (p *pair) until(holds func() bool) {
	p.Helper()
	devdb.Eventually(p, "the replica", holds)
}

// onMirror reads one value on the standby as text.
func (p *pair) onMirror(sql string) (v string) {
	p.Helper()
	if err := p.mirror.QueryRow(p.Context(), "SELECT ("+sql+")::text").Scan(&v); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
	return v
}

package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/inactivetoken"
	"github.com/caretaker-go/caretaker/service/placeholderuser"
)

// mirrored is a main with a standby that notes every statement. Services read it; what they say is in log.
type mirrored struct {
	*estate
	standby *devdb.Cluster
	mirror  *pgx.Conn
	log     *lockedBuffer
}

func newMirrored(t *testing.T) *mirrored {
	t.Helper()
	url := replicated.Clone(t, migrated("all"))
	standby, err := replicated.Cluster(t).Standby(t.Context(), map[string]string{"log_statement": "all"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	m := &mirrored{estate: &estate{t: t, urls: map[string]string{}, sql: map[string]*pgx.Conn{}}, standby: standby, log: &lockedBuffer{}}
	m.add("main", url)
	if err := m.open[0].UseReplica(t.Context(), m.mirrorURL(), slog.New(slog.NewJSONHandler(m.log, nil))); err != nil {
		t.Fatal(err)
	}
	if m.mirror, err = pgx.Connect(t.Context(), m.mirrorURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.mirror.Close(context.Background()) })
	m.replayed("somebody")
	return m
}

// replayed lets workers have made their last write long ago.
func (m *mirrored) replayed(workers ...string) {
	m.t.Helper()
	for _, w := range workers {
		m.exec("main", `INSERT INTO maintenance.leases VALUES ($1, 'us', 1, now(), now(), now())`, w)
		m.exec("main", `INSERT INTO maintenance.replica_positions VALUES ($1, 1, 1, '0/1')`, w)
	}
}

// mirrorURL is that of main on the standby.
func (m *mirrored) mirrorURL() string {
	name, _, _ := strings.Cut(path.Base(m.urls["main"]), "?")
	return m.standby.URL(name)
}

func (m *mirrored) onMirror(sql string) (v string) {
	m.t.Helper()
	if err := m.mirror.QueryRow(m.t.Context(), "SELECT ("+sql+")::text").Scan(&v); err != nil {
		m.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// caughtUp waits until the standby has replayed everything, and is not left alone any more.
func (m *mirrored) caughtUp() {
	m.t.Helper()
	written := m.value("main", `SELECT pg_current_wal_insert_lsn()`)
	waitFor(m.t, "the standby", func() bool { return m.onMirror(`SELECT pg_last_wal_replay_lsn() >= '`+written+`'::pg_lsn`) == "true" })
	m.inFavour()
}

// inFavour waits until the replica is not left alone any more.
func (m *mirrored) inFavour() {
	m.t.Helper()
	waitFor(m.t, "the replica to be read", func() bool {
		r := m.open[0].Reader("somebody", 0)
		if _, err := m.open[0].CountDiscardedJobs(repo.ReadBy(m.t.Context(), r), "none", "{}"); err != nil {
			m.t.Fatal(err)
		}
		places, _ := r.Source()
		return places == "replica"
	})
}

func (m *mirrored) pause() {
	m.t.Helper()
	m.caughtUp()
	m.onMirror(`SELECT pg_wal_replay_pause()`)
	waitFor(m.t, "the pause", func() bool { return m.onMirror(`SELECT pg_get_wal_replay_pause_state()`) == "paused" })
}

func (m *mirrored) replay() {
	m.t.Helper()
	m.onMirror(`SELECT pg_wal_replay_resume()`)
	m.caughtUp()
}

// service with a queue, small batches and its log in m.log.
func (m *mirrored) service(change ...func(*service.Config)) *service.Service {
	m.t.Helper()
	return m.estate.service("", append([]func(*service.Config){m.withQueue, logTo(m.log), func(c *service.Config) {
		service.Settings[placeholderuser.Config](c).BatchSize = 1
		service.Settings[inactivetoken.Config](c).BatchSize = 1
	}}, change...)...)
}

// run runs a worker and says where it found its candidates.
func (m *mirrored) run(s *service.Service, worker, counts string) (from string) {
	m.t.Helper()
	r, err := s.RunBatch(m.t.Context(), service.RunRequest{Worker: worker})
	if err != nil {
		m.t.Fatal(err)
	}
	wantState(m.t, r, repo.RunSucceeded)
	wantCounts(m.t, r, counts)
	return m.readFrom(r.ID)
}

// readFrom is what the log says of a run's candidates.
func (m *mirrored) readFrom(run string) string {
	m.t.Helper()
	for line := range strings.Lines(m.log.String()) {
		var said struct {
			Msg  string `json:"msg"`
			Run  string `json:"run_id"`
			From string `json:"read_from"`
		}
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "run finished" && said.Run == run {
			return said.From
		}
	}
	m.t.Fatalf("run %s has not finished: %s", run, m.log)
	return ""
}

// wantRead fails the test unless the standby has been asked so many times for something, or with -1 at all.
func (m *mirrored) wantRead(what string, times int) {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.standby.Dir(), "postgres.log"))
	if err != nil {
		m.t.Fatal(err)
	}
	if n := bytes.Count(text, []byte(what)); n != times && (times >= 0 || n == 0) {
		m.t.Errorf("the standby was asked %d times for %s, want %d", n, what, times)
	}
}

// candidates has three candidates for each worker: bots 201 to 203, placeholders 301 to 303, groups 401 to 403, ghosts 501
// to 503.
func (m *mirrored) candidates() {
	m.t.Helper()
	m.exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	m.exec("main", `INSERT INTO application_settings (deletion_adjourned_period, resource_access_tokens_settings) VALUES (14, $1)`, tokenSettings("42"))
	m.exec("main", `SELECT setval('users_id_seq', 1000), setval('namespaces_id_seq', 1000)`)
	m.user(5, 5, 1)
	m.user(101, 11, 1)
	m.bots(201, 202, 203)
	groups, ghosts := &groupEstate{estate: m.estate}, &ghostEstate{estate: m.estate}
	groups.user(1)
	for i := range 3 {
		m.detail(301+i, 0, "NULL")
		groups.owned(401+i, 20)
	}
	ghosts.doomed(501, 502, 503)
}

// candidateQueries are what the workers look for candidates with.
func candidateQueries() map[string]string {
	return map[string]string{
		tokenWorker: "AS idle", placeholderWorker: "eligible_for_deletion ORDER BY id", groupWorker: "candidates AS MATERIALIZED",
		ghostWorker: "q.consume_after <= $1",
	}
}

package servicetest

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
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/run"
)

// Mirrored is a main with a standby that notes every statement. Services read it. log has their
// lines.
type Mirrored struct {
	*Estate
	Standby *devdb.Cluster
	Mirror  *pgx.Conn
	Log     *Buffer
}

// NewMirrored starts the standby, which takes a few seconds.
func NewMirrored(t *testing.T) *Mirrored {
	t.Helper()
	url := replicated.Clone(t, Migrated("all"))
	standby, err := replicated.Cluster(t).Standby(t.Context(), map[string]string{"log_statement": "all"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	m := &Mirrored{Estate: &Estate{T: t, URLs: map[string]string{}, SQL: map[string]*pgx.Conn{}}, Standby: standby, Log: &Buffer{}}
	m.Add("main", url)
	if err := m.Open[0].UseReplica(t.Context(), m.MirrorURL(), slog.New(slog.NewJSONHandler(m.Log, nil))); err != nil {
		t.Fatal(err)
	}
	if m.Mirror, err = pgx.Connect(t.Context(), m.MirrorURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Mirror.Close(context.Background()) })
	m.Replayed("somebody")
	return m
}

// Replayed records a last write of each worker that the standby has long replayed.
func (m *Mirrored) Replayed(workers ...string) {
	m.T.Helper()
	for _, w := range workers {
		m.Exec("main", `INSERT INTO maintenance.leases VALUES ($1, 'us', 1, now(), now(), now())`, w)
		m.Exec("main", `INSERT INTO maintenance.replica_positions VALUES ($1, 1, 1, '0/1')`, w)
	}
}

// MirrorURL is that of main on the standby.
func (m *Mirrored) MirrorURL() string {
	name, _, _ := strings.Cut(path.Base(m.URLs["main"]), "?")
	return m.Standby.URL(name)
}

// OnMirror is a query's value on the standby.
func (m *Mirrored) OnMirror(sql string) string {
	m.T.Helper()
	return devdb.OnStandby(m.T, m.Mirror, sql)
}

// CaughtUp waits until the standby has replayed everything, and is not skipped any more.
func (m *Mirrored) CaughtUp() {
	m.T.Helper()
	written := m.Value("main", `SELECT pg_current_wal_insert_lsn()`)
	devdb.Eventually(m.T, "the standby", func() bool { return m.OnMirror(`SELECT pg_last_wal_replay_lsn() >= '`+written+`'::pg_lsn`) == "true" })
	m.InFavour()
}

// InFavour waits until the replica is not skipped any more.
func (m *Mirrored) InFavour() {
	m.T.Helper()
	devdb.Eventually(m.T, "the replica to be read", func() bool {
		r := m.Open[0].Reader("somebody", 0)
		if _, err := m.Open[0].Jobs.CountDiscardedJobs(repo.ReadBy(m.T.Context(), r), "none", "{}"); err != nil {
			m.T.Fatal(err)
		}
		places, _ := r.Source()
		return places == "replica"
	})
}

// Pause lets the standby catch up, and then replay nothing.
func (m *Mirrored) Pause() {
	m.T.Helper()
	m.CaughtUp()
	m.OnMirror(`SELECT pg_wal_replay_pause()`)
	devdb.Eventually(m.T, "the pause", func() bool { return m.OnMirror(`SELECT pg_get_wal_replay_pause_state()`) == "paused" })
}

// Replay lets the replica go on, and waits until it has caught up.
func (m *Mirrored) Replay() {
	m.T.Helper()
	m.OnMirror(`SELECT pg_wal_replay_resume()`)
	m.CaughtUp()
}

// Service with a queue, small batches and its log in m.log.
func (m *Mirrored) Service(change ...func(*service.Config)) *service.Service {
	m.T.Helper()
	return m.Estate.Service("", append([]func(*service.Config){m.WithQueue, LogTo(m.Log), func(c *service.Config) {
		service.Settings[placeholder.Config](c).BatchSize = 1
		service.Settings[token.Config](c).BatchSize = 1
	}}, change...)...)
}

// Run runs a worker and reports where it found its candidates.
func (m *Mirrored) Run(s *service.Service, worker, counts string) (from string) {
	m.T.Helper()
	r, err := s.RunBatch(m.T.Context(), run.Request{Worker: worker})
	if err != nil {
		m.T.Fatal(err)
	}
	WantState(m.T, r, control.RunSucceeded)
	WantCounts(m.T, r, counts)
	return m.ReadFrom(r.ID)
}

// ReadFrom is what the log reports of a run's candidates.
func (m *Mirrored) ReadFrom(run string) string {
	m.T.Helper()
	for line := range strings.Lines(m.Log.String()) {
		var said struct {
			Msg  string `json:"msg"`
			Run  string `json:"run_id"`
			From string `json:"read_from"`
		}
		if json.Unmarshal([]byte(line), &said) == nil && said.Msg == "run finished" && said.Run == run {
			return said.From
		}
	}
	m.T.Fatalf("run %s has not finished: %s", run, m.Log)
	return ""
}

// WantRead fails the test unless the standby has been asked so many times for something, or with -1 at all.
func (m *Mirrored) WantRead(what string, times int) {
	m.T.Helper()
	if n := m.Asked(what); n != times && (times >= 0 || n == 0) {
		m.T.Errorf("the standby received %d queries for %s, want %d", n, what, times)
	}
}

// Asked is how many times the standby has been asked for something.
func (m *Mirrored) Asked(what string) int {
	m.T.Helper()
	text, err := os.ReadFile(filepath.Join(m.Standby.Dir(), "postgres.log"))
	if err != nil {
		m.T.Fatal(err)
	}
	return bytes.Count(text, []byte(what))
}

// Candidates has three candidates for each worker: bots 201 to 203, placeholders 301 to 303, groups 401 to 403, ghosts 501
// to 503.
func (m *Mirrored) Candidates() {
	m.T.Helper()
	m.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	m.Exec("main", `INSERT INTO application_settings (deletion_adjourned_period, resource_access_tokens_settings) VALUES (14, $1)`, TokenSettings("42"))
	m.Exec("main", `SELECT setval('users_id_seq', 1000), setval('namespaces_id_seq', 1000)`)
	m.User(5, 5, 1)
	m.User(101, 11, 1)
	m.Bots(201, 202, 203)
	groups, ghosts := &Groups{Estate: m.Estate}, &Ghosts{Estate: m.Estate}
	groups.User(1)
	for i := range 3 {
		m.Detail(301+i, 0, "NULL")
		groups.Owned(401+i, 20)
	}
	ghosts.Doomed(501, 502, 503)
}

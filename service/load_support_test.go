package service_test

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// archiveFull is a file in the folder of the data that lets archiving fail.
const archiveFull = "archive_full"

// loaded is a cluster whose load tests cause: it archives, has standbys, and vacuums by itself.
var loaded = devdb.Tests{Settings: map[string]string{
	"synchronous_commit": "on", "archive_mode": "on", "archive_command": "test ! -e " + archiveFull, "autovacuum_naptime": "1s",
	// A standby that is being made must find what others switch away.
	"wal_keep_size": "1GB", "deadlock_timeout": "10s",
}}

type onLoaded struct{ tests *testing.M }

func (l onLoaded) Run() int { return loaded.Run(l.tests) }

// loadedEstate is a main on that cluster with a table c of three rows for each of n deleted parents.
func loadedEstate(t *testing.T, schema string, n int) *estate {
	t.Helper()
	e := &estate{t: t, urls: map[string]string{}, sql: map[string]*pgx.Conn{}}
	e.add("main", loaded.Clone(t, migrated(schema)))
	e.exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	e.exec("main", `INSERT INTO c (p_id) SELECT i % $1 + 1 FROM generate_series(1, 3 * $1) i`, n)
	e.deleted("main", "p", 1, n)
	return e
}

// as opens main once more, as a role that is no superuser.
func (e *estate) as(role string) *repo.Database {
	e.t.Helper()
	e.exec("main", `DO $$ BEGIN CREATE ROLE `+role+` LOGIN PASSWORD 'x'; EXCEPTION WHEN duplicate_object OR unique_violation THEN END $$;
		GRANT ALL ON SCHEMA maintenance, public TO `+role+`; GRANT ALL ON ALL TABLES IN SCHEMA maintenance, public TO `+role)
	u, err := url.Parse(e.urls["main"])
	if err != nil {
		e.t.Fatal(err)
	}
	u.User = url.UserPassword(role, "x")
	d, err := repo.Open(context.Background(), "main", u.String())
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(d.Close)
	return d
}

// standby is a standby of that cluster, with a connection to it.
func standby(t *testing.T) *pgx.Conn {
	t.Helper()
	s, err := loaded.Cluster(t).Standby(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	conn, err := pgx.Connect(context.Background(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// loadLimits are limits of the load, and few records a batch, so that a run looks often.
func loadLimits(l service.LoadConfig) func(*service.Config) {
	return func(c *service.Config) {
		c.Load = l
		service.Settings[loosefk.Config](c).BatchSize = 2
		// What a test waits for besides the load must not end its run.
		if service.Settings[loosefk.Config](c).MaxRuntime == 0 {
			service.Settings[loosefk.Config](c).MaxRuntime = 2 * patience
		}
	}
}

// lockQueue lets somebody wait for a lock on a table behind somebody else, for so long when it returns, until the function
// that it returns is called.
func (e *estate) lockQueue(table, waited string) (dissolve func()) {
	e.t.Helper()
	ctx := context.Background()
	first, second := e.connect("main"), e.connect("main")
	if _, err := first.Exec(ctx, `BEGIN; LOCK TABLE `+table+` IN ACCESS SHARE MODE`); err != nil {
		e.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := second.Exec(ctx, `BEGIN; LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE; COMMIT`)
		done <- err
	}()
	e.eventually("main", `SELECT coalesce(max(clock_timestamp() - waitstart) > interval '`+waited+`', false) FROM pg_locks
		WHERE NOT granted AND relation = '`+table+`'::regclass`, "true")
	dissolved := false
	dissolve = func() {
		if dissolved {
			return
		}
		dissolved = true
		if _, err := first.Exec(ctx, `COMMIT`); err != nil {
			e.t.Error(err)
		}
		if err := <-done; err != nil {
			e.t.Error(err)
		}
	}
	e.t.Cleanup(dissolve)
	return dissolve
}

// throttled waits until the worker's status says that it is slowed down, with these words.
func throttled(t *testing.T, s *service.Service, words string) {
	t.Helper()
	waitFor(t, "the load to be over a limit: "+words, func() bool {
		st := status(t, s)
		over := st.Condition == service.ConditionThrottled
		if st.Condition == service.ConditionRunning {
			over = strings.Contains(st.ConditionDetail, "slowed down")
		}
		return over && strings.Contains(st.ConditionDetail, words)
	})
}

// spared waits until it does not.
func spared(t *testing.T, s *service.Service) {
	t.Helper()
	waitFor(t, "the load to be below its limits", func() bool { return status(t, s).Condition == service.ConditionIdle })
}

// keepAll is keep for lines of all levels.
func (l *logBook) keepAll(c *service.Config) { c.Logger = slog.New(slog.NewTextHandler(l, nil)) }

// wantEarly fails the test unless the run ended early for this reason.
func wantEarly(t *testing.T, r service.Run, reason string) {
	t.Helper()
	wantState(t, r, repo.RunSucceeded)
	if !r.OverLimit || !strings.HasPrefix(r.Reason, reason) {
		t.Errorf("over_limit %t, reason %q, want %q", r.OverLimit, r.Reason, reason)
	}
}

// wantEverything fails the test unless the run did everything.
func wantEverything(t *testing.T, r service.Run) {
	t.Helper()
	wantState(t, r, repo.RunSucceeded)
	if r.OverLimit || r.Reason != "" {
		t.Errorf("over_limit %t, reason %q", r.OverLimit, r.Reason)
	}
}

const short = 2 * time.Second

package run_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestRunBatch_EndThatMainBreaksOrRefuses(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	log := &servicetest.Buffer{}
	s := e.Service(servicetest.OneChild, servicetest.LogTo(log))
	// The lease is free although the connection that releases it is ended.
	e.Exec("main", `CREATE TABLE c (p_id bigint); CREATE SEQUENCE lease_ends;
		CREATE FUNCTION end_first() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN IF nextval('lease_ends') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;
		CREATE TRIGGER end_first BEFORE UPDATE ON maintenance.leases FOR EACH ROW WHEN (NEW.expires_at <= now()) EXECUTE FUNCTION end_first()`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	e.WantLease("main", 1, false)
	e.Want("main", `SELECT last_value FROM lease_ends`, "2")

	// An end that cannot be recorded is given up and logged.
	e.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON maintenance.runs FOR EACH ROW WHEN (NEW.state = 'succeeded') EXECUTE FUNCTION refuse()`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	text := log.String()
	check(t, strings.Count(text, "end of the run not recorded, it will show as LEASE_LOST") == 1 && !strings.Contains(text, "tried again"),
		"%v", text)
}

// countedSQL counts the statements that close abandoned runs.
const countedSQL = `CREATE SEQUENCE closes;
	CREATE FUNCTION count_closes() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF current_query() LIKE '%LEASE_LOST%' THEN PERFORM nextval('closes'); END IF; RETURN NULL; END $$;
	CREATE TRIGGER count_closes BEFORE UPDATE ON maintenance.runs FOR EACH STATEMENT EXECUTE FUNCTION count_closes()`

func TestStatus_OfAllWorkersAsksMainOnceAndTakesFewConnections(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	e.Exec("main", countedSQL)
	s := e.Service(servicetest.OneChild, e.WithQueue)
	servicetest.Must(s.Status(t.Context(), ""))(t)
	e.Want("main", `SELECT concat_ws(' ', last_value, is_called) FROM closes`, "1 t")
	// While nobody sees the leases, those who ask for them can be counted.
	release := e.Hold(`LOCK TABLE maintenance.leases`)
	done := make(chan error, 1)
	go func() {
		_, err := s.Status(context.Background(), "")
		done <- err
	}()
	looks := func() (n int) {
		t.Helper()
		servicetest.Must(fmt.Sscan(e.Value("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
			AND query LIKE '%FROM maintenance.leases l WHERE l.name = ANY%'`), &n))(t)
		return n
	}
	devdb.Eventually(t, "a worker to be looked at", func() bool { return looks() > 0 })
	// For less time than a look may take: one that has been given up waits on until the server hears of it.
	most := 0
	for range 100 {
		most = max(most, looks())
	}
	release()
	servicetest.NoError(t, <-done)
	check(t, most <= 3, "%d workers were looked at side by side, want 3 at most", most)
}

func TestWatchRun_OfAnotherReplicaOnlyReadsWhileTheRunGivesSignsOfLife(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (1)`)
	e.Deleted("main", "p", 1, 1)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	r := servicetest.Begin(t, e.Service(servicetest.OneChild), "main")
	e.AtGate("main", servicetest.App)
	e.Exec("main", countedSQL)
	other := e.Service(servicetest.OneChild)
	lifted := false
	err := other.WatchRun(t.Context(), r.ID, func(service.Run) error {
		if !lifted {
			lifted = true
			e.Lift("main", servicetest.App)
		}
		return nil
	})
	servicetest.NoError(t, err)
	e.Want("main", `SELECT is_called FROM closes`, "false")
	// One that has gone silent is closed by whoever looks.
	e.Exec("main", `UPDATE maintenance.runs SET state = 'running', finished_at = NULL, heartbeat_ttl = '0'`)
	seen := servicetest.Must(other.Run(t.Context(), r.ID))(t)
	check(t, seen.State == repo.RunFailed, "%s", seen.State)
}

func TestBackoff_WaitsLongerWithEveryFailureUpToItsMost(t *testing.T) {
	t.Parallel()
	b := service.Backoff{First: time.Second, Most: 5 * time.Second}
	for round := range 2 {
		for n, seconds := range []int{1, 2, 4, 5, 5, 5} {
			wait, news := b.After(errors.New("down"))
			most := time.Duration(seconds) * time.Second
			check(t, wait >= most/2 && wait <= most, "failure %d: waits %s, want %s at most and half of it at least", n+1, wait, most)
			check(t, news == (n == 0), "failure %d: news %t", n+1, news)
		}
		wait, news := b.After(nil)
		check(t, wait == 0 && news, "round %d: waits %s after the first success, news %t", round, wait, news)
		if _, news := b.After(nil); news {
			t.Error("a further success is no news")
		}
	}
}

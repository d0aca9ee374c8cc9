package run_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// deadRun records a run whose process has died long ago, in this trace.
func deadRun(e *servicetest.Estate, id, worker, database, trace string) {
	e.T.Helper()
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, replica, trace_id, lease_epoch, counts, started_at, heartbeat_at, heartbeat_ttl)
		VALUES ($1::text::uuid, $2, $3, 'schedule', 'running', 'vm/1/x', $4, 3, '{"migrated_users": 7}', now() - interval '10 minutes', now() - interval '5 minutes', '70 s')`,
		id, worker, database, trace)
}

func TestAbandonedRun_IsCountedLoggedAndTracedByWhoeverClosesIt(t *testing.T) {
	m, spans := servicetest.NewMeter(t), servicetest.Tracing(t)
	e := servicetest.New(t, servicetest.Small, "main")
	log := &servicetest.Buffer{}
	s := e.Service(servicetest.OneChild, servicetest.TracedLogTo(log))
	other := e.Service(servicetest.OneChild)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	deadRun(e, "0197c000-0000-7000-8000-000000000001", "ghost_user_migration", "", trace)
	deadRun(e, "0197c000-0000-7000-8000-000000000002", servicetest.LooseForeignKeys, "main", "")
	deadRun(e, "0197c000-0000-7000-8000-000000000003", "worker_of_tomorrow", "", "")
	for _, look := range []*service.Service{s, other, s} {
		assert.Must(look.Runs(t.Context(), run.Filter{Limit: 10}))(t)
	}
	for name, want := range map[string]int64{
		"maintenance.runs worker=ghost_user_migration database=main outcome=failed": 1, "maintenance.leases.lost worker=ghost_user_migration database=main": 1,
		"maintenance.runs worker=loose_foreign_keys_cleanup database=main outcome=failed": 1, "maintenance.sli.error database=main error=true": 1,
	} {
		name, attributes, _ := strings.Cut(name, " ")
		assert.Equal(t, m.Counter(name, attributes), want, name, attributes)
	}
	line := map[string]any{}
	for text := range strings.Lines(log.String()) {
		if !strings.Contains(text, "ghost_user_migration") {
			continue
		}
		assert.NoError(t, json.Unmarshal([]byte(text), &line))
	}
	for key, want := range map[string]any{
		"msg": "run finished", "level": "ERROR", "outcome": "failed", "reason": "LEASE_LOST", "trigger": "schedule", "database": "main", "trace_id": trace,
		"migrated_users": 7.0, "duration_seconds": 300.0, "died_on": "vm/1/x", "error": "no heartbeat from the process that ran it; it has done at least what its counts say",
	} {
		assert.That(t, line[key] == want, "%s is %v, want %v", key, line[key], want)
	}
	assert.Equal(t, strings.Count(log.String(), "run finished"), 3, "lines, one a run", log)
	for _, span := range servicetest.Named(spans, "maintenance.run") {
		if span.SpanContext().TraceID().String() != trace {
			continue
		}
		servicetest.WantAttributes(t, span, map[string]string{"maintenance.outcome": control.RunFailed, "maintenance.reason": "LEASE_LOST", "maintenance.count.migrated_users": "7"})
		if span.Parent().SpanID().IsValid() || span.EndTime().Sub(span.StartTime()).Seconds() != 300 || span.Status().Code.String() != "Error" {
			t.Errorf("parent %v, from %s to %s, %+v", span.Parent(), span.StartTime(), span.EndTime(), span.Status())
		}
		id := span.SpanContext().SpanID().String()
		assert.That(t, id == "8000000000000001", "span %s: what was begun below the lost one does not lead to it", id)
		return
	}
	t.Error("no span in the trace of the run")
}

func TestAbandonedRun_IsCountedWhenMetricsAreRead(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main")
	e.Service(servicetest.OneChild, func(c *service.Config) { c.SchedulerOff = true })
	deadRun(e, "0197c000-0000-7000-8000-000000000001", "ghost_user_migration", "", "")
	m.Values("maintenance.paused", "")
	n := m.Counter("maintenance.runs", "worker=ghost_user_migration outcome=failed")
	assert.That(t, n == 1, "%d runs failed, want 1", n)
}

// wantToldOnce fails the test unless a run on main is counted and traced as the failed run that
// others have closed. It must be logged so and as corrected.
func wantToldOnce(t *testing.T, m *servicetest.Meter, spans *tracetest.SpanRecorder, log *servicetest.Buffer) {
	t.Helper()
	for name, want := range map[string]int64{
		"maintenance.runs ": 1, "maintenance.runs outcome=failed": 1, "maintenance.leases.lost ": 1,
		"maintenance.sli.error error=true": 1, "maintenance.sli.error error=false": 0, "maintenance.sli.apdex ": 0,
	} {
		name, attributes, _ := strings.Cut(name, " ")
		assert.Equal(t, m.Counter(name, attributes), want, name, attributes)
	}
	if text := log.String(); strings.Count(text, "run finished") != 1 || strings.Count(text, `"level":"ERROR"`) != 1 || strings.Count(text, "record corrected") != 1 {
		t.Error(text)
	}
	sent := servicetest.Named(spans, "maintenance.run")
	assert.Require(t, len(sent) == 1 && sent[0].SpanContext().SpanID() == servicetest.Named(spans, "maintenance.batch")[0].Parent().SpanID(),
		"%d spans of the run", len(sent))
	servicetest.WantAttributes(t, sent[0], map[string]string{"maintenance.outcome": control.RunFailed, "maintenance.reason": "LEASE_LOST"})
}

func TestAbandonedRun_WhoseProcessOnlyStoodStillIsToldOnce(t *testing.T) {
	m, spans := servicetest.NewMeter(t), servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 10)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	log := &servicetest.Buffer{}
	s, other := e.Service(servicetest.OneChild, servicetest.LogTo(log)), e.Service(servicetest.OneChild, servicetest.LogTo(log))
	servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	e.Exec("main", `UPDATE maintenance.runs SET heartbeat_ttl = '0'`)
	assert.Must(other.Runs(t.Context(), run.Filter{Limit: 1}))(t)
	e.Exec("main", `UPDATE maintenance.leases SET epoch = epoch + 1`)
	e.Lift("main", servicetest.App)
	devdb.Eventually(t, "the end of the run", func() bool { return strings.Contains(log.String(), "record corrected") })
	wantToldOnce(t, m, spans, log)
	e.Want("main", `SELECT error FROM maintenance.runs`, "the lease was lost, but committed changes are kept and the next run resumes")
}

func TestAbandonedRun_WhoseEndCouldNotBeRecordedInTimeIsToldOnce(t *testing.T) {
	m, spans := servicetest.NewMeter(t), servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 1)
	e.Exec("main", `CREATE TABLE outage (); CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN IF to_regclass('outage') IS NOT NULL THEN RAISE 'not now' USING ERRCODE = 'cannot_connect_now'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON maintenance.runs FOR EACH ROW WHEN (NEW.state = 'succeeded') EXECUTE FUNCTION refuse()`)
	log := &servicetest.Buffer{}
	s, other := e.Service(servicetest.OneChild, servicetest.LogTo(log)), e.Service(servicetest.OneChild, servicetest.LogTo(log))
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, control.RunSucceeded)
	text := log.String()
	assert.Require(t, strings.Contains(text, "final run state not saved, retrying") && !strings.Contains(text, "run finished"), "%v", text)
	e.Exec("main", `UPDATE maintenance.runs SET heartbeat_ttl = '0'`)
	assert.Must(other.Runs(t.Context(), run.Filter{Limit: 1}))(t)
	e.Exec("main", `DROP TABLE outage`)
	devdb.Eventually(t, "the end of the run", func() bool { return strings.Contains(log.String(), "record corrected") })
	wantToldOnce(t, m, spans, log)
	e.Want("main", `SELECT state FROM maintenance.runs`, control.RunSucceeded)
}

func TestRunBatch_EndThatMainBreaksOrRefuses(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	log := &servicetest.Buffer{}
	s := e.Service(servicetest.OneChild, servicetest.LogTo(log))
	// The lease is free although the connection that releases it is ended.
	e.Exec("main", `CREATE TABLE c (p_id bigint); CREATE SEQUENCE lease_ends;
		CREATE FUNCTION end_first() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN IF nextval('lease_ends') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;
		CREATE TRIGGER end_first BEFORE UPDATE ON maintenance.leases FOR EACH ROW WHEN (NEW.expires_at <= now()) EXECUTE FUNCTION end_first()`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	e.WantLease("main", 1, false)
	e.Want("main", `SELECT last_value FROM lease_ends`, "2")

	// An end that cannot be recorded is given up and logged.
	e.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON maintenance.runs FOR EACH ROW WHEN (NEW.state = 'succeeded') EXECUTE FUNCTION refuse()`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	text := log.String()
	assert.That(t, strings.Count(text, "final run state rejected by main") == 1 && !strings.Contains(text, "tried again"),
		"%v", text)
}

// countedSQL counts the statements that close abandoned runs.
const countedSQL = `CREATE SEQUENCE closes;
	CREATE FUNCTION count_closes() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF current_query() LIKE '%LEASE_LOST%' THEN PERFORM nextval('closes'); END IF; RETURN NULL; END $$;
	CREATE TRIGGER count_closes BEFORE UPDATE ON maintenance.runs FOR EACH STATEMENT EXECUTE FUNCTION count_closes()`

func TestStatus_OfAllWorkersAsksMainOnceAndTakesFewConnections(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main", "main")
	e.Exec("main", countedSQL)
	s := e.Service(servicetest.OneChild, e.WithQueue)
	assert.Must(s.Status(t.Context(), ""))(t)
	e.Want("main", `SELECT concat_ws(' ', last_value, is_called) FROM closes`, "1 t")
	// While no query sees the leases, the waiting queries can be counted.
	release := e.Hold(`LOCK TABLE maintenance.leases`)
	done := make(chan error, 1)
	go func() {
		_, err := s.Status(context.Background(), "")
		done <- err
	}()
	looks := func() (n int) {
		t.Helper()
		assert.Must(fmt.Sscan(e.Value("main", `SELECT count(*) FROM pg_stat_activity 
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FROM maintenance.leases l WHERE l.name = ANY%'`), &n))(t)
		return n
	}
	devdb.Eventually(t, "a worker to be looked at", func() bool { return looks() > 0 })
	// For less time than a look may take: one that has been given up waits on until the server hears of it.
	most := 0
	for range 100 {
		most = max(most, looks())
	}
	release()
	assert.NoError(t, <-done)
	assert.That(t, most <= 3, "%d workers were looked at side by side, want 3 at most", most)
}

func TestWatchRun_OfAnotherReplicaOnlyReadsWhileTheRunGivesSignsOfLife(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (1)`)
	e.Deleted("main", "p", 1, 1)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	r := servicetest.Begin(t, e.Service(servicetest.OneChild), "main")
	e.AtGate("main", servicetest.App)
	e.Exec("main", countedSQL)
	other := e.Service(servicetest.OneChild)
	lifted := false
	err := other.WatchRun(t.Context(), r.ID, func(run.Run) error {
		if !lifted {
			lifted = true
			e.Lift("main", servicetest.App)
		}
		return nil
	})
	assert.NoError(t, err)
	e.Want("main", `SELECT is_called FROM closes`, "false")
	// The next reader closes a run that has gone silent.
	e.Exec("main", `UPDATE maintenance.runs SET state = 'running', finished_at = NULL, heartbeat_ttl = '0'`)
	seen := assert.Must(other.Run(t.Context(), r.ID))(t)
	assert.That(t, seen.State == control.RunFailed, "%s", seen.State)
}

func TestBackoff_WaitsLongerWithEveryFailureUpToItsMost(t *testing.T) {
	t.Parallel()
	b := run.Backoff{First: time.Second, Most: 5 * time.Second}
	for round := range 2 {
		for n, seconds := range []int{1, 2, 4, 5, 5, 5} {
			wait, news := b.After(errors.New("down"))
			most := time.Duration(seconds) * time.Second
			assert.That(t, wait >= most/2 && wait <= most, "failure %d: waits %s, want %s at most and half of it at least", n+1, wait, most)
			assert.That(t, news == (n == 0), "failure %d: news %t", n+1, news)
		}
		wait, news := b.After(nil)
		assert.That(t, wait == 0 && news, "round %d: waits %s after the first success, news %t", round, wait, news)
		if _, news := b.After(nil); news {
			t.Error("a further success is no news")
		}
	}
}

func TestRunCounts_OfAnEndThatWasNotCleanAreSettledByTheNextRunOfTheWorker(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 3)
	e.Gate("main", "c", "OLD.p_id = 2")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild)
	lost := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	// Commits without an answer, in a run that fails. Commits of a run that was already closed. And a
	// run that was closed while its database did not answer.
	const unheard = `INSERT INTO maintenance.run_counts SELECT id, 'processed_records', 5 FROM maintenance.runs WHERE reason = $1 OR state = $1`
	e.Exec("main", unheard, control.RunRunning)
	e.Exec("main", `UPDATE maintenance.leases SET epoch = epoch + 1`)
	e.Lift("main", servicetest.App)
	r := servicetest.Ended(t, s, lost.ID)
	servicetest.WantLost(t, r)
	assert.That(t, r.Counts["processed_records"] == 5, "%v", r.Counts)
	closed := lost.ID[:24] + "000000000000"
	deadRun(e, closed, servicetest.LooseForeignKeys, "main", "")
	e.Exec("main", `ALTER TABLE maintenance.receipts RENAME TO away`)
	assert.Must(s.Runs(t.Context(), run.Filter{Limit: 1}))(t)
	e.Exec("main", `ALTER TABLE maintenance.away RENAME TO receipts`)
	e.Exec("main", unheard, "LEASE_LOST")
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "processed_records=3 deleted_rows=9")
	for id, want := range map[string]int64{lost.ID: 10, closed: 5} {
		assert.Equal(t, assert.Must(s.Run(t.Context(), id))(t).Counts["processed_records"], want, id)
	}
	// A run that finds nothing to do settles them, too.
	e.Exec("main", `INSERT INTO maintenance.run_counts SELECT $1::text::uuid, unnest('{"",processed_records}'::text[]), 7`, closed)
	servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "")
	assert.Equal(t, assert.Must(s.Run(t.Context(), closed))(t).Counts["processed_records"], 7)
	e.Want("main", `SELECT count(*) FROM maintenance.run_counts`, "0")
}

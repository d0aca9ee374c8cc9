package service_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantNothingOf fails the test if a word is anywhere in the spans.
func wantNothingOf(t *testing.T, recorder *tracetest.SpanRecorder, words ...string) {
	t.Helper()
	for _, s := range recorder.Ended() {
		all := fmt.Sprint(s.Name(), s.Attributes(), s.Events(), s.Status(), s.Links())
		for _, w := range words {
			assert.That(t, !strings.Contains(all, w), "%q is in %s", w, all)
		}
	}
}

func TestTrace_TellsWhatARunDidAndWhyItStopped(t *testing.T) {
	recorder := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 8)
	s := e.Service(servicetest.OneChild, servicetest.With(func(c *lfk.Config) { c.MaxDeletes = 7 }))
	ctx, client := otel.Tracer("test").Start(t.Context(), "client")
	r := assert.Must(s.RunBatch(ctx, run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"}))(t)
	client.End()
	assert.Equal(t, r.TraceID, client.SpanContext().TraceID().String(), "the trace is the client's")
	root := servicetest.Named(recorder, "maintenance.run")[0]
	assert.Equal(t, root.Parent().SpanID(), client.SpanContext().SpanID(), "the span above the run")
	servicetest.WantSpan(t, recorder, "maintenance.run", "worker="+servicetest.LooseForeignKeys, "run_id="+r.ID, "database=main", "trigger=request",
		"lease_epoch=1", "outcome="+control.RunSucceeded, "over_limit=true", "reason="+r.Reason, "stopped_because=limit reached: max_deletes; more work remains",
		"count.deleted_rows=7", `tables=["c: 7 deleted, 0 updated"]`, `databases=["main"]`)
	batch := servicetest.WantSpan(t, recorder, "maintenance.batch", "count.deleted_rows=7", "database=main", "parent=public.p")
	assert.Equal(t, servicetest.Named(recorder, "maintenance.lease.acquire")[0].Parent().SpanID(), root.SpanContext().SpanID(), "above the lease")
	id := batch.Parent().SpanID().String()
	assert.That(t, id == strings.ReplaceAll(r.ID[19:], "-", "") && id != batch.SpanContext().SpanID().String(),
		"the span of run %s has the id %s, that of its batch %s", r.ID, id, batch.SpanContext().SpanID())
	told := servicetest.Attribute(root, "maintenance.operations")
	assert.That(t, strings.Contains(told, "clean c.p_id -> p: 2 calls, 7 rows, "), "operations %s", told)
	statements := slices.DeleteFunc(recorder.Ended(), func(s sdktrace.ReadOnlySpan) bool { return !strings.HasPrefix(s.Name(), "clean ") })
	assert.Require(t, len(statements) != 0, "no span of a statement on c")
	assert.Equal(t, statements[0].Parent().SpanID(), batch.SpanContext().SpanID(), "the span above a statement")
	servicetest.WantAttributes(t, statements[0], map[string]string{"db.system.name": "postgresql", "db.query.summary": statements[0].Name(), "maintenance.database": "main"})
	for _, plumbing := range []string{"", "SELECT set_config", "BEGIN", "COMMIT", "batch start", "pool.acquire", "prepare"} {
		assert.That(t, len(servicetest.Named(recorder, plumbing)) == 0, "there are spans %q", plumbing)
	}
	wantNothingOf(t, recorder, "$1", "WITH ", "set_config", "db.query.text")
}

func TestTrace_FailuresHaveTheirClassAndNoWordsOfTheServers(t *testing.T) {
	recorder := servicetest.Tracing(t)
	e := servicetest.NewDeletedParents(t, 5)
	e.Mine("c", "OLD.p_id = 2", "P0001")
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantState(t, r, control.RunFailed)
	root := servicetest.Named(recorder, "maintenance.run")[0]
	assert.That(t, root.Status().Description == r.Error && root.Status().Code.String() == "Error", "status %+v, want %s", root.Status(), r.Error)
	failed := slices.DeleteFunc(recorder.Ended(), func(s sdktrace.ReadOnlySpan) bool {
		return s.Status().Code.String() != "Error" || !strings.HasPrefix(s.Name(), "clean ")
	})
	assert.Require(t, len(failed) != 0, "no statement failed")
	servicetest.WantAttributes(t, failed[0], map[string]string{"error.type": "P0001", "db.response.status_code": "P0001"})
	events := failed[0].Events()
	assert.That(t, len(events) == 1 && slices.Contains(events[0].Attributes, attribute.String("exception.type", "P0001")), "events %v", events)
	servicetest.WantSpan(t, recorder, "maintenance.run", "error.type=P0001", "error="+r.Error, "stopped_because=all due work was processed")
	batch := servicetest.WantSpan(t, recorder, "maintenance.batch", "outcome=failed", "error.type=P0001", "count.rescheduled_records=1", "failed_keys=[2]")
	assert.Equal(t, batch.Status().Code.String(), "Error", "status of the batch")
	assert.Equal(t, failed[0].Status().Description, "P0001 raise_exception", "status of the statement")
	wantNothingOf(t, recorder, "secret")
}

func TestTrace_BatchesAreLinkedToTheDeletionsThatCausedThem(t *testing.T) {
	recorder := servicetest.Tracing(t)
	e := servicetest.New(t, "", "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 60);
		CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT generate_series(1, 60)`)
	e.Install("p")
	e.Exec("main", `DELETE FROM p WHERE id > 50`)
	for i := range 40 {
		e.Exec("main", `SELECT set_config('caretaker.traceparent', $1, false)`, fmt.Sprintf("00-%032x-%016x-01", 1+i/2, 1+i/2))
		e.Exec("main", `DELETE FROM p WHERE id = $1`, i+1)
	}
	servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.With(func(c *lfk.Config) { c.BatchSize = 5 })), "main")
	root := servicetest.Named(recorder, "maintenance.run")[0]
	assert.Equal(t, len(root.Links()), 20, "links of the run, one for each of 20 spans")
	linked := map[string]bool{}
	for _, batch := range recorder.Ended() { // also those that a run with many spans does not send
		if batch.Name() != "maintenance.batch" {
			continue
		}
		records := assert.Must(strconv.Atoi(servicetest.Attribute(batch, "maintenance.records")))(t)
		assert.That(t, records <= 5 && len(batch.Links()) <= records, "%d links of a batch of %d records", len(batch.Links()), records)
		for _, link := range batch.Links() {
			linked[link.SpanContext.TraceID().String()] = true
		}
	}
	assert.Equal(t, len(linked), 20, "spans that the batches are linked to")
	e.Want("main", `SELECT count(*) FROM maintenance.record_traces`, "0")
}

func TestTrace_FromTheRunOverTheJobsToTheGhostMigration(t *testing.T) {
	recorder := servicetest.Tracing(t)
	g := servicetest.NewGhosts(t)
	g.User(201, 15)
	g.User(202, 15)
	g.Exec("main", `INSERT INTO import_placeholder_user_details (placeholder_user_id, namespace_id, created_at, updated_at, organization_id)
		SELECT id, NULL, now(), now(), organization_id FROM users WHERE id IN (201, 202)`)
	s := g.Service(g.WithQueue)
	ctx := context.Background()
	assert.Must(s.RunBatch(ctx, run.Request{Worker: "placeholder_user_cleanup"}))(t)
	for _, want := range [][]string{
		{"maintenance.run", `queued=["delete_placeholder_user: 2"]`},
		{"maintenance.batch", "after_id="},
		{"maintenance.batch", "after_id=2"},
		{"send delete_placeholder_user", "messaging.system=river", "messaging.destination.name=delete_placeholder_user", "messaging.batch.message_count=2", "jobs_inserted=2"},
	} {
		servicetest.WantSpan(t, recorder, want[0], want[1:]...)
	}
	g.Work(s, "delete_placeholder_user")
	g.Work(s, "delete_user")
	for _, job := range servicetest.Named(recorder, "maintenance.job") {
		assert.That(t, len(job.Links()) == 1 && !job.Parent().IsValid() && job.SpanKind().String() == "consumer",
			"%v: links %v, parent %v", job.Attributes(), job.Links(), job.Parent())
	}
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now() - interval '1 hour'`)
	assert.Must(s.RunBatch(ctx, run.Request{Worker: "ghost_user_migration"}))(t)
	wantOneType(t, recorder)
	jobs := map[trace.SpanID]string{}
	for _, j := range servicetest.Named(recorder, "maintenance.job") {
		jobs[j.SpanContext().SpanID()] = servicetest.Attribute(j, "maintenance.user_id")
	}
	for _, user := range []string{"201", "202"} {
		d := servicetest.WantSpan(t, recorder, "maintenance.deleted", "user_id="+user)
		assert.Equal(t, jobs[d.Parent().SpanID()], user, "the user of the job above the deletion")
	}
	ghost := servicetest.Named(recorder, "maintenance.run")[1]
	assert.Equal(t, len(ghost.Links()), 2, "links of the ghost migration")
	for _, l := range ghost.Links() {
		assert.That(t, jobs[l.SpanContext.SpanID()] != "", "linked to %v, which is no job", l.SpanContext)
	}
	// The last link: from what GitLab's trigger has recorded to the run that deleted the users.
	g.Exec("main", `CREATE TABLE letters (id bigserial PRIMARY KEY, user_id bigint)`)
	g.Exec("main", `CREATE INDEX ON letters (user_id); INSERT INTO letters (user_id) VALUES (201), (202)`)
	foreignKeys := g.Estate.Service("letters: [{table: users, column: user_id, on_delete: async_delete}]")
	assert.Must(foreignKeys.RunBatch(ctx, run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"}))(t)
	g.Want("main", `SELECT count(*) FROM letters`, "0")
	cleanup := servicetest.Named(recorder, "maintenance.run")[2]
	assert.That(t, len(cleanup.Links()) == 1 && cleanup.Links()[0].SpanContext.SpanID() == ghost.SpanContext().SpanID(),
		"the loose foreign keys are linked to %v, want the ghost migration", cleanup.Links())
}

// wantTrips fails the test unless these are the statements that main was sent until a run had its
// lease, by their operations.
func wantTrips(t *testing.T, recorder *tracetest.SpanRecorder, do func(context.Context) error, want ...string) {
	t.Helper()
	ctx, call := otel.Tracer("test").Start(t.Context(), "call")
	err := do(spans.WithSpans(ctx))
	if call.End(); err != nil {
		t.Fatal(err)
	}
	leases := servicetest.Named(recorder, "maintenance.lease.acquire")
	assert.Require(t, len(leases) == 1, "%d leases", len(leases))
	var trips []string
	traces := []trace.TraceID{call.SpanContext().TraceID(), leases[0].SpanContext().TraceID()}
	for _, s := range recorder.Ended() {
		if !slices.Contains(traces, s.SpanContext().TraceID()) || s.EndTime().After(leases[0].EndTime()) || strings.HasPrefix(s.Name(), "maintenance.") {
			continue
		}
		if slices.Contains(s.Attributes(), attribute.String("maintenance.database", "main")) {
			trips = append(trips, s.Name())
		}
	}
	assert.That(t, slices.Equal(trips, want), "statements %q, want %q", trips, want)
}

func TestRunBatch_ARunStartsInThreeRoundTrips(t *testing.T) {
	recorder := servicetest.Tracing(t)
	s := servicetest.NewGhosts(t).Service()
	// The third is the catalogue, of which no trace shows.
	wantTrips(t, recorder, func(ctx context.Context) error {
		_, err := s.RunBatch(ctx, run.Request{Worker: servicetest.GhostUsers})
		return err
	}, "read pauses, flags and clock", "record the run")
}

func TestRunDue_AFireStartsInThreeRoundTrips(t *testing.T) {
	recorder := servicetest.Tracing(t)
	c := newClocked(t)
	// Whether other workers are used is asked beside it.
	s := c.scheduled("* * * * *, alone")
	c.at("11-20 12:00:50")
	c.due(s)
	c.at("11-20 12:01:00")
	// The ledger is that of all workers, and is read whether a fire is due or not.
	wantTrips(t, recorder, func(ctx context.Context) error {
		err := s.RunDue(ctx)
		c.settled() //nolint:contextcheck // the test's
		return err
	}, "read scheduled runs", "read pauses, flags and clock", "claim the scheduled run")
}

// A run that finds nothing sends few statements to each database: the settings of a read are one of
// them. The fewest of some runs count. A connection prepares its statements when it first sends
// them, and a run on a busy machine has more than one heartbeat.
func TestRunBatch_ARunThatFindsNothingSendsFewStatements(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci", "sec")
	e.Exec("main", `CREATE EXTENSION pg_stat_statements;
		CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	s := e.Service(servicetest.OneChild)
	// Without their texts, which are those of the whole cluster.
	statements := func(database string) int {
		n := assert.Must(strconv.Atoi(e.Value(database, `SELECT coalesce(sum(calls), 0) FROM pg_stat_statements(false) s
			JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()`)))(t)
		return n
	}
	// How often the cluster has forgotten statements for want of room: then nothing can be said.
	forgotten := func() string { return e.Value("main", `SELECT dealloc FROM pg_stat_statements_info`) }
	e.Exec("ci", `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`)
	for _, c := range []struct {
		database  string
		main, own int
	}{{"main", 7, 0}, {"ci", 3, 5}} {
		most := map[string]int{"main": c.main, "ci": c.own}
		fewest := map[string]int{"main": math.MaxInt, "ci": math.MaxInt}
		rounds := 0
		devdb.Eventually(t, "a dozen runs to be counted", func() bool {
			known := forgotten()
			before := map[string]int{"ci": statements("ci"), "main": statements("main")}
			servicetest.WantState(t, servicetest.RunBatch(t, s, c.database), "succeeded")
			// The question from before the run is one of them.
			after := map[string]int{"main": statements("main") - 1, "ci": statements("ci") - 1}
			if forgotten() == known {
				rounds++
				for name := range most {
					fewest[name] = min(fewest[name], after[name]-before[name])
				}
			}
			return rounds == 12
		})
		for name, n := range fewest {
			assert.That(t, n <= most[name], "a run on %s sends %d statements to %s, want at most %d", c.database, n, name, most[name])
		}
	}
}

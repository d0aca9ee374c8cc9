package service_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantSeries fails the test unless there is exactly one series for each of these, "metric attribute=value attribute=value",
// with a value from the first to the second.
func wantSeries(m *servicetest.Meter, want map[string][2]float64) {
	m.T.Helper()
	for series, between := range want {
		name, attributes, _ := strings.Cut(series, " ")
		values := m.Values("maintenance."+name, attributes)
		assert.That(m.T, len(values) == 1 && values[0] >= between[0] && values[0] <= between[1],
			"%s: %v, want one of %v", series, values, between)
	}
}

// wantCounters fails the test unless the sums of these counters are so.
func wantCounters(m *servicetest.Meter, want map[string]int64) {
	m.T.Helper()
	for series, n := range want {
		name, attributes, _ := strings.Cut(series, " ")
		assert.Equal(m.T, m.Counter("maintenance."+name, attributes), n, series)
	}
}

// measuredSQL are records of a queue, a placeholder that was given up, jobs, and runs and fires of which some failed.
const measuredSQL = `
CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
CREATE INDEX ON c (p_id);
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, created_at, consume_after)
SELECT 'public.p', i, now() - interval '1 hour', now() + CASE i WHEN 1 THEN interval '1 hour' ELSE '0' END FROM generate_series(1, 3) i;
SET session_replication_role = replica;
INSERT INTO import_placeholder_user_details (placeholder_user_id, organization_id, deletion_attempts, created_at, updated_at)
VALUES (7, 1, 15, now(), now());
SET session_replication_role = origin;
INSERT INTO maintenance.pauses (worker, reason, paused_by, since)
VALUES ('loose_foreign_keys_cleanup', 'r', 'b', now() - interval '2 hours');
INSERT INTO maintenance.river_job (kind, args, state, max_attempts, queue, scheduled_at, finalized_at, attempted_at)
SELECT kind, '{}', state::maintenance.river_job_state, 25, 'default', now() - ago, CASE WHEN state = 'discarded' THEN now() END, now()
FROM (VALUES ('delete_user', 'available', interval '1 hour'), ('delete_user', 'scheduled', interval '-1 hour'), ('delete_user', 'retryable', interval '10 minutes'),
	('delete_user', 'discarded', interval '9 hours'),
	('destroy_group', 'running', interval '5 hours'), ('from_tomorrow', 'available', interval '9 hours')) j (kind, state, ago);
INSERT INTO maintenance.runs (id, worker, database, trigger, state, dry_run, started_at, finished_at, heartbeat_ttl)
SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid, 'ghost_user_migration', '', 'schedule', state, dry,
	now() - ago, now() - ago + interval '1 second', interval '1 minute'
FROM (VALUES (1, 'succeeded', false, interval '4 hours'), (2, 'failed', false, interval '3 hours'),
	(3, 'failed', false, interval '2 hours'), (4, 'succeeded', true, interval '1 hour'), (5, 'skipped', false, interval '30 minutes')) r (n, state, dry, ago);
INSERT INTO maintenance.fires (worker, fire_time, claimed_by, outcome, reason, run_id)
SELECT 'ghost_user_migration', now() - ago, '', outcome, reason, ('00000000-0000-7000-8000-00000000000' || n)::uuid
FROM (VALUES (1, 'ran', '', interval '4 hours 1 second'), (2, 'ran', '', interval '3 hours'), (3, 'ran', '', interval '2 hours'),
	(NULL, 'missed', '', interval '90 minutes'), (5, 'skipped', 'LEASE_HELD', interval '30 minutes'),
	(NULL, 'skipped', 'DISABLED', interval '20 minutes')) f (n, outcome, reason, ago);
INSERT INTO maintenance.schedules (worker, cron, accounted_until)
VALUES ('ghost_user_migration', '*/2 * * * *', now() - interval '20 minutes')`

func TestMetrics_ShowWhatMainKnows(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, "main", "main")
	e.Exec("main", measuredSQL)
	e.Service(servicetest.OneChild, e.WithQueue)
	const cleanup, ghost = "worker=loose_foreign_keys_cleanup database=main", "worker=ghost_user_migration database=main"
	none := [2]float64{0, 0}
	exactly := func(n float64) [2]float64 { return [2]float64{n, n} }
	lasting := func(seconds float64) [2]float64 { return [2]float64{seconds, seconds + 60} }
	wantSeries(m, map[string][2]float64{
		// Counters exist before the first event.
		"runs " + cleanup + " outcome=failed": none, "rows " + ghost + " action=failed_users": none, "throttled " + cleanup: none,
		"rows worker=placeholder_user_cleanup database=main action=exhausted": none, "jobs kind=destroy_group outcome=discarded": none,
		"jobs.held kind=delete_user reason=THROTTLED": none, "fires worker=inactive_token_deletion outcome=missed": none,
		"leases.lost worker=adjourned_group_deletion database=main": none,
		"sli.error database=main error=true":                        none, "sli.apdex database=main success=false": none,
		// The backlog of a paused worker that never ran.
		"backlog.pending " + cleanup: exactly(3), "backlog.due " + cleanup: exactly(2), "backlog.oldest.age " + cleanup: lasting(3600),
		"backlog.partitions " + cleanup: exactly(1), "backlog.dead worker=placeholder_user_cleanup database=main": exactly(1),
		"paused worker=loose_foreign_keys_cleanup": lasting(7200), "paused worker=ghost_user_migration": none,
		"run.limit " + cleanup: exactly(30), "database.reachable database=main": exactly(1),
		"pool.connections.max database=main role=primary": exactly(20),
		// For how long a worker fails, and which fires were in vain.
		"failing " + ghost: {10790, 10860}, "failing worker=loose_foreign_keys_cleanup": none,
		"fires.unsuccessful worker=ghost_user_migration": exactly(4), "last.success.timestamp " + ghost: {1, 1e10},
		"fires.overdue worker=ghost_user_migration": {18 * 60, 21 * 60}, "fires.overdue worker=loose_foreign_keys_cleanup": none,
		// How many jobs there are, and for how long the first has waited.
		"queue.jobs kind=delete_user state=waiting": exactly(1), "queue.jobs kind=delete_user state=scheduled": exactly(1),
		"queue.jobs kind=delete_user state=retryable": exactly(1), "queue.jobs kind=delete_user state=discarded": exactly(1),
		"queue.jobs kind=destroy_group state=running": exactly(1), "queue.jobs kind=destroy_group state=waiting": none,
		"queue.oldest.age kind=delete_user": lasting(3600), "queue.oldest.age kind=destroy_group": none,
	})
	assert.Equal(t, len(m.Values("maintenance.queue.jobs", "kind=from_tomorrow")), 0, "series of a kind of job that this version does not know")

	// One figure that fails hides no other.
	e.Exec("main", `ALTER TABLE maintenance.river_job RENAME TO hidden`)
	m = servicetest.NewMeter(t)
	e.Service(servicetest.OneChild, e.WithQueue)
	assert.Equal(t, len(m.Values("maintenance.queue.jobs", "")), 0, "series of jobs")
	wantSeries(m, map[string][2]float64{
		"paused worker=loose_foreign_keys_cleanup": lasting(7200), "failing " + ghost: {10790, 10860}, "run.limit " + cleanup: exactly(30),
	})
}

func TestMetrics_OfALoadThatNobodySeesAreMissing(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main")
	e.Service(servicetest.OneChild, servicetest.LoadLimits(load.Config{MaxLockWait: time.Second}))
	e.Open[0].Close()
	assert.Equal(t, len(m.Values("maintenance.load.excess", "")), 0, "series of the load of a database that does not answer")
	wantSeries(m, map[string][2]float64{"database.reachable database=main": {0, 0}})
}

func TestMetrics_CountRunsRowsAndStatements(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE n (p_id bigint); INSERT INTO n SELECT generate_series(1, 5)`)
	e.Exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT i % 5 + 1 FROM generate_series(1, 10) i`)
	e.Deleted("main", "p", 1, 5)
	s := e.Service(servicetest.OneChild + "n: [{table: p, column: p_id, on_delete: async_nullify}]\n")
	servicetest.DryRun(t, s)
	servicetest.RunBatch(t, s, "main")
	servicetest.RunBatch(t, s, "ci")
	fired(t, e.Service(""), servicetest.LooseForeignKeys, minute(25772283))
	const of = "worker=loose_foreign_keys_cleanup"
	const main, ci = of + " database=main", of + " database=ci"
	wantCounters(m, map[string]int64{
		"rows " + main + " action=deleted": 10, "rows " + main + " action=updated": 5, "rows " + main + " action=processed": 5,
		"rows " + ci: 0, "rows ": 20, "runs ": 3,
		"runs " + main + " outcome=succeeded": 1, "runs " + ci + " outcome=succeeded": 1, "runs " + ci + " outcome=skipped": 1,
	})
	// The dry run does not count.
	wantSeries(m, map[string][2]float64{
		"run.duration " + of: {2, 2}, "runs.over_limit " + main: {0, 0},
		"statement.duration database=main work=loose_foreign_keys_cleanup": {1, 1e6}, "statement.duration database=main work=other": {1, 1e6},
	})
}

func TestMetrics_ShowBacklogsAndLeases(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Deleted("main", "p", 1, 5)
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET created_at = now() - interval '1 hour', consume_after = now() + interval '1 hour' WHERE primary_key_value = 2`)
	e.ForeignLease("ci", servicetest.LooseForeignKeys+"/ci", "1 hour")
	// A fence row is no lease of its own.
	e.ForeignLease("ci", servicetest.MainLease, "1 hour")
	s := e.Service(servicetest.OneChild)
	const main, ci = "database=main worker=loose_foreign_keys_cleanup", "database=ci worker=loose_foreign_keys_cleanup"
	const mainLease, ciLease = "lease.held name=" + servicetest.MainLease, "lease.held name=" + servicetest.LooseForeignKeys + "/ci"
	wantSeries(m, map[string][2]float64{
		mainLease: {0, 0}, ciLease: {1, 1}, "backlog.pending " + main: {5, 5}, "backlog.pending " + ci: {0, 0},
		"backlog.oldest.age " + main: {3600, 3700}, "backlog.oldest.age " + ci: {0, 0},
	})
	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	e.Exec("ci", `UPDATE maintenance.leases SET expires_at = now()`)
	wantSeries(m, map[string][2]float64{mainLease: {1, 1}, ciLease: {0, 0}})
	assert.NoError(t, s.Shutdown(t.Context()))
	assert.Equal(t, len(m.Values("maintenance.backlog.pending", "")), 0, "series of backlogs after the shutdown")
}

func TestLog_HasTheBeginningAndTheEndOfARun(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 5)
	e.Mine("c", "OLD.p_id = 2", "P0001")
	var said servicetest.Buffer
	s := e.Service(servicetest.OneChild, func(c *service.Config) { c.Logger = slog.New(slog.NewJSONHandler(&said, nil)) })
	r := servicetest.RunBatch(t, s, "main")
	lines := map[string][]map[string]any{}
	for line := range strings.Lines(said.String()) {
		var fields map[string]any
		assert.NoError(t, json.Unmarshal([]byte(line), &fields))
		message, _ := fields["msg"].(string)
		lines[message] = append(lines[message], fields)
		assert.That(t, fields["worker"] == servicetest.LooseForeignKeys && fields["run_id"] == r.ID && fields["database"] == "main",
			"line %s lacks worker, run_id or database", line)
		assert.Equal(t, strings.Count(line, `"time":`), 1, "times in the line "+line)
	}
	for message, want := range map[string]map[string]any{
		"run started":  {"level": "INFO", "trigger": "request"},
		"run finished": {"level": "ERROR", "outcome": "failed", "processed_records": 4.0, "deleted_rows": 12.0, "rescheduled_records": 1.0, "dead_records": 0.0, "over_limit": false, "turbo_mode": false, "lease_epoch": 1.0},
	} {
		if len(lines[message]) != 1 {
			t.Errorf("%d lines %q, want one", len(lines[message]), message)
			continue
		}
		for key, value := range want {
			assert.Equal(t, lines[message][0][key], value, message, key)
		}
	}
	// The driver's text is for the log, and there once.
	assert.Equal(t, strings.Count(said.String(), "secret of 2"), 1, "how often the cause is in "+said.String())
	// The status reports that records fail, also after a run that has succeeded.
	e.Exec("main", `DROP TRIGGER mine ON c`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	servicetest.WantDetail(t, servicetest.Status(t, s), "waiting for ",
		"1 record on main could not be processed and will be retried (run `caretaker lfk dead --failing`)")
}

func TestSampleBacklogs_KeepsTheHighestOfEachStepForADay(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete}]")
	e.Exec("main", `INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
		SELECT date_trunc('minute', now()) - make_interval(hours => i), $1, i, 0, 0, 0 FROM generate_series(1, 40) i`, servicetest.LooseForeignKeys)
	e.Exec("main", `INSERT INTO maintenance.database_samples (minute, database, pending) SELECT date_trunc('minute', now()) - make_interval(hours => i), 'main', i FROM generate_series(26, 40) i`)
	e.Deleted("main", "p", 1, 5)
	// As by two servers, or before and after a restart.
	for range 3 {
		assert.NoError(t, s.SampleBacklogs(t.Context()))
	}
	e.Want("main", `SELECT count(*) BETWEEN 24 AND 26 FROM maintenance.backlog_samples WHERE minute < now() - interval '59 minutes'`, "true")
	// A step may have ended meanwhile.
	e.Want("main", `SELECT count(*) BETWEEN 1 AND 2 FROM maintenance.backlog_samples WHERE worker = '`+servicetest.LooseForeignKeys+`' AND minute > now() - interval '59 minutes'`, "true")
	e.Want("main", `SELECT count(*) BETWEEN 1 AND 2 FROM maintenance.database_samples`, "true")
	samples := assert.Must(s.BacklogSamples(t.Context()))(t)
	all := samples[servicetest.LooseForeignKeys]
	n := len(all)
	assert.That(t, n >= 24 && n <= 27 && all[n-1].Pending == 5 && all[n-1].Due == 5 && all[0].At.Before(all[1].At), "got %+v", all)
	// The highest value of a step stays.
	e.Exec("main", `UPDATE maintenance.backlog_samples SET pending = 70; UPDATE maintenance.database_samples SET pending = 70, p99 = 1e6`)
	assert.NoError(t, s.SampleBacklogs(t.Context()))
	e.Want("main", `SELECT count(*) > 0 FROM maintenance.backlog_samples WHERE worker = '`+servicetest.LooseForeignKeys+`' AND pending = 70 AND due = 5`, "true")
	ofMain := assert.Must(s.DatabaseSamples(t.Context()))(t)["main"]
	assert.That(t, len(ofMain) > 0 && *ofMain[0].Pending == 70 && *ofMain[0].P99 == 1e6 && *ofMain[0].Oldest > 0, "got %+v", ofMain)
}

func TestSampleBacklogs_LeavesOutWhatIsNotKnown(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main", "main", "ci")
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete}]")
	e.Open[1].Close()
	assert.NoError(t, s.SampleBacklogs(t.Context()))
	e.Want("main", `SELECT count(*) FROM maintenance.backlog_samples WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "0")
	e.Want("main", `SELECT count(*) > 0 FROM maintenance.backlog_samples`, "true")
}

func TestJobCounts_StopCounting(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	s := e.Service("")
	e.Exec("main", `INSERT INTO maintenance.river_job (kind, args, max_attempts, state, scheduled_at, finalized_at)
		SELECT 'delete_user', '{}', 25, state::maintenance.river_job_state, now(), CASE WHEN state IN ('discarded', 'completed') THEN now() END
		FROM unnest(ARRAY['available', 'discarded', 'completed']) state, generate_series(1, CASE state WHEN 'available' THEN 10001 ELSE 3 END)`)
	counts := assert.Must(s.JobCounts(t.Context()))(t)
	assert.Require(t, len(counts) == 2, "got %+v", counts)
	for _, c := range counts {
		available := c.State == "available"
		assert.That(t, c.AtLeast == available && (!available || c.Jobs == 10_000) && (available || c.Jobs == 3), "got %+v", c)
	}
}

// rowsSQL counts the rows of the application, but for the records of what was deleted.
const rowsSQL = `
CREATE OR REPLACE FUNCTION pg_temp.rows() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint; total bigint := 0; r regclass;
BEGIN
  FOR r IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'loose_foreign_keys_deleted_records' LOOP
    EXECUTE 'SELECT count(*) FROM ' || r INTO n;
    total := total + n;
  END LOOP;
  RETURN total;
END $$`

// rows are those of all databases.
func rows(e *servicetest.Estate) (total int) {
	e.T.Helper()
	for name := range e.SQL {
		e.Exec(name, rowsSQL)
		n := assert.Must(strconv.Atoi(e.Value(name, `pg_temp.rows()`)))(e.T)
		total += n
	}
	return total
}

func TestGhostUserMigration_DeletedRowsAreAllThatAreGoneButTheQueues(t *testing.T) {
	t.Parallel()
	for _, hard := range []bool{false, true} {
		t.Run(fmt.Sprintf("hard delete %t", hard), func(t *testing.T) {
			g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
			for name := range g.SQL {
				g.Exec(name, `SET session_replication_role = replica`)
			}
			g.InsertRows()
			for name := range g.SQL {
				g.Exec(name, `RESET session_replication_role`)
			}
			g.Doomed(10)
			g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1`, hard)
			before := rows(g.Estate)
			r := g.Run(g.Service(), "")
			gone, counted := before-rows(g.Estate)-1, r.Counts["deleted_rows"]
			assert.That(t, int64(gone) == counted, "%d rows are gone, deleted_rows is %d", gone, counted)
			g.WantGone(10)
			tables := map[string]int64{}
			for _, table := range r.Tables {
				tables[table.Table] = table.Deleted
			}
			assert.That(t, tables["users"] == 1 && tables["namespaces"] == 1, "tables %v", r.Tables)
		})
	}
}

func TestDestroyGroup_LoggedRowsAreAllThatAreGone(t *testing.T) {
	t.Parallel()
	// The namespaces of projects go by a trigger of the application, where there is one.
	for trigger, byItself := range map[string]int{"ENABLE": 3, "DISABLE": 0} {
		t.Run(trigger, func(t *testing.T) {
			g := servicetest.NewGroups(servicetest.Parallel(t))
			g.Owned(10, 15)
			g.Group(11, 10, "sub")
			for _, id := range []int{2, 3, 4} {
				g.Project(id, 10+id%2, fmt.Sprint("p", id))
				g.Content(id)
			}
			g.GroupContent(10)
			g.GroupContent(11)
			g.Exec("main", `ALTER TABLE projects `+trigger+` TRIGGER projects_delete_namespace`)
			before := rows(g.Estate)
			g.Run("scheduled_jobs=1")
			g.Attempt("completed succeeded")
			g.WantLog(1, "job finished", "outcome=succeeded", fmt.Sprintf(" rows=%d ", before-rows(g.Estate)-byItself))
		})
	}
}

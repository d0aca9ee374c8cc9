package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMetrics_CountersExistBeforeTheFirstEvent(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, "main", "main")
	e.Service(servicetest.OneChild, e.WithQueue)
	for _, series := range []string{
		"maintenance.runs worker=loose_foreign_keys_cleanup database=main outcome=failed",
		"maintenance.rows worker=ghost_user_migration database=main action=failed_users",
		"maintenance.rows worker=placeholder_user_cleanup database=main action=exhausted",
		"maintenance.jobs kind=destroy_group outcome=discarded",
		"maintenance.jobs.held kind=delete_user reason=THROTTLED",
		"maintenance.fires worker=inactive_token_deletion outcome=missed",
		"maintenance.leases.lost worker=adjourned_group_deletion database=main",
		"maintenance.sli.error database=main error=true", "maintenance.sli.apdex database=main success=false",
		"maintenance.throttled worker=loose_foreign_keys_cleanup database=main",
	} {
		name, attributes, _ := strings.Cut(series, " ")
		if values := m.Values(name, attributes); len(values) != 1 || values[0] != 0 {
			t.Errorf("%s: %v, want one 0", series, values)
		}
	}
}

func TestMetrics_MeasureTheBacklogOfAPausedWorkerThatNeverRan(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Deleted("main", "p", 1, 3)
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET created_at = now() - interval '1 hour';
		UPDATE loose_foreign_keys_deleted_records SET consume_after = now() + interval '1 hour' WHERE primary_key_value = 1;
		SET session_replication_role = replica; INSERT INTO import_placeholder_user_details (placeholder_user_id, organization_id, deletion_attempts, created_at, updated_at) VALUES (7, 1, 15, now(), now()); SET session_replication_role = origin`)
	s := e.Service(servicetest.OneChild, e.WithQueue)
	servicetest.Pause(t, s, servicetest.LooseForeignKeys)
	e.Exec("main", `UPDATE maintenance.pauses SET since = now() - interval '2 hours'`)
	const cleanup = "worker=loose_foreign_keys_cleanup database=main"
	for series, least := range map[string]float64{
		"maintenance.backlog.pending " + cleanup: 3, "maintenance.backlog.due " + cleanup: 2,
		"maintenance.backlog.oldest.age " + cleanup: 3600, "maintenance.backlog.partitions " + cleanup: 1,
		"maintenance.backlog.dead worker=placeholder_user_cleanup database=main": 1,
		"maintenance.paused worker=loose_foreign_keys_cleanup":                   7200,
		"maintenance.paused worker=ghost_user_migration":                         0,
		"maintenance.run.limit " + cleanup:                                       30,
		"maintenance.database.reachable database=main":                           1,
		"maintenance.pool.connections.max database=main role=primary":            20,
	} {
		name, attributes, _ := strings.Cut(series, " ")
		if values := m.Values(name, attributes); len(values) != 1 || values[0] < least || values[0] > least+60 {
			t.Errorf("%s: %v, want %v", series, values, least)
		}
	}
}

func TestMetrics_TellForHowLongAWorkerFailsAndWhichFiresWereInVain(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, dry_run, started_at, finished_at, heartbeat_ttl)
		SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid, 'ghost_user_migration', '', 'schedule', state, dry,
			now() - ago, now() - ago + interval '1 second', interval '1 minute'
		FROM (VALUES (1, 'succeeded', false, interval '4 hours'), (2, 'failed', false, interval '3 hours'),
			(3, 'failed', false, interval '2 hours'), (4, 'succeeded', true, interval '1 hour'), (5, 'skipped', false, interval '30 minutes')) r (n, state, dry, ago);
		INSERT INTO maintenance.fires (worker, fire_time, claimed_by, outcome, reason, run_id)
		SELECT 'ghost_user_migration', now() - ago, '', outcome, reason, ('00000000-0000-7000-8000-00000000000' || n)::uuid
		FROM (VALUES (1, 'ran', '', interval '4 hours 1 second'), (2, 'ran', '', interval '3 hours'), (3, 'ran', '', interval '2 hours'),
			(NULL, 'missed', '', interval '90 minutes'), (5, 'skipped', 'LEASE_HELD', interval '30 minutes'),
			(NULL, 'skipped', 'DISABLED', interval '20 minutes')) f (n, outcome, reason, ago);
		INSERT INTO maintenance.schedules (worker, cron, accounted_until) VALUES ('ghost_user_migration', '*/2 * * * *', now() - interval '20 minutes')`)
	e.Service(servicetest.OneChild, e.WithQueue)
	const ghost = "worker=ghost_user_migration database=main"
	for series, between := range map[string][2]float64{
		"maintenance.failing " + ghost:                                {10790, 10860},
		"maintenance.fires.unsuccessful worker=ghost_user_migration":  {4, 4},
		"maintenance.fires.overdue worker=ghost_user_migration":       {18 * 60, 21 * 60},
		"maintenance.failing worker=loose_foreign_keys_cleanup":       {0, 0},
		"maintenance.fires.overdue worker=loose_foreign_keys_cleanup": {0, 0},
		"maintenance.last.success.timestamp " + ghost:                 {1, 1e10},
	} {
		name, attributes, _ := strings.Cut(series, " ")
		if values := m.Values(name, attributes); len(values) != 1 || values[0] < between[0] || values[0] > between[1] {
			t.Errorf("%s: %v, want one of %v", series, values, between)
		}
	}
}

func TestMetrics_SayHowManyJobsThereAreAndWhichHasWaitedLongest(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main")
	e.Exec("main", `INSERT INTO maintenance.river_job (kind, args, state, max_attempts, queue, scheduled_at, finalized_at, attempted_at)
		SELECT kind, '{}', state::maintenance.river_job_state, 25, 'default', now() - ago, CASE WHEN state = 'discarded' THEN now() END, now()
		FROM (VALUES ('delete_user', 'available', interval '1 hour'), ('delete_user', 'scheduled', interval '-1 hour'), ('delete_user', 'retryable', interval '10 minutes'),
			('delete_user', 'discarded', interval '9 hours'), ('destroy_group', 'running', interval '5 hours'), ('from_tomorrow', 'available', interval '9 hours')) j (kind, state, ago)`)
	e.Service(servicetest.OneChild, e.WithQueue)
	for series, least := range map[string]float64{
		"maintenance.queue.jobs kind=delete_user state=waiting": 1, "maintenance.queue.jobs kind=delete_user state=scheduled": 1,
		"maintenance.queue.jobs kind=delete_user state=retryable": 1, "maintenance.queue.jobs kind=delete_user state=discarded": 1,
		"maintenance.queue.jobs kind=destroy_group state=running": 1, "maintenance.queue.jobs kind=destroy_group state=waiting": 0,
		"maintenance.queue.oldest.age kind=delete_user": 3600, "maintenance.queue.oldest.age kind=destroy_group": 0,
	} {
		name, attributes, _ := strings.Cut(series, " ")
		if values := m.Values(name, attributes); len(values) != 1 || values[0] < least || values[0] > least+60 {
			t.Errorf("%s: %v, want %v", series, values, least)
		}
	}
	if values := m.Values("maintenance.queue.jobs", "kind=from_tomorrow"); len(values) != 0 {
		t.Errorf("jobs of a kind that this version does not know: %v", values)
	}
}

func TestMetrics_OneFigureThatFailsHidesNoOther(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main")
	s := e.Service(servicetest.OneChild, e.WithQueue)
	servicetest.Pause(t, s, servicetest.LooseForeignKeys)
	e.Exec("main", `ALTER TABLE maintenance.river_job RENAME TO hidden`)
	for name, want := range map[string]int{"maintenance.paused": 1, "maintenance.failing": 1, "maintenance.run.limit": 1, "maintenance.queue.jobs": 0} {
		if values := m.Values(name, ""); len(values) < want || want == 0 && len(values) > 0 {
			t.Errorf("%s: %v", name, values)
		}
	}
}

func TestMetrics_OfALoadThatNobodySeesAreMissing(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main")
	e.Service(servicetest.OneChild, servicetest.LoadLimits(service.LoadConfig{MaxLockWait: time.Second}))
	e.Open[0].Close()
	if values := m.Values("maintenance.load.excess", ""); len(values) != 0 {
		t.Errorf("load %v of a database that does not answer", values)
	}
	if values := m.Values("maintenance.database.reachable", "database=main"); len(values) != 1 || values[0] != 0 {
		t.Errorf("reachable: %v", values)
	}
}

func TestMetrics_TimeStatementsByWhatTheyAreFor(t *testing.T) {
	m := servicetest.NewMeter(t)
	e := servicetest.New(t, servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Deleted("main", "p", 1, 3)
	s := e.Service(servicetest.OneChild)
	servicetest.RunBatch(t, s, "main")
	for _, work := range []string{servicetest.LooseForeignKeys, "other"} {
		if values := m.Values("maintenance.statement.duration", "database=main work="+work); len(values) != 1 || values[0] < 1 {
			t.Errorf("%s: %v statements", work, values)
		}
	}
	servicetest.Must(s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: true}))(t)
	if values := m.Values("maintenance.runs.over_limit", "worker="+servicetest.LooseForeignKeys); len(values) != 1 || values[0] != 0 {
		t.Errorf("over limit: %v", values)
	}
}

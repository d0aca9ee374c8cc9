//go:build prometheus

package cli_test

import (
	"context"
	"sync"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// Hours and days that a test cannot wait for have passed as soon as a record says so. In main:
const (
	faultySQL = `
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.faulters', 1), ('public.dozers', 1);
INSERT INTO maintenance.record_failures (partition, record_id, failures, setbacks, last_definition, sqlstate)
SELECT partition, id, 9, 9, 'faulty.faulter_id -> faulters', 'P0001' FROM loose_foreign_keys_deleted_records
WHERE fully_qualified_table_name = 'public.faulters'`

	thiefSQL = `
UPDATE maintenance.leases SET holder = 'thief', epoch = epoch + 1, expires_at = clock_timestamp() + interval '1 s'
WHERE name = 'loose_foreign_keys_cleanup/main' AND expires_at > clock_timestamp()`

	noThiefSQL = `
TRUNCATE dozing;
UPDATE maintenance.leases SET expires_at = now() WHERE holder = 'thief';
UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`

	floodSQL = `
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.dozers', 2);
INSERT INTO flood SELECT repeat('x', 1000) FROM generate_series(1, 100);
SELECT pg_sleep(0.1)`

	manyGhostsSQL = `
INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
SELECT i, 'u' || i, 'u' || i, 0, 'blocked', 15, 1 FROM generate_series(10001, 11100) i;
INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at)
SELECT i, now() - interval '1 minute', now() - interval '2 days', now() FROM generate_series(10001, 11100) i`

	invalidSettingSQL = `UPDATE application_settings SET resource_access_tokens_settings = '{"inactive_resource_access_tokens_delete_after_days": "soon"}'`

	yesterdaySQL = `
UPDATE maintenance.runs SET started_at = started_at - interval '1 day', finished_at = finished_at - interval '1 day'
WHERE worker = 'inactive_token_deletion' AND finished_at IS NOT NULL;
UPDATE maintenance.pauses SET since = since - interval '2 days'`

	noSchedulerSQL = `INSERT INTO maintenance.schedules (worker, cron, accounted_until) VALUES ('inactive_token_deletion', '*/5 * * * *', now() - interval '40 minutes')`

	lastAttemptSQL = `
UPDATE maintenance.river_job SET max_attempts = attempt + 1, scheduled_at = now() WHERE kind = 'delete_user' AND state = 'retryable' AND max_attempts = 25`

	notWorkedSQL = `
UPDATE maintenance.river_job SET state = 'available', queue = 'elsewhere', finalized_at = NULL, scheduled_at = now() - interval '1 hour'
WHERE id = (SELECT min(id) FROM maintenance.river_job WHERE state IN ('completed', 'cancelled'))`

	longRunSQL = `UPDATE maintenance.runs SET started_at = started_at - interval '10 minutes' WHERE state = 'running' AND database = 'ci'`
)

// In ci:
const longLeaseSQL = `UPDATE maintenance.leases SET acquired_at = acquired_at - interval '10 minutes' WHERE expires_at > now()`

// work lets a server run all workers, and causes what they, their jobs and backlogs can be blamed for. What only gauges
// show comes first: they are as old as 15 seconds.
func (e *watchedEstate) work(s *watchedServer) {
	t, main := e.t, e.sql["main"]
	t.Helper()
	s.run(worker, "sec", false)
	// The tokens come first, while there are more bots than its run may take.
	tokens := "inactive_token_deletion"
	s.run(tokens, "", false)
	for _, name := range others(t, s) {
		if name != tokens {
			s.run(name, "", false)
		}
	}
	e.shutSec()
	execute(t, main, invalidSettingSQL)
	s.run(tokens, "", false)
	assert.Must(s.PauseWorker(t.Context(), &maintenancev1.PauseWorkerRequest{Worker: "adjourned_group_deletion", Reason: "test"}))(t)
	execute(t, main, yesterdaySQL)
	execute(t, main, noSchedulerSQL)
	execute(t, main, manyGhostsSQL)
	e.until("a job has ended", notWorkedSQL)
	e.until("a job has failed", lastAttemptSQL)
	e.clean(s)
}

// clean runs loose_foreign_keys_cleanup over its limit, past its time, without its lease, and into what cannot be deleted.
func (e *watchedEstate) clean(s *watchedServer) {
	t, main := e.t, e.sql["main"]
	t.Helper()
	s.run(worker, "ci", true)
	e.until("the run in ci is at work", longRunSQL)
	execute(t, e.sql["ci"], longLeaseSQL)
	if first := s.run(worker, "main", false); !first.GetOverLimit() {
		t.Errorf("not over its limit: %s", first)
	}
	s.run(worker, "main", false)
	execute(t, main, faultySQL)
	stolen := s.run(worker, "main", true)
	e.until("the run in main has its lease", thiefSQL)
	eventually(t, "the run has lost it", s.log, func() bool {
		answer, err := s.GetRun(context.Background(), &maintenancev1.GetRunRequest{Id: stolen.GetId()})
		return err == nil && answer.GetRun().GetReason() == "LEASE_LOST"
	})
	execute(t, main, noThiefSQL)
	s.run(worker, "main", false)
}

// shutSec lets nobody into sec any more.
func (e *watchedEstate) shutSec() {
	e.t.Helper()
	var name string
	assert.NoError(e.t, e.sql["sec"].QueryRow(e.t.Context(), `SELECT current_database()`).Scan(&name))
	execute(e.t, e.sql["main"], `ALTER DATABASE `+name+` ALLOW_CONNECTIONS false`)
	execute(e.t, e.sql["main"], `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+name+`'`)
}

// burden floods the write-ahead log of main, over the limit of a server whose runs then end early, and has many calls
// share its few connections to ci, until it is told to end.
func (e *watchedEstate) burden(s *watchedServer) (end func()) {
	e.t.Helper()
	flood := e.connect(e.t, "main")
	execute(e.t, flood, `CREATE TABLE flood (text text)`)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	again := func(work func()) {
		all.Go(func() {
			for ctx.Err() == nil {
				work()
			}
		})
	}
	again(func() { _, _ = flood.Exec(ctx, floodSQL) })
	again(func() { _, _ = s.RunBatch(ctx, &maintenancev1.RunBatchRequest{Worker: worker, Database: "main"}) })
	for range 24 {
		again(func() { _, _ = s.ListLeases(ctx, &maintenancev1.ListLeasesRequest{Worker: worker}) })
	}
	return func() { cancel(); all.Wait() }
}

package main

import "fmt"

// longHistory fills a database as after two years. It has runs with their fires, one a minute, a
// day of samples, deferred jobs, and deleted parents in the queue. The matches of a selective
// filter lie at the far end. Kinds and states of jobs come in blocks, as they do where one worker
// has queued for long.
func (o options) longHistory() []string {
	return []string{
		fmt.Sprintf(fillRunsSQL, o.runs),
		fillFiresSQL,
		fillSchedulesSQL,
		fillSamplesSQL,
		fmt.Sprintf(fillJobsSQL, o.jobs),
		`SELECT setval('maintenance.river_job_id_seq', (SELECT max(id) FROM maintenance.river_job))`,
		`CREATE TABLE children (
			id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, parent_id bigint NOT NULL)`,
		`CREATE INDEX ON children (parent_id)`,
		fmt.Sprintf(fillRecordsSQL, o.records),
	}
}

// fillRunsSQL: the ids are in the order of the times, as those of version 7 are. Two in three runs
// are of the cleanup, one of the ghost migration. The others have one a day. One run in a thousand
// has failed. None of the newer half has been cancelled. placeholder_user_cleanup has failed once,
// long ago.
const fillRunsSQL = `
INSERT INTO maintenance.runs (id, worker, database, trigger, state, reason, error, started_at,
  heartbeat_at, heartbeat_ttl, finished_at, lease_epoch, trace_id, replica, counts, tables)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000'
    || lpad(to_hex(i), 12, '0'))::uuid,
  worker, CASE worker WHEN 'loose_foreign_keys_cleanup' THEN 'main' ELSE '' END, 'schedule', state,
  CASE state WHEN 'skipped' THEN 'LEASE_HELD: by another' ELSE '' END,
  CASE state WHEN 'failed' THEN 'database main does not answer' ELSE '' END,
  at, at, interval '40 seconds', at + interval '3 seconds', i, md5(i::text), 'host-1/' || i / 10000,
  CASE worker WHEN 'loose_foreign_keys_cleanup' THEN jsonb_build_object('processed_records', i,
      'deleted_rows', 10 * i, 'updated_rows', 0, 'incremented_records', 0, 'dead_records', 0)
    ELSE jsonb_build_object('migrated_users', i) END,
  '[{"table": "children", "deleted": 10, "updated": 0}, {"table": "notes", "deleted": 3, "updated": 4}]'
FROM generate_series(1, %[1]d) i
CROSS JOIN LATERAL (
  SELECT clock_timestamp() - (%[1]d - i + 1) * interval '1 minute' AS at OFFSET 0) t
CROSS JOIN LATERAL (
  SELECT CASE WHEN i %% 1440 = 0 THEN 'adjourned_group_deletion'
    WHEN i %% 1440 = 1 THEN 'inactive_token_deletion'
    WHEN i %% 1440 = 2 THEN 'placeholder_user_cleanup'
    WHEN i %% 3 = 0 THEN 'ghost_user_migration' ELSE 'loose_foreign_keys_cleanup' END AS worker) w
CROSS JOIN LATERAL (
  SELECT CASE WHEN i = 2 OR i %% 1440 > 2 AND i %% 1000 = 7 THEN 'failed'
    WHEN i %% 1440 > 2 AND i %% 50 = 11 THEN 'skipped'
    WHEN i %% 1440 > 2 AND i %% 100 = 23 AND i < %[1]d / 2 THEN 'cancelled'
    ELSE 'succeeded' END AS state) s`

// fillFiresSQL: those of some of the runs that were cancelled were missed.
const fillFiresSQL = `
INSERT INTO maintenance.fires
  (worker, fire_time, claimed_by, claimed_at, started_at, run_id, outcome, reason)
SELECT worker, started_at - interval '1 second', replica, started_at, started_at,
  CASE outcome WHEN 'missed' THEN NULL ELSE id END, outcome, ''
FROM (
  SELECT worker, started_at, replica, id, CASE WHEN state = 'skipped' THEN 'skipped'
    WHEN state = 'cancelled' AND lease_epoch % 1000 = 23 THEN 'missed' ELSE 'ran' END AS outcome
  FROM maintenance.runs) r`

const fillSchedulesSQL = `
INSERT INTO maintenance.schedules (worker, cron, accounted_until) VALUES
  ('loose_foreign_keys_cleanup', '* * * * *', now()),
  ('ghost_user_migration', '*/2 * * * *', now()),
  ('adjourned_group_deletion', '0 2 * * *', now()),
  ('inactive_token_deletion', '0 0 * * *', now()),
  ('placeholder_user_cleanup', '0 0 * * *', now())`

const fillSamplesSQL = `
INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
SELECT date_trunc('minute', now()) - i * interval '1 minute', worker, 1000 * i, 1000 * i, 0, 0
FROM generate_series(1, 1440) i CROSS JOIN maintenance.schedules`

// fillJobsSQL: 63 in a hundred have ended, most of them well, the oldest ones. Then come 33 in a
// hundred that are scheduled for the next days, then what waits, has failed or is running. A
// hundred passes that went on are at the very beginning.
const fillJobsSQL = `
INSERT INTO maintenance.river_job (id, kind, queue, args, metadata, state, attempt, max_attempts,
  created_at, scheduled_at, attempted_at, finalized_at, attempted_by, errors, unique_key, unique_states)
SELECT i, kind, CASE kind WHEN 'destroy_group' THEN kind ELSE 'default' END,
  CASE kind WHEN 'delete_user' THEN jsonb_build_object('user_id', i, 'deleted_by_id', 1,
      'skip_authorization', true, 'reason', 'Placeholder user is no longer referenced')
    WHEN 'delete_placeholder_user' THEN jsonb_build_object('placeholder_user_id', i)
    WHEN 'destroy_group' THEN jsonb_build_object('group_id', i, 'user_id', 1)
    ELSE jsonb_build_object('pass_id', md5(i::text)::uuid) END,
  jsonb_build_object('run_id', md5((i / 1000)::text)::uuid,
    'traceparent', '00-' || md5((i / 1000)::text) || '-00f067aa0ba902b7-01')
    || CASE state WHEN 'completed' THEN '{"outcome": "succeeded"}' ELSE '{}' END::jsonb,
  state::maintenance.river_job_state, CASE WHEN tried THEN 1 ELSE 0 END, 25, at,
  CASE state WHEN 'scheduled' THEN now() + i * interval '1 second' ELSE at END,
  CASE WHEN tried THEN at END,
  CASE WHEN state IN ('completed', 'cancelled', 'discarded') THEN at END,
  CASE WHEN tried THEN '{host-1}'::text[] END,
  CASE WHEN state IN ('retryable', 'discarded') THEN ARRAY[jsonb_build_object(
    'at', at, 'attempt', 1, 'error', 'database main does not answer')] END,
  sha256(i::text::bytea), B'11110101'
FROM generate_series(1, %[1]d) i
CROSS JOIN LATERAL (SELECT now() - (%[1]d - i + 1) * interval '0.2 s' AS at) t
CROSS JOIN LATERAL (
  SELECT CASE WHEN i <= 100 THEN 'continue_inactive_token_deletion'
    WHEN i <= %[1]d * 0.63 AND i %% 40 = 1 THEN 'destroy_group'
    WHEN i <= %[1]d * 0.63 AND i %% 2 = 0 OR i > %[1]d * 0.97 THEN 'delete_user'
    ELSE 'delete_placeholder_user' END AS kind) k
CROSS JOIN LATERAL (
  SELECT CASE WHEN i <= %[1]d * 0.63 THEN
      CASE i %% 20 WHEN 3 THEN 'discarded' WHEN 5 THEN 'cancelled' ELSE 'completed' END
    WHEN i <= %[1]d * 0.96 THEN 'scheduled'
    WHEN i %% 2000 = 9 THEN 'running' WHEN i %% 3 = 0 THEN 'retryable'
    ELSE 'available' END AS state) s
CROSS JOIN LATERAL (SELECT state NOT IN ('scheduled', 'available') AS tried) a`

// fillRecordsSQL: one record in ten is deferred.
const fillRecordsSQL = `
INSERT INTO loose_foreign_keys_deleted_records
  (fully_qualified_table_name, primary_key_value, created_at, consume_after)
SELECT 'public.parents', i, at, CASE WHEN i %% 10 = 0 THEN now() + interval '1 day' ELSE at END
FROM generate_series(1, %[1]d) i
CROSS JOIN LATERAL (SELECT now() - (%[1]d - i) * interval '1 ms' AS at) t`

package repo_test

// longHistory is a main database after years: 100,000 runs and fires and 50,000 jobs. Each worker has a past that makes
// another look-up hard: the cleanup has had no run on sec for long, the ghost migration has failed ever since its first
// run and is in use again since an hour ago, the groups have been paused, the tokens have only been cancelled, the placeholders are as they should be.
const longHistory = `
INSERT INTO maintenance.runs (id, worker, database, trigger, state, reason, dry_run, started_at, heartbeat_at, heartbeat_ttl, finished_at, lease_epoch)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid,
  w.name, CASE WHEN i % 10 = 1 THEN 'ci' WHEN i % 5 > 0 THEN '' WHEN i < 100 THEN 'sec' WHEN i % 10 = 0 THEN 'main' ELSE 'ci' END, 'schedule',
  CASE WHEN i % 1000 = 0 THEN 'failed' WHEN i % 5 = 1 AND i > 10 THEN 'failed' WHEN i % 5 = 2 THEN 'skipped' WHEN i % 5 = 3 THEN 'cancelled' ELSE 'succeeded' END,
  CASE WHEN i % 5 = 2 THEN 'WORKER_PAUSED: for long' ELSE '' END, i % 500 = 0, at, at, interval '1 minute', at, 1
FROM generate_series(1, 100000) i
CROSS JOIN LATERAL (SELECT now() - (100001 - i) * interval '1 minute' AS at) t
CROSS JOIN LATERAL (SELECT (ARRAY['loose_foreign_keys_cleanup', 'ghost_user_migration', 'adjourned_group_deletion',
  'inactive_token_deletion', 'placeholder_user_cleanup'])[1 + i % 5] AS name) w;
INSERT INTO maintenance.fires (worker, fire_time, claimed_by, claimed_at, started_at, run_id, outcome, reason)
SELECT worker, date_trunc('minute', started_at), 'old', started_at, started_at, id,
  CASE state WHEN 'skipped' THEN 'skipped' ELSE 'ran' END, reason FROM maintenance.runs;
UPDATE maintenance.fires SET outcome = 'missed', run_id = NULL WHERE worker = 'loose_foreign_keys_cleanup' AND extract(minute FROM fire_time) = 0
  AND extract(hour FROM fire_time) = 0;
INSERT INTO maintenance.schedules (worker, cron, accounted_until) VALUES
  ('loose_foreign_keys_cleanup', '* * * * *', now() - interval '2 minutes'), ('ghost_user_migration', '*/2 * * * *', now() - interval '2 minutes'),
  ('adjourned_group_deletion', '0 2 * * *', now()), ('inactive_token_deletion', '0 0 * * *', now()), ('placeholder_user_cleanup', '0 0 * * *', now());
UPDATE maintenance.schedules SET in_use_since = now() - interval '1 hour' WHERE worker = 'ghost_user_migration';
INSERT INTO maintenance.river_job (kind, args, metadata, attempt, max_attempts, state, scheduled_at, attempted_at, finalized_at)
SELECT 'delete_user', format('{"user_id": %s}', i)::jsonb, '{}', 1, 25, s.state::maintenance.river_job_state, now() - interval '1 hour', now() - interval '1 hour',
  CASE WHEN s.state <> 'retryable' THEN now() END
FROM generate_series(1, 50000) i CROSS JOIN LATERAL (
  SELECT CASE WHEN i % 1000 = 1 THEN 'discarded' WHEN i % 1000 = 2 THEN 'retryable' ELSE 'completed' END AS state) s;
INSERT INTO maintenance.backlog_samples (minute, worker, pending, due, deferred, dead)
SELECT date_trunc('minute', now()) - i * interval '1 minute', w, 1, 1, 0, 0
FROM generate_series(1, 1440) i CROSS JOIN (SELECT DISTINCT worker AS w FROM maintenance.schedules) w;
INSERT INTO maintenance.audit (at, by, address, role, action, target, reason, outcome)
SELECT now() - (100001 - i) * interval '1 minute', 'alice', '127.0.0.1:1', 'operator', 'RunBatch', 'ghost_user_migration', '', 'OK'
FROM generate_series(1, 100000) i;
INSERT INTO maintenance.receipts (sequence, at, run_id, job_id, worker, "table", action, rule, rows, keys_digest, requested_by, hash)
SELECT i, now(), CASE WHEN i % 2 = 0 THEN (SELECT id FROM maintenance.runs ORDER BY id LIMIT 1) END, nullif(i % 2 * i, 0), 'w', 't' || i % 7, 'deleted', '', 1, '', '', ''
FROM generate_series(1, 50000) i;
UPDATE maintenance.receipt_head SET sequence = 50000;
INSERT INTO maintenance.outside_paths (job_id, run_id, kind, path, at, done_at)
SELECT CASE WHEN i % 2 = 0 THEN i / 20 END, CASE WHEN i % 2 = 1 THEN (SELECT id FROM maintenance.runs ORDER BY id LIMIT 1 OFFSET i / 100) END,
  'project_repository', '@hashed/' || i, now(), CASE WHEN i % 10 > 0 OR i < 40000 THEN now() END
FROM generate_series(1, 50000) i;
INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by, until)
SELECT 'group', i, 'r', 'a', now() + interval '1 day' FROM generate_series(1, 500) i;
CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
CREATE INDEX ON c (p_id);
INSERT INTO c (p_id) VALUES (1);
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.5); RETURN OLD; END';
CREATE TRIGGER nap BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION nap();
INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1);
ANALYZE`

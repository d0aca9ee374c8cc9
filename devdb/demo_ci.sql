-- Demo data, database ci. Projects 121-160, groups 41-60, users 501-600 and merge
-- requests 3001-3350 are deleted in main. demo_ci_deletions.sql deletes triggers
-- 51-100 and pipelines 10001-10300.
INSERT INTO ci_triggers (id, token, project_id, owner_id, created_at, updated_at)
SELECT t, 'glptt-demo-' || t, t % 120 + 1, t % 200 + 1, now(), now() FROM generate_series(1, 100) AS t;

INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id, merge_request_id, trigger_id, ref, sha, status, source, created_at, updated_at)
SELECT p, 100 + p % 3, (p - 1) % 160 + 1, CASE WHEN p % 20 = 0 THEN 501 + p / 20 % 100 ELSE p * 7 % 200 + 1 END,
       CASE WHEN p % 5 = 0 THEN p / 5 * 3 % 3350 + 1 END, CASE WHEN p % 50 = 0 THEN p / 50 % 100 + 1 END,
       'main', md5(p::text), CASE WHEN p % 7 = 0 THEN 'failed' ELSE 'success' END, 1, now() - p % 60 * interval '1 day', now() - p % 60 * interval '1 day'
FROM generate_series(1, 10300) AS p;
INSERT INTO p_ci_builds (id, partition_id, commit_id, project_id, user_id, erased_by_id, name, status, created_at, updated_at)
SELECT b, 100 + c.id % 3, c.id, (c.id - 1) % 160 + 1, CASE WHEN c.id % 20 = 0 THEN 501 + c.id / 20 % 100 ELSE c.id * 7 % 200 + 1 END,
       CASE WHEN b % 40 = 0 THEN b % 200 + 1 END, 'job ' || b % 3, 'success', now() - c.id % 60 * interval '1 day', now() - c.id % 60 * interval '1 day'
FROM generate_series(1, 30000) AS b, LATERAL (SELECT (b - 1) % 10000 + 1) AS c (id);
INSERT INTO ci_pipeline_schedules (description, ref, cron, cron_timezone, next_run_at, project_id, owner_id, created_at, updated_at)
SELECT 'Schedule ' || s, 'main', '0 3 * * *', 'UTC', now() + interval '1 day', s % 160 + 1, CASE WHEN s % 4 = 0 THEN 501 + s / 4 % 100 ELSE s % 200 + 1 END, now(), now()
FROM generate_series(1, 400) AS s;
INSERT INTO ci_pipeline_metadata (pipeline_id, partition_id, project_id, name)
SELECT p, 100 + p % 3, (p - 1) % 160 + 1, 'Pipeline ' || p FROM generate_series(1, 2000) AS p;
INSERT INTO ci_namespace_mirrors (namespace_id, traversal_ids) SELECT n, ARRAY[n] FROM generate_series(1, 60) AS n;
INSERT INTO ci_namespace_mirrors (namespace_id, traversal_ids) SELECT n, ARRAY[n] FROM generate_series(2001, 2160) AS n;
INSERT INTO ci_project_mirrors (project_id, namespace_id) SELECT p, (p - 1) % 40 + 1 FROM generate_series(1, 160) AS p;

-- Demo data, database main: work for each worker, and rows that it skips.

-- placeholder_user_cleanup: 401-430 eligible (401-405 still referenced, 429 and
-- 430 on their last attempt), 431-435 tried yesterday, 436-438 exhausted,
-- 439-442 with a live namespace (442's is about to be destroyed).
INSERT INTO import_placeholder_user_details (placeholder_user_id, namespace_id, deletion_attempts, organization_id, last_deletion_attempt_at, created_at, updated_at)
SELECT p, CASE WHEN p = 442 THEN 8 WHEN p >= 439 THEN p - 438 END,
       CASE WHEN p <= 420 THEN 0 WHEN p <= 428 THEN p - 420 WHEN p <= 430 THEN 14 WHEN p <= 435 THEN 1 WHEN p <= 438 THEN 15 ELSE 0 END,
       CASE WHEN p % 5 = 0 THEN 2 ELSE 1 END,
       now() - CASE WHEN p <= 420 THEN NULL WHEN p <= 430 THEN interval '3 days' WHEN p <= 435 THEN interval '1 day' WHEN p <= 438 THEN interval '3 days' END,
       now() - interval '60 days', now() - interval '60 days'
FROM generate_series(401, 442) AS p;
INSERT INTO import_source_users (placeholder_user_id, reassigned_by_user_id, namespace_id, source_user_identifier, source_hostname, import_type, source_username, created_at, updated_at)
SELECT p, p - 400, CASE WHEN p = 442 THEN 8 ELSE p % 7 + 1 END, p::text, 'https://old.example.com', 'gitlab_migration', 'old' || p, now(), now()
FROM generate_series(436, 450) AS p;

-- inactive_token_deletion: bots 301-320 inactive (316-320 without a token),
-- 321-350 active, 351-355 revoked lately, 356-360 already in the ghost queue.
INSERT INTO personal_access_tokens (user_id, name, revoked, expires_at, token_digest, organization_id, user_type, group_id, created_at, updated_at)
SELECT b, 'token', b % 2 = 0 OR b > 350,
       CASE WHEN b <= 315 OR b > 355 THEN current_date - 60 - b % 30 WHEN b <= 350 AND b % 3 > 0 THEN current_date + 30 + b % 90 WHEN b > 350 THEN current_date + 90 END,
       'bot ' || b, CASE WHEN b % 6 = 0 THEN 2 ELSE 1 END, 6, b % 40 + 1,
       now() - interval '200 days', now() - CASE WHEN b BETWEEN 351 AND 355 THEN (b - 350) * interval '3 days' ELSE interval '100 days' END
FROM generate_series(301, 360) AS b WHERE b NOT BETWEEN 316 AND 320;
UPDATE personal_access_tokens SET revoked = CASE WHEN user_id % 10 = 1 THEN NULL ELSE false END WHERE user_id BETWEEN 321 AND 350;
WITH rotated AS ( -- ten active bots have a new token instead of a revoked one
    INSERT INTO personal_access_tokens (user_id, name, revoked, expires_at, token_digest, organization_id, user_type, created_at, updated_at)
    SELECT b, 'rotated', true, current_date - 40, 'bot ' || b || ' before', CASE WHEN b % 6 = 0 THEN 2 ELSE 1 END, 6, now() - interval '1 year', now() - interval '90 days'
    FROM generate_series(321, 330) AS b
    RETURNING id, user_id)
UPDATE personal_access_tokens t SET previous_personal_access_token_id = r.id FROM rotated r WHERE t.token_digest = 'bot ' || r.user_id;
INSERT INTO user_details (user_id, bot_namespace_id) SELECT b, b % 40 + 1 FROM generate_series(301, 360) AS b;
INSERT INTO members (source_id, source_type, type, user_id, access_level, member_namespace_id, created_at, updated_at)
SELECT b % 40 + 1, 'Namespace', 'GroupMember', b, 30, b % 40 + 1, now() - interval '200 days', now() - interval '200 days'
FROM generate_series(301, 355, 2) AS b;
INSERT INTO members (source_id, source_type, type, user_id, access_level, member_namespace_id, created_at, updated_at)
SELECT b % 120 + 1, 'Project', 'ProjectMember', b, 40, 2001 + b % 120, now() - interval '200 days', now() - interval '200 days'
FROM generate_series(302, 355, 2) AS b;

-- ghost_user_migration: 8 people (12 has 20,000 notes) and 12 bots (project bots
-- and placeholders) due, 2 half an hour ahead, a support bot that is refused.
INSERT INTO ghost_user_migrations (user_id, initiator_user_id, hard_delete, consume_after, user_type, created_at, updated_at)
SELECT u.id, CASE WHEN u.user_type = 0 THEN 1 ELSE 205 END, u.id = 18,
       now() + CASE WHEN u.id IN (20, 450) THEN interval '30 minutes' ELSE -u.id * interval '1 minute' END,
       CASE WHEN u.id % 4 > 0 THEN u.user_type END, now() - interval '12 hours', now() - interval '12 hours'
FROM users u
WHERE u.id IN (12, 13, 14, 16, 17, 18, 190, 191, 20, 208) OR u.id BETWEEN 356 AND 360 OR u.id BETWEEN 443 AND 450;

-- adjourned_group_deletion, 30 days. Due: 26 (its user owns the parent), 12 (its
-- owner is blocked), 13 (its user is unknown), 8 with its child 18, 14 (its
-- user is a maintainer only; it was archived before). Not yet: 15, 24, 34.
-- Lost: 25. Some marks are in one store, some in both.
INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
SELECT g, u, (now() AT TIME ZONE 'UTC')::date - days
FROM (VALUES (8, 28, 35), (18, 28, 33), (12, 11, 40), (14, 84, 31), (15, 35, 1), (24, 44, 3)) AS m (g, u, days);
UPDATE namespace_details d
SET deletion_scheduled_at = now() - m.days * interval '1 day', state_metadata = m.metadata::jsonb
FROM (VALUES (26, 32, '{"deletion_scheduled_by_user_id": 31}'), (13, 45, '{"deletion_scheduled_by_user_id": 999999}'),
             (34, 5, '{"deletion_scheduled_by_user_id": 194}'), (12, 40, '{"deletion_scheduled_by_user_id": 11}'),
             (14, 31, '{"deletion_scheduled_by_user_id": 84, "preserved_states": {"schedule_deletion": "archived"}}')) AS m (g, days, metadata)
WHERE d.namespace_id = m.g;

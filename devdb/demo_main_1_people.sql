-- Demo data, database main: organizations, users, settings. Ids are fixed, so
-- that the other databases can refer to them:
--   users 1-200 human (161-200 of the second organization), 201-203 service
--   accounts, 204 import user, 205-206 admin bots, 207 ghost, 208 support bot,
--   301-360 project bots, 401-442 placeholders, 443-450 placeholders in
--   the ghost queue, 501-600 people whom the last part deletes.

INSERT INTO application_settings (deletion_adjourned_period, resource_access_tokens_settings, created_at, updated_at)
VALUES (30, '{"inactive_resource_access_tokens_delete_after_days": 30}', now() - interval '1 year', now() - interval '1 year');

INSERT INTO organizations (id, name, path, created_at, updated_at)
VALUES (1, 'Default', 'default', now() - interval '3 years', now()),
       (2, 'Acme', 'acme', now() - interval '1 year', now());

INSERT INTO users (id, user_type, username, name, email, state, admin, projects_limit, organization_id, confirmed_at, last_activity_on, created_at, updated_at)
SELECT u.id, 0, 'user' || u.id, 'User ' || u.id, 'user' || u.id || '@example.com',
       CASE WHEN u.id IN (11, 12, 13, 14, 190) THEN 'blocked' WHEN u.id IN (16, 17) THEN 'banned'
            WHEN u.id IN (18, 20, 191) THEN 'ldap_blocked' ELSE 'active' END,
       u.id IN (1, 161), 100, CASE WHEN u.id <= 160 THEN 1 ELSE 2 END,
       now() - interval '1 year', current_date - u.id % 60, now() - interval '1 year' + u.id * interval '1 hour', now() - interval '10 days'
FROM generate_series(1, 200) AS u (id);

INSERT INTO users (id, user_type, username, name, email, state, projects_limit, organization_id, created_at, updated_at)
SELECT s.id, s.user_type, s.username, initcap(replace(s.username, '-', ' ')), s.username || '@noreply.example.com',
       'active', 0, s.organization_id, now() - interval '1 year', now() - interval '1 year'
FROM (VALUES (201, 13, 'service-account-1', 1), (202, 13, 'service-account-2', 1), (203, 13, 'service-account-3', 2),
             (204, 17, 'import-user', 1), (205, 11, 'admin-bot', 1), (206, 11, 'admin-bot-2', 2),
             (207, 5, 'ghost', 1), (208, 1, 'support-bot', 1)) AS s (id, user_type, username, organization_id);

INSERT INTO users (id, user_type, username, name, email, state, projects_limit, organization_id, created_at, updated_at)
SELECT b.id, 6, 'project_' || b.id || '_bot', 'Token ' || b.id, 'project_' || b.id || '_bot@noreply.example.com',
       CASE WHEN b.id > 355 THEN 'blocked' ELSE 'active' END, 0, CASE WHEN b.id % 6 = 0 THEN 2 ELSE 1 END,
       now() - interval '200 days', now() - interval '100 days'
FROM generate_series(301, 360) AS b (id);

INSERT INTO users (id, user_type, username, name, email, state, projects_limit, organization_id, created_at, updated_at)
SELECT p.id, 15, 'placeholder_' || p.id, 'Placeholder ' || p.id, 'placeholder_' || p.id || '@noreply.example.com',
       CASE WHEN p.id > 442 THEN 'blocked' ELSE 'active' END, 0, CASE WHEN p.id % 5 = 0 THEN 2 ELSE 1 END,
       now() - interval '90 days', now() - interval '90 days'
FROM generate_series(401, 450) AS p (id);

INSERT INTO users (id, user_type, username, name, email, state, projects_limit, organization_id, created_at, updated_at)
SELECT d.id, 0, 'former' || d.id, 'Former ' || d.id, 'former' || d.id || '@example.com', 'blocked', 0, 1,
       now() - interval '1 year', now() - interval '5 days'
FROM generate_series(501, 600) AS d (id);

INSERT INTO organization_users (organization_id, user_id, access_level, created_at, updated_at)
SELECT organization_id, id, CASE WHEN id IN (1, 2, 161, 162) THEN 50 ELSE 10 END, now() - interval '1 year', now() - interval '1 year'
FROM users WHERE user_type = 0 AND id <= 200;

INSERT INTO user_details (user_id, job_title)
SELECT id, CASE id % 3 WHEN 0 THEN 'Engineer' WHEN 1 THEN 'Designer' ELSE 'Manager' END FROM users WHERE user_type = 0;
INSERT INTO user_preferences (user_id, created_at, updated_at)
SELECT id, created_at, created_at FROM users WHERE user_type = 0;
INSERT INTO emails (user_id, email, created_at, updated_at)
SELECT id, 'other.' || email, created_at, created_at FROM users WHERE user_type = 0 AND id % 3 = 0;
INSERT INTO keys (user_id, type, title, key, created_at, updated_at)
SELECT id, CASE WHEN id % 10 = 8 THEN 'DeployKey' END, 'laptop', 'ssh-ed25519 demo ' || id, created_at, created_at
FROM users WHERE user_type = 0 AND id % 2 = 0;
INSERT INTO gpg_keys (user_id, key, created_at, updated_at)
SELECT id, 'demo ' || id, now(), now() FROM users WHERE user_type = 0 AND id % 6 = 0;
INSERT INTO gpg_key_subkeys (gpg_key_id, fingerprint) SELECT id, sha256(id::text::bytea) FROM gpg_keys;
INSERT INTO authentication_events (user_id, result, user_name, created_at)
SELECT u.id, 1, u.username, now() - n * interval '1 day' FROM users u, generate_series(1, 5) AS n WHERE u.user_type = 0;

-- People also have tokens, some of them inactive: no worker changes those.
INSERT INTO personal_access_tokens (user_id, name, revoked, expires_at, token_digest, organization_id, user_type, created_at, updated_at)
SELECT id, 'cli', id % 4 = 0, current_date + CASE WHEN id % 3 = 0 THEN -200 ELSE 200 END, 'person ' || id,
       organization_id, user_type, created_at, created_at
FROM users WHERE user_type IN (0, 13);

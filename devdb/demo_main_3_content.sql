-- Demo data, database main: content. All human users have work, also
-- those in the ghost queue. The last part deletes merge requests 3001-3350.

INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid, updated_by_id, last_edited_by_id, closed_by_id, state_id, closed_at, created_at, updated_at)
SELECT i, 'Issue ' || i, i * 7 % 200 + 1, (i - 1) % 120 + 1, 2000 + (i - 1) % 120 + 1, (i - 1) / 120 + 1,
       CASE WHEN i % 4 = 0 THEN i * 3 % 200 + 1 END, CASE WHEN i % 5 = 0 THEN i * 11 % 200 + 1 END,
       CASE WHEN i % 3 = 0 THEN i * 13 % 200 + 1 END, CASE WHEN i % 3 = 0 THEN 2 ELSE 1 END,
       CASE WHEN i % 3 = 0 THEN now() - i % 90 * interval '1 day' END,
       now() - (i % 250 + 90) * interval '1 day', now() - i % 90 * interval '1 day'
FROM generate_series(1, 5000) AS i;
INSERT INTO issue_assignees (user_id, issue_id, namespace_id)
SELECT id * 17 % 200 + 1, id, namespace_id FROM issues WHERE id % 2 = 0;

INSERT INTO merge_requests (id, title, source_branch, target_branch, source_project_id, target_project_id, author_id, assignee_id,
                            updated_by_id, merge_user_id, last_edited_by_id, iid, state_id, head_pipeline_id, created_at, updated_at)
SELECT m, 'Merge request ' || m, 'branch-' || m, 'main', (m - 1) % 120 + 1, (m - 1) % 120 + 1, m * 7 % 200 + 1,
       CASE WHEN m % 2 = 0 THEN m * 3 % 200 + 1 END, CASE WHEN m % 6 = 0 THEN m * 5 % 200 + 1 END,
       CASE WHEN m % 4 = 0 THEN m * 11 % 200 + 1 END, CASE WHEN m % 5 = 0 THEN m * 13 % 200 + 1 END,
       (m - 1) / 120 + 1, CASE WHEN m % 4 = 0 THEN 3 ELSE 1 END,
       CASE WHEN m <= 300 THEN 10000 + m WHEN m % 3 = 0 THEN m END, -- the first 300: pipelines that are deleted
       now() - (m % 250 + 60) * interval '1 day', now() - m % 60 * interval '1 day'
FROM generate_series(1, 3350) AS m;
INSERT INTO merge_request_metrics (merge_request_id, merged_by_id, latest_closed_by_id, target_project_id, created_at, updated_at)
SELECT id, merge_user_id, CASE WHEN id % 9 = 0 THEN id % 200 + 1 END, target_project_id, created_at, updated_at FROM merge_requests;
INSERT INTO merge_request_assignees (user_id, merge_request_id, project_id, created_at)
SELECT assignee_id, id, target_project_id, now() FROM merge_requests WHERE assignee_id IS NOT NULL;
INSERT INTO merge_request_reviewers (user_id, merge_request_id, project_id, created_at)
SELECT id * 19 % 200 + 1, id, target_project_id, now() FROM merge_requests WHERE id % 3 = 0;
INSERT INTO approvals (merge_request_id, user_id, project_id, created_at, updated_at)
SELECT id, CASE WHEN id IN (8, 16) THEN 403 + id / 8 ELSE id * 23 % 200 + 1 END, target_project_id, created_at, created_at
FROM merge_requests WHERE id % 4 = 0; -- 404, 405: referenced placeholders
INSERT INTO reviews (id, author_id, merge_request_id, project_id, created_at)
SELECT r, r * 29 % 200 + 1, r, (r - 1) % 120 + 1, now() - interval '20 days' FROM generate_series(1, 600) AS r;

-- 20,000 notes on issues, merge requests and vulnerabilities (501-600 of which
-- are deleted), none of them by user 12, and 20,000 by that user alone.
INSERT INTO notes (note, noteable_type, noteable_id, author_id, project_id, updated_by_id, resolved_by_id, resolved_at, review_id, system, created_at, updated_at)
SELECT 'Note ' || n, t.type, t.id,
       CASE WHEN n <= 3 THEN 400 + n WHEN n % 100 = 0 THEN 301 + n / 100 % 60 WHEN n * 7 % 200 = 11 THEN 1 ELSE n * 7 % 200 + 1 END,
       (t.id - 1) % 120 + 1, CASE WHEN n % 10 = 0 THEN n * 3 % 200 + 1 END, CASE WHEN n % 8 = 0 THEN n * 11 % 200 + 1 END,
       CASE WHEN n % 8 = 0 THEN now() - interval '3 days' END, CASE WHEN t.type = 'MergeRequest' AND t.id <= 600 THEN t.id END, n % 9 = 0,
       now() - n % 80 * interval '1 day', now() - n % 80 * interval '1 day'
FROM generate_series(1, 20000) AS n,
     LATERAL (SELECT CASE WHEN n <= 12000 THEN 'Issue' WHEN n <= 19000 THEN 'MergeRequest' ELSE 'Vulnerability' END,
                     CASE WHEN n <= 12000 THEN (n - 1) % 5000 + 1 WHEN n <= 19000 THEN (n - 1) % 3000 + 1 ELSE 401 + n % 200 END) AS t (type, id);
INSERT INTO notes (note, noteable_type, noteable_id, author_id, project_id, created_at, updated_at)
SELECT 'Imported note ' || n, 'Issue', (n - 1) % 5000 + 1, 12, ((n - 1) % 5000) % 120 + 1, now() - n % 300 * interval '1 day', now() - n % 300 * interval '1 day'
FROM generate_series(1, 20000) AS n;

INSERT INTO award_emoji (name, user_id, awardable_type, awardable_id, created_at, updated_at)
SELECT CASE e % 3 WHEN 0 THEN 'thumbsup' WHEN 1 THEN 'heart' ELSE 'tada' END, e * 7 % 200 + 1,
       CASE WHEN e % 4 = 0 THEN 'Note' ELSE 'Issue' END, e % 5000 + 1, now(), now()
FROM generate_series(1, 4000) AS e;
INSERT INTO todos (user_id, project_id, target_type, target_id, author_id, action, state, created_at, updated_at)
SELECT t * 3 % 200 + 1, (t - 1) % 120 + 1, 'Issue', t, t * 7 % 200 + 1, 1, CASE WHEN t % 2 = 0 THEN 'done' ELSE 'pending' END, now(), now()
FROM generate_series(1, 4000) AS t;
INSERT INTO events (author_id, action, target_type, target_id, project_id, created_at, updated_at)
SELECT e * 7 % 200 + 1, e % 5 + 1, CASE WHEN e % 3 = 0 THEN 'MergeRequest' ELSE 'Issue' END, (e - 1) % 3000 + 1, (e - 1) % 3000 % 120 + 1,
       now() - e % 90 * interval '1 day', now() - e % 90 * interval '1 day'
FROM generate_series(1, 8000) AS e;
INSERT INTO resource_label_events (action, user_id, issue_id, label_id, created_at)
SELECT 1, i * 7 % 200 + 1, i, i % 20 + 1, now() - interval '30 days' FROM generate_series(1, 2000) AS i;
INSERT INTO resource_state_events (state, user_id, merge_request_id, created_at)
SELECT 3, m * 11 % 200 + 1, m, now() - interval '30 days' FROM generate_series(4, 3000, 4) AS m;
INSERT INTO timelogs (time_spent, user_id, issue_id, project_id, spent_at, created_at, updated_at)
SELECT 60 * (i % 8 + 1), i * 7 % 200 + 1, i, (i - 1) % 120 + 1, now(), now(), now() FROM generate_series(1, 1000) AS i;
INSERT INTO releases (tag, name, author_id, project_id, released_at, created_at, updated_at)
SELECT 'v' || r, 'Release ' || r, (p * 7 + r) % 200 + 1, p, now() - interval '40 days', now(), now()
FROM generate_series(1, 120) AS p, generate_series(1, 3) AS r;
INSERT INTO snippets (title, content, author_id, project_id, organization_id, type, created_at, updated_at)
SELECT 'Snippet ' || s, 'puts ' || s, s % 200 + 1, CASE WHEN s % 2 = 0 THEN s % 120 + 1 END, CASE WHEN s % 2 = 1 THEN 1 END,
       CASE WHEN s % 2 = 0 THEN 'ProjectSnippet' ELSE 'PersonalSnippet' END, now(), now()
FROM generate_series(1, 400) AS s;
INSERT INTO snippet_repositories (snippet_id, disk_path) SELECT id, '@snippets/' || md5(id::text) FROM snippets;
INSERT INTO abuse_reports (reporter_id, user_id, message, organization_id, created_at, updated_at)
SELECT a * 7 % 200 + 1, a * 3 % 200 + 1, 'Report ' || a, 1, now(), now() FROM generate_series(1, 40) AS a;
INSERT INTO packages_npm_metadata_caches (project_id, package_name, created_at, updated_at)
SELECT p, '@demo/package-' || p || '-' || n, now(), now() FROM generate_series(1, 160) AS p, generate_series(1, 2) AS n;
INSERT INTO packages_packages (project_id, name, version, creator_id, created_at, updated_at)
SELECT p, 'package-' || p, '1.0.0', p * 7 % 200 + 1, now(), now() FROM generate_series(1, 120) AS p;
INSERT INTO epics (group_id, iid, title, author_id, assignee_id, last_edited_by_id, created_at, updated_at)
SELECT g, n, 'Epic ' || n, (g * 7 + n) % 200 + 1, CASE WHEN n % 2 = 0 THEN (g * 3 + n) % 200 + 1 END, CASE WHEN n = 3 THEN g + 10 END, now(), now()
FROM generate_series(1, 40) AS g, generate_series(1, 4) AS n;
INSERT INTO protected_branches (id, project_id, name, created_at, updated_at)
SELECT p, p, 'main', now(), now() FROM generate_series(1, 120) AS p;
INSERT INTO protected_branch_push_access_levels (protected_branch_id, user_id, created_at, updated_at)
SELECT p, p % 200 + 1, now(), now() FROM generate_series(1, 120) AS p;

-- Demo data, database sec. Projects 121-160 and users 501-600 are deleted in
-- main, vulnerabilities 501-600 in demo_sec_deletions.sql.
INSERT INTO vulnerabilities (id, project_id, author_id, resolved_by_id, dismissed_by_id, confirmed_by_id, title, state, severity, created_at, updated_at)
SELECT v, (v - 1) % 160 + 1, v * 7 % 200 + 1, CASE WHEN v % 5 = 0 THEN 501 + v % 100 WHEN v % 3 = 0 THEN v % 200 + 1 END,
       CASE WHEN v % 7 = 0 THEN v * 3 % 200 + 1 END, CASE WHEN v % 11 = 0 THEN v * 13 % 200 + 1 END,
       'Vulnerability ' || v, v % 4 + 1, v % 7 + 1, now() - v % 90 * interval '1 day', now() - v % 30 * interval '1 day'
FROM generate_series(1, 600) AS v;
INSERT INTO vulnerability_feedback (project_id, author_id, comment_author_id, feedback_type, category, created_at, updated_at)
SELECT f % 120 + 1, f * 7 % 200 + 1, CASE WHEN f % 2 = 0 THEN f % 200 + 1 END, 0, f % 5, now(), now() FROM generate_series(1, 200) AS f;
INSERT INTO vulnerability_external_issue_links (vulnerability_id, author_id, external_issue_key, created_at, updated_at)
SELECT l, l * 7 % 200 + 1, 'DEMO-' || l, now(), now() FROM generate_series(1, 100) AS l;

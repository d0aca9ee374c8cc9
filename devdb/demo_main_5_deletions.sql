-- Demo data, database main: the deletions, through the triggers. Their children
-- in main, ci and sec remain for loose_foreign_keys_cleanup.
DELETE FROM merge_requests WHERE id BETWEEN 3001 AND 3350;
DELETE FROM projects WHERE id BETWEEN 121 AND 160;
DELETE FROM namespaces WHERE id BETWEEN 41 AND 60;
DELETE FROM users WHERE id BETWEEN 501 AND 600;

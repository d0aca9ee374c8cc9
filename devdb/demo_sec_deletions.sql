-- Demo data, database sec: the deletions, through the triggers.
DELETE FROM vulnerabilities WHERE id > 500;

-- Demo data, database ci: the deletions, through the triggers.
DELETE FROM p_ci_pipelines WHERE id > 10000;
DELETE FROM ci_triggers WHERE id > 50;

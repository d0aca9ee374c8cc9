-- +goose Up
-- What is looked for in a long history: the newest run of a state, of a worker on a database or of all, and fires by what
-- became of them. The first serves runs at work, too.
CREATE INDEX runs_of_state ON maintenance.runs (state, id DESC);
CREATE INDEX runs_by_outcome ON maintenance.runs (worker, database, state, id DESC) WHERE NOT dry_run;
CREATE INDEX fires_by_outcome ON maintenance.fires (outcome, fire_time DESC, worker DESC);
DROP INDEX maintenance.runs_by_database, maintenance.runs_at_work;
-- A worker whose runs all end alike has none of the other states, which PostgreSQL cannot know from each column by itself.
CREATE STATISTICS maintenance.runs_by_worker_and_state (mcv) ON worker, state FROM maintenance.runs;
CREATE STATISTICS maintenance.fires_by_worker_and_outcome (mcv) ON worker, outcome FROM maintenance.fires;

-- +goose Up
-- Indexes for a long history: the newest run of a state, of a worker on a database or of all, and fires by outcome. The
-- first one also serves running runs.
CREATE INDEX runs_of_state ON maintenance.runs (state, id DESC);
CREATE INDEX runs_by_outcome ON maintenance.runs (worker, database, state, id DESC) WHERE NOT dry_run;
CREATE INDEX fires_by_outcome ON maintenance.fires (outcome, fire_time DESC, worker DESC);
DROP INDEX maintenance.runs_by_database, maintenance.runs_at_work;
-- Statistics of several columns: a worker whose runs have one outcome has no runs of other states.
CREATE STATISTICS maintenance.runs_by_worker_and_state (mcv) ON worker, state FROM maintenance.runs;
CREATE STATISTICS maintenance.fires_by_worker_and_outcome (mcv) ON worker, outcome FROM maintenance.fires;

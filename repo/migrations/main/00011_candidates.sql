-- +goose Up
-- What dry runs would work on. Lists of runs do not read these columns: a run may have 1,000 candidates.
ALTER TABLE maintenance.runs
  ADD COLUMN candidates jsonb NOT NULL DEFAULT '[]',
  ADD COLUMN more_candidates bigint NOT NULL DEFAULT 0,
  ADD COLUMN candidates_digest text NOT NULL DEFAULT '';
COMMENT ON COLUMN maintenance.runs.candidates IS 'Of dry runs, and of runs that ended with PLAN_CHANGED: what it would work on, the first 1,000.';
COMMENT ON COLUMN maintenance.runs.more_candidates IS 'How many there are besides.';
COMMENT ON COLUMN maintenance.runs.candidates_digest IS 'SHA-256 over kind, id, action and reason of all; empty where not all could be looked at.';

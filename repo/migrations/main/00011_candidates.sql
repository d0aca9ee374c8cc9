-- +goose Up
-- The candidates of dry runs. Lists of runs do not read these columns: a run may have 1,000 candidates.
ALTER TABLE maintenance.runs
  ADD COLUMN candidates jsonb NOT NULL DEFAULT '[]',
  ADD COLUMN more_candidates bigint NOT NULL DEFAULT 0,
  ADD COLUMN candidates_digest text NOT NULL DEFAULT '';
COMMENT ON COLUMN maintenance.runs.candidates IS 'The first 1,000 candidates of a dry run, or of a run that ended with PLAN_CHANGED.';
COMMENT ON COLUMN maintenance.runs.more_candidates IS 'Number of further candidates.';
COMMENT ON COLUMN maintenance.runs.candidates_digest IS 'SHA-256 over kind, id, action and reason of all candidates, or empty if not all could be read.';

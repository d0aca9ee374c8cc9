-- +goose Up
CREATE TABLE maintenance.outside_paths (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id uuid,
  job_id bigint,
  kind text NOT NULL,
  path text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_at timestamptz,
  done_by text NOT NULL DEFAULT ''
);
CREATE INDEX outside_paths_by_job ON maintenance.outside_paths (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX outside_paths_by_run ON maintenance.outside_paths (run_id, id) WHERE run_id IS NOT NULL;
CREATE INDEX outside_paths_pending ON maintenance.outside_paths (id) WHERE done_at IS NULL;
CREATE INDEX outside_paths_done ON maintenance.outside_paths (done_at) WHERE done_at IS NOT NULL;
COMMENT ON TABLE maintenance.outside_paths IS 'Paths of files outside the database that belonged to deleted rows, written with the deletion. Only this table has them: see caretaker jobs outside.';
COMMENT ON COLUMN maintenance.outside_paths.done_at IS 'The time at which an operator reported the path as clean. Other rows are kept permanently.';

CREATE INDEX protected_targets_by_end ON maintenance.protected_targets (until) WHERE until IS NOT NULL;

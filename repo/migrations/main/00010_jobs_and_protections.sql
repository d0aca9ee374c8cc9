-- +goose Up
CREATE TABLE maintenance.protected_targets (
  kind text NOT NULL CHECK (kind IN ('user', 'group')),
  id bigint NOT NULL,
  reason text NOT NULL,
  protected_by text NOT NULL,
  since timestamptz NOT NULL DEFAULT clock_timestamp(),
  until timestamptz,
  PRIMARY KEY (kind, id)
);
COMMENT ON TABLE maintenance.protected_targets IS 'Users and groups that caretaker must not delete, nor groups above them: docs/veto.md.';

CREATE TABLE maintenance.job_cancellations (
  job_id bigint PRIMARY KEY,
  user_id bigint,
  group_id bigint,
  reason text NOT NULL,
  cancelled_by text NOT NULL,
  cancelled_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX job_cancellations_by_user ON maintenance.job_cancellations (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX job_cancellations_by_group ON maintenance.job_cancellations (group_id) WHERE group_id IS NOT NULL;
COMMENT ON TABLE maintenance.job_cancellations IS 'Jobs that an operator has cancelled, with the user or group that they are about. A row goes when its job is retried, or after it.';

CREATE TABLE maintenance.job_results (
  job_id bigint PRIMARY KEY,
  tables jsonb NOT NULL DEFAULT '{}',
  worked interval NOT NULL DEFAULT '0'
) WITH (fillfactor = 50);
COMMENT ON TABLE maintenance.job_results IS 'What all attempts of a job have changed, {table: [deleted, updated]}, and how long they have worked. A row goes after its job.';

CREATE TABLE maintenance.outside_paths (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  job_id bigint NOT NULL DEFAULT 0,
  kind text NOT NULL,
  path text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  done_at timestamptz
);
CREATE INDEX outside_paths_by_job ON maintenance.outside_paths (job_id, id);
CREATE INDEX outside_paths_pending ON maintenance.outside_paths (id) WHERE done_at IS NULL;
CREATE INDEX outside_paths_done ON maintenance.outside_paths (done_at) WHERE done_at IS NOT NULL;
COMMENT ON TABLE maintenance.outside_paths IS 'What deleted rows have left outside the database, until something has removed it there and said so (done_at). Job 0: a run of ghost_user_migration.';

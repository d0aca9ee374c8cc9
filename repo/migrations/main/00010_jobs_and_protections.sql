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
COMMENT ON TABLE maintenance.protected_targets IS 'Users and groups that caretaker must not delete, nor the groups that contain them: https://github.com/caretaker-go/caretaker/blob/main/docs/guides/protect-and-audit.md';

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
COMMENT ON TABLE maintenance.job_cancellations IS 'Jobs that an operator has cancelled, with their user or group. A row is deleted when its job is retried, or after it.';

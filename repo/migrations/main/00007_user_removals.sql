-- +goose Up
CREATE TABLE maintenance.user_removals (
  user_id bigint PRIMARY KEY,
  deleted_by_id bigint,
  reason text NOT NULL,
  begun_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE maintenance.user_removals IS 'Users whose removal has started: their personal projects are deleted, and the removal is no longer refused. A row is deleted when its user is queued for the ghost migration.';

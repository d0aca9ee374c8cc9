-- +goose Up
CREATE TABLE maintenance.group_removals (
  group_id bigint PRIMARY KEY,
  user_id bigint,
  begun_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  removed_groups bigint NOT NULL DEFAULT 0,
  removed_projects bigint NOT NULL DEFAULT 0,
  removed_rows bigint NOT NULL DEFAULT 0,
  queued_bots bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE maintenance.group_removals IS 'Groups whose removal has started: they are never restored. A row is deleted with its group.';

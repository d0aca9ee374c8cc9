-- +goose Up
CREATE TABLE maintenance.seen_children (
  database text PRIMARY KEY,
  children text[] NOT NULL,
  asked text[] NOT NULL,
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE maintenance.seen_children IS 'The child tables of loose foreign keys that each configured database had when it last answered a run. A database that does not answer counts as having them.';
COMMENT ON COLUMN maintenance.seen_children.asked IS 'All child tables of the definitions of that run.';

-- +goose Up
CREATE TABLE maintenance.absent_children (
  child text PRIMARY KEY,
  accepted_at timestamptz NOT NULL DEFAULT clock_timestamp() CHECK (isfinite(accepted_at)),
  accepted_by text NOT NULL
);
COMMENT ON TABLE maintenance.absent_children IS 'Child tables of loose foreign keys that an operator has accepted as absent: their definitions are skipped. A run that finds such a table deletes its row.';

-- +goose Up
CREATE TABLE maintenance.gone_children (
  child text NOT NULL,
  database text NOT NULL,
  accepted_at timestamptz NOT NULL DEFAULT clock_timestamp() CHECK (isfinite(accepted_at)),
  accepted_by text NOT NULL,
  PRIMARY KEY (child, database)
);
COMMENT ON TABLE maintenance.gone_children IS 'Child tables of loose foreign keys that an operator has accepted as missing in one configured database, while others have them. A run that finds the table deletes its row.';

-- +goose Up
CREATE TABLE maintenance.orphan_audits (
  definition text NOT NULL,
  database text NOT NULL,
  after text[],
  done boolean NOT NULL DEFAULT false,
  PRIMARY KEY (definition, database)
);
COMMENT ON TABLE maintenance.orphan_audits IS 'How far the worker orphan_audit has got: one row for each loose foreign key in each database that has its child table, until all are done.';
COMMENT ON COLUMN maintenance.orphan_audits.after IS 'The last key looked at; empty: none yet.';

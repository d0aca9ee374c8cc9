-- +goose Up
CREATE TABLE maintenance.orphan_audits (
  definition text NOT NULL,
  database text NOT NULL,
  after text[],
  done boolean NOT NULL DEFAULT false,
  PRIMARY KEY (definition, database)
);
COMMENT ON TABLE maintenance.orphan_audits IS 'Progress of the worker orphan_audit: one row for each loose foreign key in each database with its child table, until all are done.';
COMMENT ON COLUMN maintenance.orphan_audits.after IS 'The last checked key, or empty before the first one.';

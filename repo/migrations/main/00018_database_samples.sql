-- +goose Up
CREATE TABLE maintenance.database_samples (
  minute timestamptz NOT NULL,
  database text NOT NULL,
  pending bigint,
  oldest double precision,
  load double precision,
  p50 double precision,
  p99 double precision,
  PRIMARY KEY (minute, database)
);
COMMENT ON TABLE maintenance.database_samples IS 'Figures of each database of the last day, one row for each database and step of two hours, which minute begins, for the charts of the status page. NULL: not known.';
COMMENT ON COLUMN maintenance.database_samples.oldest IS 'Age of the oldest pending item in seconds.';
COMMENT ON COLUMN maintenance.database_samples.load IS 'The highest load as a share of its limit.';
COMMENT ON COLUMN maintenance.database_samples.p50 IS 'Highest median of a minute''s durations of statements in seconds, on the slowest server. p99 is the 99th percentile.';

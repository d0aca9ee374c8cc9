-- +goose Up
CREATE TABLE maintenance.backlog_samples (
  minute timestamptz NOT NULL,
  worker text NOT NULL,
  pending bigint NOT NULL,
  due bigint NOT NULL,
  deferred bigint NOT NULL,
  dead bigint NOT NULL,
  PRIMARY KEY (minute, worker)
);
COMMENT ON TABLE maintenance.backlog_samples IS 'Backlogs of the last day, one row for each worker and step of 30 minutes, which minute begins, for the charts of the status page.';

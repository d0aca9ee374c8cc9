-- +goose Up
CREATE TABLE maintenance.run_counts (run_id uuid NOT NULL, name text NOT NULL, n bigint NOT NULL);
COMMENT ON TABLE maintenance.run_counts IS 'What running runs have done with records, one row for each statement, written in its transaction; goes with the end of the run.';
CREATE INDEX run_counts_by_run ON maintenance.run_counts (run_id);

-- +goose Up
CREATE TABLE maintenance.run_counts (run_id uuid NOT NULL, name text NOT NULL, n bigint NOT NULL);
COMMENT ON TABLE maintenance.run_counts IS 'Counts of running runs, one row for each statement, written in its transaction. The end of the run deletes its rows.';
CREATE INDEX run_counts_by_run ON maintenance.run_counts (run_id);

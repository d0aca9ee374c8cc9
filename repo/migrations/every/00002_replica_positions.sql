-- +goose Up
CREATE TABLE maintenance.replica_positions (
  name text PRIMARY KEY,
  epoch bigint NOT NULL,
  timeline integer NOT NULL,
  lsn pg_lsn NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE maintenance.replica_positions IS 'Positions of the write-ahead log after the last write of the run with this lease and epoch. Runs read only a replica that has replayed it.';

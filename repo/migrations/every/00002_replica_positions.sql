-- +goose Up
CREATE TABLE maintenance.replica_positions (
  name text PRIMARY KEY,
  epoch bigint NOT NULL,
  timeline integer NOT NULL,
  lsn pg_lsn NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE maintenance.replica_positions IS 'Where the write-ahead log stood after the last write of the run that held the lease of that name and epoch: a read replica that has replayed it may be read.';

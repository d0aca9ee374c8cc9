-- +goose Up
CREATE TABLE maintenance.queue_home (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  queue oid NOT NULL
);
COMMENT ON TABLE maintenance.queue_home IS 'The table loose_foreign_keys_deleted_records that runs work, by its OID. Where another one comes first in the search_path, they stop.';

-- +goose Up
CREATE TABLE maintenance.queue_home (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  queue oid NOT NULL
);
COMMENT ON TABLE maintenance.queue_home IS 'The OID of the table loose_foreign_keys_deleted_records that runs process. If another such table comes first in the search_path, runs stop.';

-- +goose Up
CREATE TABLE maintenance.routed_record_failures (
  partition bigint NOT NULL,
  record_id uuid NOT NULL,
  failures integer NOT NULL DEFAULT 0,
  setbacks integer NOT NULL DEFAULT 0,
  last_definition text NOT NULL,
  sqlstate text NOT NULL,
  failed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (partition, record_id)
);
COMMENT ON TABLE maintenance.routed_record_failures IS 'Like record_failures, for records of the queues of organizations, namespaces, projects and users.';

ALTER TABLE maintenance.dead_records
  ADD COLUMN queue text NOT NULL DEFAULT 'loose_foreign_keys_deleted_records', ADD COLUMN owner bigint;
COMMENT ON COLUMN maintenance.dead_records.queue IS 'The table of the record, to which caretaker lfk retry returns it.';
COMMENT ON COLUMN maintenance.dead_records.owner IS 'The id of the organization, namespace, project or user of the record, or NULL for a queue without owners.';

-- +goose Up
CREATE TABLE maintenance.record_traces (
  partition bigint NOT NULL,
  record_id bigint NOT NULL,
  traceparent text NOT NULL,
  PRIMARY KEY (partition, record_id)
);
COMMENT ON TABLE maintenance.record_traces IS 'The span (W3C traceparent) in which a row was deleted whose record waits in loose_foreign_keys_deleted_records, where the session had set caretaker.traceparent; goes with the record.';

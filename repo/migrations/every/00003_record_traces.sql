-- +goose Up
CREATE TABLE maintenance.record_traces (
  partition bigint NOT NULL,
  record_id bigint NOT NULL,
  traceparent text NOT NULL,
  PRIMARY KEY (partition, record_id)
);
COMMENT ON TABLE maintenance.record_traces IS 'Spans (W3C traceparent) of deletions whose records are pending, if the session had set caretaker.traceparent. A row is deleted with its record.';

-- +goose Up
CREATE TABLE maintenance.audit (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  by text NOT NULL,
  address text NOT NULL,
  role text NOT NULL,
  action text NOT NULL,
  target text NOT NULL,
  reason text NOT NULL,
  outcome text NOT NULL
);
CREATE INDEX audit_by_time ON maintenance.audit (at, id);
COMMENT ON TABLE maintenance.audit IS 'Audit: one row for each call of the API that changes something, written at its end. It is kept as long as runs.';
COMMENT ON COLUMN maintenance.audit.by IS 'Name of the token or the client certificate, else the unchecked name in the header caretaker-user.';
COMMENT ON COLUMN maintenance.audit.outcome IS 'OK, or the code and the reason of the error.';

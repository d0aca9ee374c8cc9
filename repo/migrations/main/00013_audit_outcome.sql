-- +goose Up
COMMENT ON TABLE maintenance.audit IS 'Audit: one row for each call of the API that changes something, written before the change. It is kept as long as runs.';
COMMENT ON COLUMN maintenance.audit.at IS 'The start of the call.';
COMMENT ON COLUMN maintenance.audit.outcome IS 'OK, or the code and the reason of the error. STARTED until the call ends, and permanently if its server died before.';

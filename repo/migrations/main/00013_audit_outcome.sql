-- +goose Up
COMMENT ON TABLE maintenance.audit IS 'Who asked for what: one row for each call of the API that was to change something, written before it does; kept as long as runs.';
COMMENT ON COLUMN maintenance.audit.at IS 'When the call began.';
COMMENT ON COLUMN maintenance.audit.outcome IS 'OK, or the code and the reason of the error; STARTED until the call ends, and for good where its server died in the middle.';

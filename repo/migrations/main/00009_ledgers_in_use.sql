-- +goose Up
-- Only workers in use have a ledger. The ledger starts again when its worker is used again.
ALTER TABLE maintenance.schedules
  ADD COLUMN in_use_since timestamptz NOT NULL DEFAULT '-infinity',
  ADD COLUMN used_at timestamptz NOT NULL DEFAULT clock_timestamp();
COMMENT ON COLUMN maintenance.schedules.in_use_since IS 'The start of the current use of the worker. Earlier fires are neither caught up nor counted.';
COMMENT ON COLUMN maintenance.schedules.used_at IS 'The last check by a server on which the worker is enabled and configured.';

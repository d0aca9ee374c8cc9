-- +goose Up
-- Only workers that some server uses have a ledger; one begins anew when its worker is used again.
ALTER TABLE maintenance.schedules
  ADD COLUMN in_use_since timestamptz NOT NULL DEFAULT '-infinity',
  ADD COLUMN used_at timestamptz NOT NULL DEFAULT clock_timestamp();
COMMENT ON COLUMN maintenance.schedules.in_use_since IS 'Fires up to then are of an earlier use of the worker: they are neither caught up nor counted.';
COMMENT ON COLUMN maintenance.schedules.used_at IS 'When a server on which the worker is enabled and configured last looked.';

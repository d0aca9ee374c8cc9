-- +goose Up
ALTER TABLE maintenance.dead_records ADD COLUMN key_values text[];
COMMENT ON COLUMN maintenance.dead_records.key_values IS 'The key of a deleted row that was not known by one integer, in text form; primary_key_value is 0 then.';

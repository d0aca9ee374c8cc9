-- +goose Up
ALTER TABLE maintenance.dead_records ADD COLUMN key_values text[];
COMMENT ON COLUMN maintenance.dead_records.key_values IS 'The key of a deleted row as text, unless it is one integer. primary_key_value is then 0.';

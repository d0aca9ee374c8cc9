-- +goose Up
CREATE TABLE maintenance.untracked_partitions (
  schema text NOT NULL,
  name text NOT NULL,
  PRIMARY KEY (schema, name)
);
COMMENT ON TABLE maintenance.untracked_partitions IS 'Partitions of tracked tables that caretaker lfk untrack has named. Runs do not track them again, but caretaker lfk track of the parent does.';

-- Partitions without the trigger of their table do not change: an operator may have untracked them.
INSERT INTO maintenance.untracked_partitions (schema, name)
SELECT DISTINCT n.nspname, part.relname
FROM pg_proc f
JOIN pg_trigger t ON t.tgfoid = f.oid
JOIN pg_class root ON root.oid = t.tgrelid AND root.relkind = 'p' AND NOT root.relispartition
CROSS JOIN LATERAL pg_partition_tree(root.oid) below
JOIN pg_class part ON part.oid = below.relid AND part.oid <> root.oid
JOIN pg_namespace n ON n.oid = part.relnamespace
WHERE starts_with(f.proname, 'insert_into_loose_foreign_keys_deleted_records')
  AND NOT EXISTS (SELECT FROM pg_trigger own WHERE own.tgrelid = part.oid AND own.tgfoid = f.oid);

CREATE TABLE maintenance.adopted_foreign_keys (
  schema text NOT NULL,
  "table" text NOT NULL,
  name text NOT NULL,
  definition text NOT NULL,
  columns text[] NOT NULL,
  parent_schema text NOT NULL,
  parent text NOT NULL,
  adopted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (schema, "table", name)
);
COMMENT ON TABLE maintenance.adopted_foreign_keys IS 'Foreign keys that caretaker lfk adopt has dropped, written in the same transaction. caretaker lfk revert creates them again. Runs skip the records of a parent while the definitions do not have all of its adopted keys.';
COMMENT ON COLUMN maintenance.adopted_foreign_keys.definition IS 'The result of pg_get_constraintdef.';

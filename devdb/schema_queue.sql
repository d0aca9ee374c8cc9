-- The queue of deleted records, once in each database, with the functions that
-- feed it: those of GitLab, which trust the caller's search_path and rights.
CREATE SCHEMA IF NOT EXISTS gitlab_partitions_dynamic;
CREATE SEQUENCE loose_foreign_keys_deleted_records_id_seq;

CREATE TABLE loose_foreign_keys_deleted_records (
    id bigint NOT NULL DEFAULT nextval('loose_foreign_keys_deleted_records_id_seq'), partition bigint NOT NULL DEFAULT 1, primary_key_value bigint NOT NULL,
    status smallint NOT NULL DEFAULT 1, created_at timestamptz NOT NULL DEFAULT now(), fully_qualified_table_name text NOT NULL,
    consume_after timestamptz DEFAULT now(), cleanup_attempts smallint DEFAULT 0,
    PRIMARY KEY (partition, id),
    CHECK (char_length(fully_qualified_table_name) <= 150)
) PARTITION BY LIST (partition);
CREATE TABLE gitlab_partitions_dynamic.loose_foreign_keys_deleted_records_1 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (1);
CREATE INDEX index_loose_foreign_keys_deleted_records_for_partitioned_query ON loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, consume_after, id) WHERE status = 1;
ALTER SEQUENCE loose_foreign_keys_deleted_records_id_seq OWNED BY loose_foreign_keys_deleted_records.id;

-- For plain tables: records schema and name of the trigger's table.
CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
    SELECT TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME, old_table.id FROM old_table;
    RETURN NULL;
END
$$;

-- For partitioned tables and their partitions: records the parent's name, which
-- is the trigger's argument.
CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
    SELECT current_schema() || '.' || TG_ARGV[0], old_table.id FROM old_table;
    RETURN NULL;
END
$$;

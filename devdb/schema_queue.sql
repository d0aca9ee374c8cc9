-- The queue of deleted records, once in each database, with GitLab's
-- functions that write to it. They use the caller's search_path and rights.
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

-- The queues of single owners. Their ids are UUIDs of version 7, which grow with the time.
CREATE FUNCTION uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;
DO $$
DECLARE
    owner text;
    queue text;
BEGIN
    FOREACH owner IN ARRAY ARRAY['organization', 'namespace', 'project', 'user'] LOOP
        queue := format('loose_foreign_keys_%s_deleted_records', owner);
        EXECUTE format('CREATE TABLE %I (
            id uuid NOT NULL DEFAULT uuid_v7(), partition bigint NOT NULL DEFAULT 1, primary_key_value bigint NOT NULL, %I bigint NOT NULL,
            consume_after timestamptz NOT NULL DEFAULT now(), created_at timestamptz NOT NULL DEFAULT now(),
            status smallint NOT NULL DEFAULT 1, cleanup_attempts smallint NOT NULL DEFAULT 0, fully_qualified_table_name text NOT NULL,
            PRIMARY KEY (partition, id), CHECK (char_length(fully_qualified_table_name) <= 150)
        ) PARTITION BY LIST (partition)', queue, owner || '_id');
        EXECUTE format('CREATE TABLE gitlab_partitions_dynamic.%I PARTITION OF %I FOR VALUES IN (1)', queue || '_1', queue);
        EXECUTE format('CREATE INDEX %I ON %I (partition, fully_qualified_table_name, consume_after, id) WHERE status = 1',
            format('index_loose_foreign_keys_%s_records_for_query', owner), queue);
    END LOOP;
END
$$;

-- Records deleted rows under a name: one record for each target whose source column has a value, else one record in the first queue.
-- Trigger functions see the deleted rows as old_table, also in dynamic statements.
CREATE FUNCTION loose_foreign_keys_routed_inserts(name text, targets jsonb) RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT format('INSERT INTO %I (fully_qualified_table_name, primary_key_value, %I) SELECT %L, id, %I FROM old_table WHERE %I IS NOT NULL',
        target ->> 'table', target ->> 'column', name, target ->> 'source', target ->> 'source')
    FROM jsonb_array_elements(targets) AS target
    UNION ALL
    SELECT format('INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) SELECT %L, id FROM old_table%s',
        name, coalesce(' WHERE ' || string_agg(format('%I IS NULL', target ->> 'source'), ' AND '), ''))
    FROM jsonb_array_elements(targets) AS target
$$;

-- For plain tables: records schema and name of the trigger's table. The argument has the targets, if any.
CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    statement text;
BEGIN
    IF TG_NARGS = 0 THEN
        INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
        SELECT TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME, old_table.id FROM old_table;
        RETURN NULL;
    END IF;
    FOR statement IN SELECT loose_foreign_keys_routed_inserts(TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME, TG_ARGV[0]::jsonb) LOOP
        EXECUTE statement;
    END LOOP;
    RETURN NULL;
END
$$;

-- For partitioned tables and their partitions: records the parent's name, which
-- is the trigger's first argument. The second one has the targets, if any.
CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    statement text;
BEGIN
    IF TG_NARGS < 2 THEN
        INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
        SELECT current_schema() || '.' || TG_ARGV[0], old_table.id FROM old_table;
        RETURN NULL;
    END IF;
    FOR statement IN SELECT loose_foreign_keys_routed_inserts(current_schema() || '.' || TG_ARGV[0], TG_ARGV[1]::jsonb) LOOP
        EXECUTE statement;
    END LOOP;
    RETURN NULL;
END
$$;

-- This part runs after the inserts with fixed ids. Every sequence continues after
-- the highest id, so that no id occurs twice. ANALYZE updates the statistics.
DO $$
DECLARE
    owned record;
BEGIN
    FOR owned IN
        SELECT d.objid::regclass AS sequence, d.refobjid::regclass AS owner, a.attname
        FROM pg_depend d
        JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
        JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
        WHERE d.deptype = 'a' AND s.relnamespace = current_schema()::regnamespace
          AND d.refobjid <> 'loose_foreign_keys_deleted_records'::regclass
    LOOP
        EXECUTE format('SELECT setval(%L, max(%I)) FROM %s HAVING max(%I) IS NOT NULL',
                       owned.sequence, owned.attname, owned.owner, owned.attname);
    END LOOP;
END
$$;
ANALYZE;

package oracle

// Witness is SQL that makes the schema witness and triggers. They record every row of the
// application that a statement itself deletes or updates, not a foreign key or a trigger. They
// record the paths that deleted rows leave outside the database. They skip queues and claims, which
// are pending work, and sessions whose application_name is application.
const Witness = `
CREATE SCHEMA witness;
CREATE TABLE witness.seen (name text, action text);
CREATE FUNCTION witness.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF current_setting('application_name') <> 'application' THEN
    INSERT INTO witness.seen SELECT relname, lower(TG_OP) || 'd' FROM pg_class WHERE oid = coalesce(pg_partition_root(TG_RELID), TG_RELID);
  END IF;
  RETURN NULL;
END $$;
CREATE TABLE witness.left_outside (kind text, path text);
CREATE FUNCTION witness.leave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO witness.left_outside VALUES (TG_ARGV[0], OLD.disk_path);
  RETURN NULL;
END $$;
DO $$ DECLARE t regclass; BEGIN
  FOR t IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND c.relname NOT LIKE 'loose\_foreign\_keys\_%' AND c.relname NOT IN ('import_placeholder_user_details', 'ghost_user_migrations') LOOP
    EXECUTE format('CREATE TRIGGER witness AFTER DELETE OR UPDATE ON %s FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION witness.note()', t);
  END LOOP;
  IF to_regclass('ghost_user_migrations') IS NOT NULL THEN
    CREATE TRIGGER witness AFTER DELETE ON ghost_user_migrations FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION witness.note();
    CREATE TRIGGER witness AFTER DELETE ON import_placeholder_user_details FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION witness.note();
    CREATE TRIGGER witnessed AFTER UPDATE ON import_placeholder_user_details FOR EACH ROW
      WHEN (pg_trigger_depth() = 0 AND OLD.namespace_id IS DISTINCT FROM NEW.namespace_id) EXECUTE FUNCTION witness.note();
    CREATE TRIGGER witness_paths AFTER DELETE ON project_repositories FOR EACH ROW EXECUTE FUNCTION witness.leave('project_repository');
    CREATE TRIGGER witness_paths AFTER DELETE ON snippet_repositories FOR EACH ROW EXECUTE FUNCTION witness.leave('snippet_repository');
  END IF;
END $$;`

// Seen is what the witness has seen, and Receipted the contents of the receipts, each as one text.
// They are equal if every change has its receipt.
const (
	Seen = `SELECT string_agg(concat_ws(' ', name, action, n), E'\n' ORDER BY name, action)
		FROM (SELECT name, action, count(*) AS n FROM witness.seen GROUP BY 1, 2) s`
	Receipted = `SELECT string_agg(concat_ws(' ', name, action, n), E'\n' ORDER BY name, action)
		FROM (SELECT "table" AS name, replace(action, 'nullified', 'updated') AS action, sum(rows) AS n
			FROM maintenance.receipts GROUP BY 1, 2) r`
)

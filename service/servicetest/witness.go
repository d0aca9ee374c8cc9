package servicetest

import (
	"context"
	"fmt"

	"github.com/caretaker-go/caretaker/service"
)

// witnessSQL notes every row of the application that is changed by a statement, and not by a foreign key
// or trigger. What is left out are queues and claims: they say what is to be done.
const witnessSQL = `
CREATE SCHEMA witness;
CREATE TABLE witness.seen (name text, action text);
CREATE FUNCTION witness.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO witness.seen SELECT relname, lower(TG_OP) || 'd' FROM pg_class WHERE oid = coalesce(pg_partition_root(TG_RELID), TG_RELID);
  RETURN NULL;
END $$;
DO $$ DECLARE t regclass; BEGIN
  FOR t IN SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND c.relname NOT IN ('loose_foreign_keys_deleted_records', 'import_placeholder_user_details', 'ghost_user_migrations') LOOP
    EXECUTE format('CREATE TRIGGER witness AFTER DELETE OR UPDATE ON %s FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION witness.note()', t);
  END LOOP;
  CREATE TRIGGER witness AFTER DELETE ON ghost_user_migrations FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION witness.note();
  CREATE TRIGGER witness AFTER DELETE ON import_placeholder_user_details FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION witness.note();
  CREATE TRIGGER witnessed AFTER UPDATE ON import_placeholder_user_details FOR EACH ROW
    WHEN (pg_trigger_depth() = 0 AND OLD.namespace_id IS DISTINCT FROM NEW.namespace_id) EXECUTE FUNCTION witness.note();
END $$;
CREATE TABLE witness.left_outside (kind text, path text);
CREATE FUNCTION witness.leave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO witness.left_outside VALUES (TG_ARGV[0], OLD.disk_path);
  RETURN NULL;
END $$;
CREATE TRIGGER witness_paths AFTER DELETE ON project_repositories FOR EACH ROW EXECUTE FUNCTION witness.leave('project_repository');
CREATE TRIGGER witness_paths AFTER DELETE ON snippet_repositories FOR EACH ROW EXECUTE FUNCTION witness.leave('snippet_repository')`

// Witness notes from now on which rows of the application main's statements change, and which paths
// deleted rows leave outside the database, for [Estate.WantReceipts] and [Estate.WantOutside].
func (e *Estate) Witness() {
	e.T.Helper()
	e.Exec("main", witnessSQL)
}

// WantOutside fails the test unless exactly the paths are noted, once, that the witness has seen, and
// so many at least.
func (e *Estate) WantOutside(least int) {
	e.T.Helper()
	const all = `SELECT string_agg(concat_ws(' ', kind, path), E'\n' ORDER BY kind, path) FROM `
	e.Want("main", all+`maintenance.outside_paths`, e.Value("main", all+`witness.left_outside`))
	e.Want("main", fmt.Sprintf(`SELECT count(*) >= %d FROM maintenance.outside_paths`, least), "true")
	e.Want("main", `SELECT count(*) FROM maintenance.outside_paths WHERE (run_id IS NULL) = (job_id IS NULL)`, "0")
}

// WantReceipts fails the test unless the receipts of main are a whole chain, and say what the witness
// has seen.
func (e *Estate) WantReceipts() {
	e.T.Helper()
	check, err := service.VerifyReceipts(context.Background(), e.Open[0], nil)
	if err != nil || len(check.Findings) > 0 {
		e.T.Errorf("%+v, %v", check, err)
	}
	seen := e.Value("main", `SELECT string_agg(concat_ws(' ', name, action, n), E'\n' ORDER BY name, action)
		FROM (SELECT name, action, count(*) AS n FROM witness.seen GROUP BY 1, 2) s`)
	e.Want("main", `SELECT string_agg(concat_ws(' ', name, action, n), E'\n' ORDER BY name, action)
		FROM (SELECT "table" AS name, replace(action, 'nullified', 'updated') AS action, sum(rows) AS n FROM maintenance.receipts GROUP BY 1, 2) r`, seen)
	e.Want("main", `SELECT count(*) FROM maintenance.receipts WHERE (run_id IS NULL) = (job_id IS NULL) OR worker = ''`, "0")
}

// receipts: what a run changes of the application has receipts of the run.
func (c *contract) receipts() {
	c.begin(3)
	c.e.Witness()
	r := c.run(c.service(nil, ""), false)
	c.e.WantReceipts()
	c.e.Want("main", fmt.Sprintf(`SELECT count(*) FROM maintenance.receipts
		WHERE (worker, run_id::text) IS DISTINCT FROM ('%s', '%s')`, c.Worker, r.ID), "0")
}

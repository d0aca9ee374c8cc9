package servicetest

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Routed is the environment variable that moves the records of tests to a routed queue of GitLab.
// The methods of [Estate] rename the queue in SQL. Databases of schema "" have no routed queue.
// They are for tests of caretaker's own.
const Routed = "CARETAKER_TEST_ROUTED"

const routedQueue = "loose_foreign_keys_project_deleted_records"

// routeSQL lets tests use the routed queue like the first one. Records have no owner, ascending ids
// that may be written as integers, and times and attempts that are NULL.
const routeSQL = `DO $do$ BEGIN
	IF to_regclass('routed_ids') IS NULL THEN
		CREATE FUNCTION routed_id(n integer) RETURNS uuid LANGUAGE sql AS
			$$ SELECT ('01980000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid $$;
		CREATE CAST (integer AS uuid) WITH FUNCTION routed_id(integer) AS ASSIGNMENT;
		CREATE SEQUENCE routed_ids OWNED BY ` + routedQueue + `.id;
		ALTER TABLE ` + routedQueue + ` ALTER id SET DEFAULT routed_id(nextval('routed_ids')::integer), ALTER project_id SET DEFAULT 1,
			ALTER consume_after DROP NOT NULL, ALTER cleanup_attempts DROP NOT NULL;
	END IF;
END $do$`

// IntegerKeys returns the schema for tests whose parents have one integer key: "", or Small if records are routed.
func IntegerKeys() string {
	if os.Getenv(Routed) != "" {
		return Small
	}
	return ""
}

// route switches to the routed queue if the variable is set and the database has that queue.
func (e *Estate) route(database string) {
	e.T.Helper()
	if os.Getenv(Routed) != "" && e.Value(database, `to_regclass('`+routedQueue+`')`) != "NULL" {
		e.Exec(database, routeSQL)
		e.routed = true
	}
}

// PlainQueue keeps the name of the first queue in SQL, for a test of that queue or of several.
func (e *Estate) PlainQueue() *Estate {
	e.routed = false
	return e
}

// Reroute makes triggers that caretaker has created write to the routed queue.
func (e *Estate) Reroute() {
	e.T.Helper()
	for database := range e.SQL {
		if e.routed {
			e.Exec(database, e.Value(database, `SELECT coalesce(string_agg(replace(pg_get_triggerdef(oid), 'CREATE', 'CREATE OR REPLACE'), '; '), '')
				FROM pg_trigger WHERE NOT tgisinternal AND tgfoid::regproc::text LIKE 'insert_into_loose_foreign_keys_deleted_records%'`))
		}
	}
}

// sql returns SQL with the names of the queue that the test uses.
func (e *Estate) sql(sql string) string {
	if e.routed {
		for from, to := range map[string]string{
			`\bloose_foreign_keys_deleted_records\b`:                                                    routedQueue,
			`\bmaintenance\.record_failures\b`:                                                          `maintenance.routed_record_failures`,
			`(EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records\()\)`:                     `$1'` + routes("project:id") + `')`,
			`(EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table\('\w+')\)`: `$1, '` + routes("project:id") + `')`,
		} {
			sql = regexp.MustCompile(from).ReplaceAllString(sql, to)
		}
	}
	return sql
}

// routes returns the argument of a trigger that writes to the queues of some owners.
func routes(owners ...string) string {
	var targets []string
	for _, owner := range owners {
		owner, source, _ := strings.Cut(owner, ":")
		targets = append(targets, fmt.Sprintf(`{"table": "loose_foreign_keys_%[1]s_deleted_records", "column": "%[1]s_id", "source": "%[2]s"}`,
			owner, cmp.Or(source, owner+"_id")))
	}
	return "[" + strings.Join(targets, ", ") + "]"
}

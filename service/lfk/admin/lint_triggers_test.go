package admin_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLint_NewLeafOfATrackedParentIsNamed(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part); CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1);
		CREATE TABLE c (p_id int); CREATE INDEX ON c (p_id)`)
	e.Install("p")
	keys := e.Keys("c: [{table: p, column: p_id, on_delete: async_delete}]")
	servicetest.WantFindings(t, keys)
	e.Exec("main", "CREATE TABLE p_2 (LIKE p); ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES IN (2)")
	result := servicetest.WantFindings(t, keys, "error trigger_missing main public.p_2")
	want := "run `caretaker lfk track p --database main`"
	assert.That(t, strings.Contains(result.Findings[0].Advice, want), "got %q, want %q", result.Findings[0].Advice, want)
	tracked := assert.Must(keys.Track(context.Background(), "p", ""))(t)
	assert.That(t, tracked.Database == "main" && len(tracked.Triggers) == 1 &&
		tracked.Triggers[0] == "p_2_loose_fk_trigger on public.p_2", "got %+v", tracked)
	servicetest.WantFindings(t, keys)
}

func TestLint_TriggersThatDoNotDoTheirWork(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE c (p_id int); CREATE INDEX ON c (p_id); CREATE SCHEMA other;
		CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TABLE untracked (id int PRIMARY KEY); CREATE TABLE disabled (id int PRIMARY KEY); CREATE TABLE replicaonly (id int PRIMARY KEY);
		CREATE TABLE originonly (id int PRIMARY KEY); CREATE TABLE foreignly (id int PRIMARY KEY); CREATE TABLE perrow (id int PRIMARY KEY);
		CREATE TABLE routed (id int PRIMARY KEY); CREATE TABLE undefined (id int PRIMARY KEY); CREATE TABLE other.stray (id int PRIMARY KEY);
		CREATE TABLE uuids (id uuid PRIMARY KEY); CREATE TABLE lost (number int PRIMARY KEY); CREATE TABLE renamed (id int PRIMARY KEY);
		CREATE TABLE numbered (number int PRIMARY KEY, part int);
		CREATE TABLE parts (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
		CREATE TABLE other.parts_1 PARTITION OF parts FOR VALUES IN (1); CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);
		CREATE TABLE parts_3 PARTITION OF parts FOR VALUES IN (3); CREATE TABLE parts_4 PARTITION OF parts FOR VALUES IN (4)`)
	e.Install("disabled", "replicaonly", "originonly", "undefined", "renamed", "numbered number")
	trigger := func(table, function, arguments string) {
		e.Exec("main", "CREATE TRIGGER "+table[strings.Index(table, ".")+1:]+"_loose_fk_trigger AFTER DELETE ON "+table+
			" REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records"+
			function+"("+arguments+"); ALTER TABLE ONLY "+table+" ENABLE ALWAYS TRIGGER "+table[strings.Index(table, ".")+1:]+"_loose_fk_trigger")
	}
	trigger("uuids", "", "")
	trigger("lost", "", "")
	trigger("other.stray", "", "")
	trigger("routed", "", `'[{"table": "loose_foreign_keys_project_deleted_records"}]'`)
	trigger("parts", "", "")
	trigger("other.parts_1", "_override_table", "'parts'")
	trigger("parts_2", "_override_table", "'parts', '[]'")
	trigger("parts_3", "", "")
	trigger("parts_4", "_override_table", "'parts_4'")
	e.Exec("main", `ALTER TABLE disabled DISABLE TRIGGER disabled_loose_fk_trigger; ALTER TABLE replicaonly ENABLE REPLICA TRIGGER replicaonly_loose_fk_trigger;
		ALTER TABLE originonly ENABLE TRIGGER originonly_loose_fk_trigger;
		CREATE TRIGGER foreignly_loose_fk_trigger AFTER DELETE ON foreignly FOR EACH STATEMENT EXECUTE FUNCTION other();
		CREATE TRIGGER perrow_loose_fk_trigger AFTER DELETE ON perrow FOR EACH ROW EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();
		DROP TRIGGER renamed_loose_fk_trigger ON renamed;
		CREATE TRIGGER another_name AFTER DELETE ON renamed REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();
		ALTER TABLE renamed ENABLE ALWAYS TRIGGER another_name`)
	var yaml strings.Builder
	yaml.WriteString("c:\n")
	for _, parent := range []string{
		"untracked", "disabled", "replicaonly", "originonly", "foreignly", "perrow", "routed", "uuids", "lost", "parts", "parts_2", "renamed", "numbered",
	} {
		yaml.WriteString("  - {table: " + parent + ", column: p_id, on_delete: async_delete}\n")
	}
	result := servicetest.WantFindings(t, e.Keys(yaml.String()),
		"error trigger_missing main public.untracked", "error trigger_disabled main public.disabled", "error trigger_disabled main public.replicaonly",
		"warning trigger_not_always main public.originonly", "error trigger_missing main public.foreignly", "error trigger_missing main public.perrow",
		"error trigger_form main public.routed", "error key_type main uuids", "error key_type main lost", "error trigger_form main public.parts",
		"error trigger_form main public.parts_3", "error trigger_form main public.parts_4",
		"warning parent_missing main parts_2", "warning trigger_without_definition main undefined", "warning trigger_without_definition main other.stray")
	for _, f := range result.Findings {
		assert.That(t, f.Object != "public.routed" || strings.Contains(f.Advice, "loose_foreign_keys_project_deleted_records, which does not exist or is not a queue"), "got %q", f.Advice)
	}
}

func TestLint_AFunctionThatWritesToNoQueueRecordsNothing(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Install()
	for _, c := range []struct{ name, damage string }{
		{"emptied", `DO $$ DECLARE f regprocedure; BEGIN
			FOR f IN SELECT DISTINCT tgfoid::regprocedure FROM pg_trigger WHERE tgname LIKE '%_loose_fk_trigger' LOOP
				EXECUTE format('CREATE OR REPLACE FUNCTION %s RETURNS trigger LANGUAGE plpgsql AS %L', f, 'BEGIN RETURN NULL; END');
			END LOOP; END $$`},
		// It is in the search_path under both names.
		{"schema renamed", `DO $$ BEGIN EXECUTE format('ALTER SCHEMA public RENAME TO %I', current_user); END $$`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `CREATE TABLE plain (id int PRIMARY KEY); CREATE TABLE keyed (k uuid PRIMARY KEY); CREATE TABLE c (p int, k uuid);
				CREATE INDEX ON c (p); CREATE INDEX ON c (k)`)
			e.Install("plain", "keyed k")
			e.Exec("main", c.damage)
			keys := e.Keys("c: [{table: plain, column: p, on_delete: async_delete}, {table: keyed, column: k, on_delete: async_delete}]")
			found := assert.Must(keys.Lint(t.Context()))(t)
			assert.Equal(t, found.Errors, 2)
			at := slices.IndexFunc(found.Findings, func(f lfk.Finding) bool { return f.Code == "trigger_form" })
			assert.Contains(t, found.Findings[at].Advice, "or uses a queue that does not exist: run `caretaker "+
				"lfk install`")
			e.Install()
			e.Exec("main", `INSERT INTO plain VALUES (1); INSERT INTO keyed VALUES (gen_random_uuid()); DELETE FROM plain; DELETE FROM keyed`)
			e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "2")
		})
	}
}

func TestLint_ParentsThatAreFilledByReplicationInheritedOrRecordedTwice(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE c (p_id int); CREATE INDEX ON c (p_id); CREATE TABLE filled (id int PRIMARY KEY);
		CREATE TABLE above (id int PRIMARY KEY); CREATE TABLE heir () INHERITS (above); CREATE TABLE own (PRIMARY KEY (id)) INHERITS (above);
		CREATE TABLE was (id int, part int DEFAULT 1, PRIMARY KEY (id, part)); CREATE TABLE now (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
		CREATE SUBSCRIPTION s CONNECTION 'dbname=none' PUBLICATION x WITH (connect = false);
		INSERT INTO pg_subscription_rel SELECT oid, 'filled'::regclass, 'r', NULL FROM pg_subscription WHERE subname = 's'`)
	t.Cleanup(func() { e.Exec("main", "ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s") })
	e.Exec("main", "DELETE FROM pg_subscription_rel")
	e.Install("filled", "above", "own")
	e.Exec("main", `INSERT INTO pg_subscription_rel SELECT oid, 'filled'::regclass, 'r', NULL FROM pg_subscription WHERE subname = 's';
		CREATE TRIGGER was_loose_fk_trigger AFTER DELETE ON was REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();
		ALTER TABLE was ENABLE ALWAYS TRIGGER was_loose_fk_trigger; ALTER TABLE was RENAME TO now_1; ALTER TABLE now ATTACH PARTITION now_1 FOR VALUES IN (1)`)
	keys := e.Keys("c: [{table: filled, column: p_id, on_delete: async_delete}, {table: above, column: p_id, on_delete: async_delete}, " +
		"{table: now, column: p_id, on_delete: async_delete}, {table: own, column: p_id, on_delete: async_delete}]")
	assert.Must(keys.Track(t.Context(), "now"))(t)
	found := []string{"error trigger_replication main public.filled", "warning parent_inherited main above", "warning trigger_twice main public.now_1"}
	assert.Contains(t, servicetest.WantFindings(t, keys, found...).Findings[2].Advice, "run DROP TRIGGER was_loose_fk_trigger ON public.now_1")
	assert.Must(keys.Track(t.Context(), "filled"))(t)
	servicetest.WantFindings(t, keys, found[1:]...)
}

func TestLint_ATriggerThatPostgreSQLHasCopiedIsDroppedWhereItIsFrom(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE c (p_id int); CREATE INDEX ON c (p_id); CREATE TABLE p (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
		CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1); CREATE SUBSCRIPTION s CONNECTION 'dbname=none' PUBLICATION x WITH (connect = false);
		INSERT INTO pg_subscription_rel SELECT oid, 'p_1'::regclass, 'r', NULL FROM pg_subscription WHERE subname = 's'`)
	t.Cleanup(func() { e.Exec("main", "ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s") })
	e.Install("p")
	keys := e.Keys("c: [{table: p, column: p_id, on_delete: async_delete}]")
	servicetest.WantFindings(t, keys)
	second := func(name, on string) {
		sql := e.Value("main", `SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'p'::regclass AND tgname = 'p_loose_fk_trigger'`)
		e.Exec("main", strings.NewReplacer("p_loose_fk_trigger", name, " public.p ", " "+on+" ").Replace(sql))
	}
	second("again", "p")
	found := servicetest.WantFindings(t, keys, "warning trigger_twice main public.p", "warning trigger_twice main public.p_1").Findings
	for _, f := range found {
		assert.That(t, strings.HasSuffix(f.Advice, "run DROP TRIGGER again ON public.p"), "got %q", f.Advice)
	}
	e.Exec("main", "DROP TRIGGER again ON public.p")
	second("own", "p_1")
	found = servicetest.WantFindings(t, keys, "warning trigger_twice main public.p_1").Findings
	assert.Contains(t, found[0].Advice, "run DROP TRIGGER own ON public.p_1")
}

func TestLint_WarningsAloneAreNoErrors(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "sec", "main")
	result := servicetest.WantFindings(t, e.Keys("vulnerability_external_issue_links: [{table: vulnerabilities, column: vulnerability_id, on_delete: async_delete}]"),
		"warning trigger_not_always main public.vulnerabilities",
		"warning fk_beside_definition main vulnerability_external_issue_links_vulnerability_id_fkey on public.vulnerability_external_issue_links")
	assert.That(t, result.Errors == 0 && result.Warnings == 2, "got %d errors, %d warnings", result.Errors, result.Warnings)
}

func TestLint_WriteProtectedLeftoversAreNoHomes(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci")
	const tables = "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p_id int)"
	e.Exec("main", tables)
	e.Exec("ci", tables+`; CREATE FUNCTION gitlab_schema_prevent_write() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE TRIGGER a BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON p EXECUTE FUNCTION gitlab_schema_prevent_write();
		CREATE TRIGGER b BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON c EXECUTE FUNCTION gitlab_schema_prevent_write()`)
	e.Exec("main", "CREATE INDEX ON c (p_id)")
	e.Install("p")
	keys := e.Keys("c: [{table: p, column: p_id, on_delete: async_delete}]")
	servicetest.WantFindings(t, keys)
	e.Exec("ci", "ALTER TABLE c DISABLE TRIGGER b")
	servicetest.WantFindings(t, keys, "error fk_not_indexed ci c.p_id -> p")
}

func TestLint_AChildThatIsAViewIsNoTable(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", "CREATE TABLE p (id bigint PRIMARY KEY); CREATE MATERIALIZED VIEW v AS SELECT id AS p_id FROM p")
	e.Install("p")
	servicetest.WantFindings(t, e.Keys("v: [{table: p, column: p_id, on_delete: async_delete}]"), "error child_no_table  v.p_id -> p")
}

func TestLint_QueueMustBeThereAndInOrder(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci", "sec")
	e.Exec("main", "CREATE TABLE loose_foreign_keys_deleted_records (id bigint)")
	installIn(e, "ci", "sec")
	keys := e.Keys("")
	keys.Definitions = servicetest.Definitions(t, "{}")
	e.Exec("ci", "ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT 7")
	e.Exec("sec", "DROP INDEX index_loose_foreign_keys_deleted_records_for_partitioned_query; TRUNCATE maintenance.queue_partitions;"+
		"ALTER TABLE loose_foreign_keys_deleted_records ALTER partition DROP DEFAULT, DROP key_values")
	const queue = "public.loose_foreign_keys_deleted_records"
	result := servicetest.WantFindings(t, keys, "error queue_shape main "+queue, "error default_partition_missing ci "+queue,
		"error queue_shape sec "+queue, "error default_partition_missing sec "+queue)
	for i, want := range []string{"it has no column partition of type bigint", "run `caretaker lfk install " +
		"--database ci` or the worker", "it has no valid index", "create the partition"} {
		assert.That(t, strings.Contains(result.Findings[i].Advice, want), "got %q, want %q", result.Findings[i].Advice, want)
	}
	e.Exec("main", "DROP TABLE loose_foreign_keys_deleted_records")
	keys.Only = "main"
	servicetest.WantFindings(t, keys, "error queue_missing main "+queue)
	e.Exec("ci", `ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT 1;
		INSERT INTO loose_foreign_keys_deleted_records (id, fully_qualified_table_name, primary_key_value, status) VALUES (9, 'p', 1, 2)`)
	keys.Only = "ci"
	servicetest.WantFindings(t, keys, "error sequence_behind ci "+queue)
}

// installIn makes queues in some of the databases.
func installIn(e *servicetest.Estate, names ...string) {
	e.T.Helper()
	for _, name := range names {
		keys := admin.Admin{Databases: e.Open, Only: name}
		assert.Must(keys.Install(context.Background()))(e.T)
	}
}

func TestLint_RecordsOfAParentWithoutDefinitionArePendingForEver(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE q (id int PRIMARY KEY); CREATE TABLE r (id int PRIMARY KEY); CREATE TABLE c (p_id int);
		CREATE INDEX ON c (p_id); INSERT INTO p VALUES (1), (2); INSERT INTO q VALUES (1); INSERT INTO r VALUES (1)`)
	e.Install("p", "q", "r")
	e.Exec("main", `DELETE FROM p; DELETE FROM q; DELETE FROM r; UPDATE loose_foreign_keys_deleted_records SET status = 2 WHERE fully_qualified_table_name = 'public.r';
		UPDATE loose_foreign_keys_deleted_records SET consume_after = now() + interval '1 day' WHERE fully_qualified_table_name = 'public.q';
		INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('elsewhere.p', 1), ('p', 1)`)
	keys := e.Keys("c: [{table: p, column: p_id, on_delete: async_delete}]")
	servicetest.WantFindings(t, keys, "error pending_without_definition main elsewhere.p", "error pending_without_definition main p",
		"error pending_without_definition main public.q", "warning trigger_without_definition main q", "warning trigger_without_definition main r")
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete}]")
	servicetest.WantRun(t, servicetest.RunBatch(t, s, "main"), "succeeded", "processed_records=2")
	e.Want("main", "SELECT count(*) FROM loose_foreign_keys_deleted_records", "4")
}

func TestLint_ChangesNothing(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "ci", "main")
	e.Exec("main", "ALTER DATABASE "+e.Value("main", "quote_ident(current_database())")+" SET default_transaction_read_only = on")
	fresh := servicetest.Estate{T: t, URLs: e.URLs, SQL: e.SQL}
	fresh.Add("main", e.URLs["main"])
	_, err := fresh.Keys(`c: [{table: ci_triggers, column: x, on_delete: async_delete}]`).Lint(context.Background())
	assert.That(t, err == nil, "on a database that takes no changes: %v", err)
}

func TestLint_ATriggerThatNamesAnotherTableIsAnError(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id uuid PRIMARY KEY); CREATE TABLE c (p_id uuid); CREATE INDEX ON c (p_id)`)
	e.Install("p")
	e.Exec("main", `CREATE TABLE p_new (LIKE p INCLUDING ALL);
		ALTER TABLE p RENAME TO p_old; ALTER TABLE p_new RENAME TO p`)
	e.Install("p")
	servicetest.WantFindings(t, e.Keys("c: [{table: p, column: p_id, on_delete: async_delete}]"),
		"error trigger_form main public.p_old")
	if _, err := e.Keys("").Untrack(context.Background(), "p_old"); err != nil {
		t.Fatal(err)
	}
	servicetest.WantFindings(t, e.Keys("c: [{table: p, column: p_id, on_delete: async_delete}]"))
}

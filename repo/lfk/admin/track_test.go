package admin_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestTrack_TwiceMakesOneTriggerThatAlwaysFires(t *testing.T) {
	b := installed(t)
	b.exec("CREATE TABLE p (id int PRIMARY KEY)")
	if got := b.track("p", ""); got.Table != "public.p" || got.Column != "id" || !slices.Equal(got.Triggers, []string{"p_loose_fk_trigger on public.p"}) {
		t.Errorf("got %+v", got)
	}
	for _, column := range []string{"", "id"} {
		if got := b.track("p", column); len(got.Triggers) != 0 {
			t.Errorf("tracked already, got %+v", got)
		}
	}
	b.wantTriggers("p:A")
	b.want("SELECT tgfoid::regproc || '/' || tgnargs FROM pg_trigger WHERE tgname <> 'caretaker_keep_end'", "insert_into_loose_foreign_keys_deleted_records/0")
	// So it is when the table is renamed: a second trigger would record everything twice.
	b.exec("ALTER TABLE p RENAME TO q; INSERT INTO q VALUES (1)")
	if got := b.track("q", "").Triggers; len(got) != 0 {
		t.Errorf("got %q, want none", got)
	}
	b.exec("DELETE FROM q")
	b.wantRecords("public.q:1")
}

func TestTrack_EveryLevelAndLeafHasATriggerAndTheNextAddsWhatIsMissing(t *testing.T) {
	b := partitioned(t)
	b.track("p", "")
	b.wantTriggers("a:A", "leaves.a1:A", "leaves.a2:A", "leaves.b:A", "p:A")
	b.want("SELECT string_agg(DISTINCT tgname || ':' || encode(tgargs, 'escape'), ' ' ORDER BY tgname || ':' || encode(tgargs, 'escape')) FROM pg_trigger WHERE tgname <> 'caretaker_keep_end'",
		`a1_loose_fk_trigger:p\000 a2_loose_fk_trigger:p\000 a_loose_fk_trigger:p\000 b_loose_fk_trigger:p\000 p_loose_fk_trigger:p\000`)
	b.exec("CREATE TABLE leaves.c (id bigint NOT NULL, part int NOT NULL); ALTER TABLE p ATTACH PARTITION leaves.c FOR VALUES IN (4)")
	if got := b.track("p", "").Triggers; !slices.Equal(got, []string{"c_loose_fk_trigger on leaves.c"}) {
		t.Errorf("got %q, want the new leaf's alone", got)
	}
	b.exec("ALTER TABLE leaves.c DISABLE TRIGGER c_loose_fk_trigger; ALTER TABLE ONLY p ENABLE REPLICA TRIGGER p_loose_fk_trigger")
	b.exec("ALTER TABLE leaves.b ENABLE TRIGGER b_loose_fk_trigger")
	if got := b.track("p", "").Triggers; !slices.Equal(got, []string{"p_loose_fk_trigger on public.p", "c_loose_fk_trigger on leaves.c"}) {
		t.Errorf("got %q, want those that did not fire", got)
	}
	b.wantTriggers("a:A", "leaves.a1:A", "leaves.a2:A", "leaves.b:O", "leaves.c:A", "p:A")
}

func TestTrack_RefusesWhatGitLabsQueueCannotRecord(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	b.exec(`CREATE TABLE uuids (id uuid PRIMARY KEY); CREATE TABLE texts (id text PRIMARY KEY); CREATE TABLE numerics (id numeric PRIMARY KEY);
		CREATE TABLE keyless (number int PRIMARY KEY, wide bigint); CREATE TABLE composite (id int, x int, PRIMARY KEY (id, x));
		CREATE TABLE many (id int PRIMARY KEY, nonunique int, partial int, together int, deferred int UNIQUE DEFERRABLE, lowered text, including int);
		CREATE INDEX ON many (nonunique); CREATE UNIQUE INDEX ON many (partial) WHERE partial > 0; CREATE UNIQUE INDEX ON many (together, id);
		CREATE UNIQUE INDEX ON many ((nonunique + 1)); CREATE UNIQUE INDEX ON many (including) INCLUDE (together);
		CREATE TABLE invalid (id int PRIMARY KEY, x int); CREATE UNIQUE INDEX invalid_x ON invalid (x);
		UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'invalid_x'::regclass;
		CREATE VIEW v AS SELECT 1 AS id; CREATE MATERIALIZED VIEW m AS SELECT 1 AS id;
		CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE f (id int) SERVER s;
		CREATE TABLE shared (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part); CREATE TABLE shared_1 PARTITION OF shared FOR VALUES IN (1);
		CREATE TABLE remote (id int) PARTITION BY LIST (id); CREATE FOREIGN TABLE remote_1 PARTITION OF remote FOR VALUES IN (1) SERVER s;
		CREATE TABLE heirs (id int PRIMARY KEY); CREATE FOREIGN TABLE heir () INHERITS (heirs) SERVER s;
		CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.p (id int PRIMARY KEY);
		CREATE TABLE locked (id int PRIMARY KEY); CREATE FUNCTION gitlab_schema_prevent_write() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE TRIGGER lock BEFORE DELETE ON locked EXECUTE FUNCTION gitlab_schema_prevent_write()`)
	before := b.dump()
	for _, c := range []struct{ table, column, reason string }{
		{"nowhere", "", "unknown table nowhere"},
		{"uuids", "", "the key id of public.uuids is of type uuid: only smallint, integer and bigint can be recorded"},
		{"texts", "", "is of type text"},
		{"numerics", "", "is of type numeric"},
		{"keyless", "", "public.keyless has no column named id: specify the key with --column"},
		{"keyless", "absent", "public.keyless has no column absent"},
		{"keyless", "ctid", "has no column ctid"},
		{"keyless", "wide", "wide of public.keyless is not a unique key"},
		{"composite", "", "id of public.composite is not a unique key"},
		{"many", "nonunique", "is not a unique key"},
		{"many", "partial", "is not a unique key"},
		{"many", "together", "is not a unique key"},
		{"many", "deferred", "is not a unique key"},
		{"many", "lowered", "is of type text"},
		{"invalid", "x", "is not a unique key"},
		{"v", "", "public.v is a view or a foreign table"},
		{"m", "", "is a view or a foreign table"},
		{"f", "", "is a view or a foreign table"},
		{"shared", "id", ""},
		{"shared_1", "", "public.shared_1 is a partition of shared: track shared"},
		{"shared", "part", "is not a unique key"},
		{"remote", "", "remote cannot be tracked, because its descendant public.remote_1 is a foreign table"},
		{"heirs", "", "heirs cannot be tracked, because its descendant public.heir is a foreign table"},
		{"elsewhere.p", "", "elsewhere.p is not in the application schema"},
		{"locked", "", "public.locked is a write-protected copy from before the database was split"},
		{"maintenance.leases", "name", "maintenance.leases belongs to caretaker"},
		{"loose_foreign_keys_deleted_records", "", "is the queue itself"},
		{"loose_foreign_keys_deleted_records_1", "", "is a partition of loose_foreign_keys_deleted_records"},
	} {
		_, err := b.Track(context.Background(), c.table, c.column)
		if c.reason == "" {
			assert.That(t, err == nil, "%s %s: %v", c.table, c.column, err)
			assert.Must(b.Untrack(context.Background(), c.table))(t)
			continue
		}
		b.wantRefusal(err, c.reason)
	}
	assert.That(t, b.dump() == before, "refusals changed the schema")
	b.track("many", " including ")
}

func TestTrack_RefusesNamesThatPostgreSQLWouldCutOff(t *testing.T) {
	b := installed(t)
	name46, name47 := strings.Repeat("n", 46), strings.Repeat("n", 44)+"é"+"n"
	b.exec(`CREATE TABLE ` + name46 + ` (id int PRIMARY KEY); CREATE TABLE ` + name47 + ` (id int PRIMARY KEY);
		CREATE TABLE p (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part); CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1);
		CREATE TABLE "` + name47 + `_leaf" PARTITION OF p FOR VALUES IN (2);
		CREATE TABLE q (organizations int PRIMARY KEY, group_number int UNIQUE, group_id int UNIQUE)`)
	b.track(name46, "")
	b.refuses(name47, "", "name "+name47+"_loose_fk_trigger would have 64 bytes, but PostgreSQL allows only 63")
	b.track("p", "")
	b.refuses("q", "organizations", "insert_into_loose_foreign_keys_deleted_records_with_organizations would have 65 bytes")
	b.track("q", "group_id")
	b.wantTriggers(`"`+name47+`_leaf":A`, name46+":A", "p:A", "p_1:A", "q:A")
	b.want("SELECT tgname FROM pg_trigger WHERE tgrelid = '\""+name47+"_leaf\"'::regclass", "p_loose_fk_trigger")
	b.want("SELECT count(*) FROM pg_proc WHERE proname LIKE 'insert%with%'", "1")
}

func TestTrack_ADifferentTriggerIsLeftAlone(t *testing.T) {
	b := partitioned(t)
	b.exec(`CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TABLE q (id int PRIMARY KEY, number int UNIQUE);
		CREATE TRIGGER q_loose_fk_trigger AFTER DELETE ON q FOR EACH STATEMENT EXECUTE FUNCTION other();
		CREATE TRIGGER b_loose_fk_trigger AFTER DELETE ON leaves.b REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table('other', '[]')`)
	before := b.dump()
	b.refuses("q", "", "public.q has a different trigger named q_loose_fk_trigger, which calls other()")
	b.refuses("p", "", "leaves.b has a different trigger named b_loose_fk_trigger", "override_table('other', '[]')")
	assert.That(t, b.dump() == before, "refusals changed the schema")
	b.exec("DROP TRIGGER q_loose_fk_trigger ON q")
	b.track("q", "number")
	for _, column := range []string{"", "id"} {
		b.refuses("q", column, "public.q is tracked by the column number: use --column number, or "+
			"run `caretaker lfk untrack q` first")
	}
}

func TestTrack_AFunctionThatInsertsIsUsedAsItIs(t *testing.T) {
	b := installed(t)
	b.exec(`CREATE TABLE q (number int PRIMARY KEY);
		CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records_with_number() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO x SELECT; END'`)
	b.track("q", "number")
	b.want("SELECT prosrc FROM pg_proc WHERE proname LIKE '%with_number'", "BEGIN INSERT INTO x SELECT; END")
	b.exec("DROP FUNCTION insert_into_loose_foreign_keys_deleted_records; CREATE TABLE p (id int PRIMARY KEY)")
	b.refuses("p", "", "insert_into_loose_foreign_keys_deleted_records", "is missing")
}

func TestTrack_ALockThatIsNotToBeHadChangesNothing(t *testing.T) {
	b := partitioned(t)
	other := servicetest.Connect(t, b.url)
	tx := assert.Must(other.Begin(context.Background()))(t)
	assert.Must(tx.Exec(context.Background(), "DELETE FROM leaves.b WHERE id = 2"))(t)
	before := b.dump()
	_, err := b.Track(context.Background(), "p", "")
	servicetest.WantError(t, err, "track p on main", "55P03",
		"nothing was changed, because of a lock timeout or a deadlock with another transaction): try again after")
	assert.That(t, b.dump() == before, "a track that failed changed the schema")
	assert.NoError(t, tx.Rollback(context.Background()))
	b.track("p", "")
	// A tracked table needs no lock.
	assert.Must(other.Exec(context.Background(), "BEGIN; LOCK TABLE p, leaves.b IN ROW EXCLUSIVE MODE"))(t)
	got := b.track("p", "").Triggers
	assert.That(t, len(got) == 0, "got %q, want none", got)
	assert.Must(other.Exec(context.Background(), "ROLLBACK"))(t)
}

func TestTrack_TheApplicationSchemaIsTheConnections(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec("CREATE SCHEMA app; CREATE TABLE app.p (id int PRIMARY KEY); CREATE TABLE p (id int PRIMARY KEY); INSERT INTO app.p VALUES (1)")
	app := &bench{T: t, Admin: admin.New(servicetest.Open(t, b.with("search_path=app,public")).Database), estate: b.estate, url: b.url, sql: b.sql}
	app.install("installed")
	app.track("p", "")
	b.wantTriggers("app.p:A")
	b.exec("DELETE FROM app.p; SET search_path = app")
	b.wantRecords("app.p:1")
}

func TestUntrack_OneLeafOrAll(t *testing.T) {
	b := partitioned(t)
	b.track("p", "")
	for _, name := range []string{"leaves.a1", "a2"} {
		got, err := b.Untrack(context.Background(), name)
		assert.Require(t, err == nil && len(got.Triggers) == 1 && got.Parent == "", "%s: got %+v, %v", name, got, err)
	}
	b.wantTriggers("a:A", "leaves.b:A", "p:A")
	b.exec("DELETE FROM leaves.a1 WHERE id = 3; DELETE FROM leaves.b WHERE id = 2; DELETE FROM p WHERE id = 6")
	b.wantRecords("public.p:2", "public.p:6")
	got, err := b.Untrack(context.Background(), "p")
	if err != nil || got.Table != "public.p" || got.Parent != "p" ||
		!slices.Equal(got.Triggers, []string{"p_loose_fk_trigger on public.p", "b_loose_fk_trigger on leaves.b", "a_loose_fk_trigger on public.a"}) {
		t.Errorf("got %+v, %v", got, err)
	}
	b.wantTriggers()
	b.exec("DELETE FROM p")
	b.wantRecords()
}

func TestUntrack_RefusesWhatIsNotTracked(t *testing.T) {
	b := installed(t)
	b.exec(`CREATE TABLE p (id int PRIMARY KEY); CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER p_loose_fk_trigger AFTER DELETE ON p FOR EACH STATEMENT EXECUTE FUNCTION other()`)
	_, err := b.Untrack(context.Background(), "p")
	b.wantRefusal(err, "public.p is not tracked")
	_, err = b.Untrack(context.Background(), "nowhere")
	b.wantRefusal(err, "unknown table nowhere")
	b.wantTriggers("p:O")
	// A name that two partitions have.
	b.exec(`CREATE SCHEMA x; CREATE SCHEMA y; CREATE TABLE parts (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
		CREATE TABLE x.leaf PARTITION OF parts FOR VALUES IN (1); CREATE TABLE y.leaf PARTITION OF parts FOR VALUES IN (2)`)
	b.track("parts", "")
	_, err = b.Untrack(context.Background(), "leaf")
	b.wantRefusal(err, "the name leaf matches both x.leaf and y.leaf")
	b.refuses("leaf", "", "the name leaf matches both x.leaf and y.leaf")
	assert.Must(b.Untrack(context.Background(), "y.leaf"))(t)
	b.wantTriggers("p:O", "parts:A", "x.leaf:A")
}

func TestTrack_NeedsAQueueAndRunsThroughAPoolerWithoutPreparedStatements(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec("CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1)")
	b.refuses("p", "", "no queue of deleted parents found: run `caretaker lfk install`")
	b.exec("CREATE TABLE loose_foreign_keys_deleted_records (id int)")
	b.refuses("p", "", "is not a queue of deleted parents")
	b.exec("DROP TABLE loose_foreign_keys_deleted_records")
	for _, mode := range []string{"exec", "simple_protocol"} {
		d := admin.New(servicetest.Open(t, b.with("default_query_exec_mode="+mode)).Database)
		assert.Must(d.InstallQueue(context.Background()))(t)
		assert.Must(d.Track(context.Background(), "p", ""))(t)
		assert.Must(d.Untrack(context.Background(), "p"))(t)
	}
}

// Records that are left would be taken for values of the new key.
func TestTrack_ByAnotherKeyWaitsForTheRecordsThatAreLeft(t *testing.T) {
	b := installed(t)
	b.exec("CREATE TABLE p (id bigint PRIMARY KEY, number int NOT NULL UNIQUE); INSERT INTO p VALUES (7, 1007), (8, 7)")
	b.track("p", "")
	b.exec("DELETE FROM p WHERE id = 7")
	untrack := func() {
		t.Helper()
		assert.Must(b.Untrack(context.Background(), "p"))(t)
	}
	refused := func() {
		t.Helper()
		before := b.dump()
		b.refuses("p", "number", "public.p has pending or dead records", "caretaker lfk retry --table public.p")
		assert.That(t, b.dump() == before, "refused, but the schema has changed")
	}
	untrack()
	refused()
	b.refuses("p", "", "public.p has pending or dead records", "if the keys in these records are ids, add "+
		"--column id. Otherwise, wait until loose_foreign_keys_cleanup has processed these records")
	b.track("p", "id")
	untrack()
	b.exec(`INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
		SELECT fully_qualified_table_name, primary_key_value, 'd', 'P0001', 'no', 10, now() FROM loose_foreign_keys_deleted_records;
		DELETE FROM loose_foreign_keys_deleted_records`)
	refused()
	b.exec("DELETE FROM maintenance.dead_records")
	b.track("p", "number")
	// Its own records hinder nothing.
	b.exec("DELETE FROM p; ALTER TABLE p DISABLE TRIGGER p_loose_fk_trigger")
	b.track("p", "number")
	b.wantTriggers("p:A")
	// Nor is a table untracked by whose key of several columns there are dead records: the order would be lost.
	b.exec("CREATE TABLE q (a int, b int, PRIMARY KEY (a, b))")
	assert.Must(b.Track(context.Background(), "q", "b", "a"))(t)
	b.exec(`INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, key_values, definition, sqlstate, message, failures, recorded_at)
		VALUES ('public.q', 0, '{1,2}', 'd', 'P0001', 'no', 10, now())`)
	_, err := b.Untrack(context.Background(), "q")
	b.wantRefusal(err, "public.q has pending or dead records")
	b.wantTriggers("p:A", "q:A")
	b.exec("DELETE FROM maintenance.dead_records")
	assert.Must(b.Untrack(context.Background(), "q"))(t)
}

// The triggers of a renamed column make deletions fail. The records that are left keep their meaning.
func TestTrack_ARenamedKeyReplacesItsTriggers(t *testing.T) {
	b := installed(t)
	b.exec(`CREATE TABLE one (number int PRIMARY KEY, other int UNIQUE); INSERT INTO one VALUES (1, 2), (3, 4);
		CREATE TABLE two (a int, b text, c int, PRIMARY KEY (a, b), UNIQUE (a, c)) PARTITION BY LIST (a);
		CREATE TABLE two_1 PARTITION OF two FOR VALUES IN (1); INSERT INTO two VALUES (1, 'x', 1), (1, 'y', 2)`)
	b.track("one", "number")
	assert.Must(b.Track(t.Context(), "two", "a", "b"))(t)
	b.exec("DELETE FROM one WHERE number = 1; DELETE FROM two WHERE b = 'x'; ALTER TABLE one RENAME number TO no; ALTER TABLE two RENAME b TO z")
	_, err := b.Track(t.Context(), "two", "z", "a")
	b.wantRefusal(err, "is tracked by the columns (a, b)")
	b.track("one", "no")
	assert.Must(b.Track(t.Context(), "two", "a", "z"))(t)
	b.exec("DELETE FROM one; DELETE FROM two")
	b.want(`SELECT string_agg(coalesce(array_to_string(key_values, ','), primary_key_value::text), ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records`,
		"1 1,x 3 1,y")
}

func TestTrack_NewPartitionsOfATrackedTableWaitForNoRecords(t *testing.T) {
	b := installed(t)
	b.exec(`CREATE TABLE p (number int PRIMARY KEY) PARTITION BY RANGE (number); CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10);
		INSERT INTO p VALUES (1)`)
	b.track("p", "number")
	b.exec("DELETE FROM p; CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
	got := b.track("p", "number").Triggers
	assert.That(t, slices.Equal(got, []string{"p_2_loose_fk_trigger on public.p_2"}), "got %q", got)
}

// TestTrack_WhatLogicalReplicationDeletesIsRecorded: no trigger of a statement fires there. replay deletes as its worker does.
func TestTrack_WhatLogicalReplicationDeletesIsRecorded(t *testing.T) {
	b := installed(t)
	b.exec("CREATE SUBSCRIPTION s CONNECTION 'dbname=none' PUBLICATION x WITH (connect = false)")
	t.Cleanup(func() { b.exec("ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s") })
	for _, c := range []struct{ name, table, column, filled, triggers, records string }{
		{"plain", "CREATE TABLE p (id int PRIMARY KEY, x int)", "id", "p", "p:A", "public.p:1"},
		{"text", "CREATE TABLE p (id text PRIMARY KEY, x int)", "id", "p", "p:A", "public.p:0"},
		{"of another name", "CREATE TABLE p (number int PRIMARY KEY, id int)", "number", "p", "p:A", "public.p:1"},
		{"partitioned", `CREATE TABLE p (id int, x int, PRIMARY KEY (id, x)) PARTITION BY LIST (x);
			CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)`, "id", "p1", "p1:A p2:A p:A", "public.p:1 public.p:2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.exec("DELETE FROM pg_subscription_rel; DROP TABLE IF EXISTS p; " + c.table)
			b.track("p", c.column)
			b.exec("INSERT INTO pg_subscription_rel SELECT oid, $1::text::regclass, 'r', NULL FROM pg_subscription WHERE subname = 's'", c.filled)
			got := b.track("p", c.column)
			assert.Equal(t, len(got.Triggers), 1)
			assert.That(t, len(got.Dropped) > 0, "got %+v", got)
			assert.Equal(t, len(b.track("p", c.column).Triggers), 0)
			b.exec("ALTER TABLE p ENABLE TRIGGER p_loose_fk_trigger")
			assert.Equal(t, b.track("p", c.column).Triggers[0], "p_loose_fk_trigger on public.p")
			if c.filled == "p1" {
				b.exec("ALTER TABLE p1 DISABLE TRIGGER p_loose_fk_trigger")
				assert.Equal(t, b.track("p", c.column).Triggers[0], "p_loose_fk_trigger on public.p1")
				b.exec("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2); INSERT INTO p VALUES (2, 2)")
			}
			b.exec("INSERT INTO p VALUES (1, 1); SET session_replication_role = replica; DELETE FROM p; SET session_replication_role = origin")
			b.wantTriggers(strings.Fields(c.triggers)...)
			b.wantRecords(strings.Fields(c.records)...)
			if c.filled == "p1" {
				_, err := b.Untrack(t.Context(), "p1")
				b.wantRefusal(err, "public.p1 is tracked by a row trigger on p that covers all partitions of p")
			}
			assert.Must(b.Untrack(t.Context(), "p"))(t)
			b.wantTriggers()
		})
	}
}

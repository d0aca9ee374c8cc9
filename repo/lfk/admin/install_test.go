package admin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// dumpSQL has a line for all that makes up a schema: as pg_dump, which not every installation has,
// without data, and by names.
const dumpSQL = `
WITH spaces AS (
  SELECT oid, nspname, nspowner, nspacl FROM pg_namespace
  WHERE nspname <> 'information_schema' AND nspname NOT LIKE 'pg\_%'
),
relations AS (SELECT c.* FROM pg_class c JOIN spaces s ON s.oid = c.relnamespace),
lines (line) AS (
  SELECT concat_ws(' ', 'schema', nspname, nspowner::regrole, nspacl) FROM spaces
  UNION ALL
  SELECT concat_ws(' ', 'relation', oid::regclass, relkind, relpersistence, relowner::regrole, relacl,
    reloptions, relrowsecurity, relforcerowsecurity, relreplident, pg_get_expr(relpartbound, oid),
    CASE relkind WHEN 'p' THEN pg_get_partkeydef(oid) WHEN 'v' THEN pg_get_viewdef(oid) END)
  FROM relations
  UNION ALL
  SELECT concat_ws(' ', 'column', attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod),
    attnotnull, attidentity, attgenerated, attstorage, attcollation::regcollation, attacl, attoptions,
    pg_get_expr(adbin, adrelid))
  FROM pg_attribute JOIN relations r ON r.oid = attrelid
  LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
  WHERE attnum > 0 AND NOT attisdropped
  UNION ALL
  SELECT concat_ws(' ', 'inherits', inhrelid::regclass, inhparent::regclass, inhseqno)
  FROM pg_inherits JOIN relations r ON r.oid = inhrelid
  UNION ALL
  SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname, convalidated, pg_get_constraintdef(c.oid))
  FROM pg_constraint c JOIN spaces s ON s.oid = connamespace
  UNION ALL
  SELECT concat_ws(' ', 'index', pg_get_indexdef(indexrelid), indisvalid, indisready, indisreplident)
  FROM pg_index JOIN relations r ON r.oid = indrelid
  UNION ALL
  SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(t.oid), tgenabled)
  FROM pg_trigger t JOIN relations r ON r.oid = tgrelid WHERE NOT tgisinternal
  UNION ALL
  SELECT concat_ws(' ', 'function', proowner::regrole, proacl, pg_get_functiondef(p.oid))
  FROM pg_proc p JOIN spaces s ON s.oid = pronamespace WHERE prokind <> 'a'
  UNION ALL
  SELECT concat_ws(' ', 'sequence', seqrelid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmax,
    seqmin, seqcache, seqcycle)
  FROM pg_sequence
  UNION ALL
  SELECT concat_ws(' ', 'type', t.oid::regtype, typtype, typowner::regrole, typacl,
    (SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid))
  FROM pg_type t JOIN spaces s ON s.oid = typnamespace
  UNION ALL
  SELECT concat_ws(' ', 'comment', pg_describe_object(classoid, objoid, objsubid), description)
  FROM pg_description WHERE objoid >= 16384
)
SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM lines`

// dump is the whole schema of the database.
func (b *bench) dump() string {
	b.Helper()
	return b.value(dumpSQL)
}

func TestInstallQueue_MakesTheQueueOnce(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.install(admin.QueueInstalled)
	b.want(`SELECT string_agg(relname || ' ' || relkind::text || coalesce(' ' || array_to_string(c.reloptions, ','), ''), E'\n' ORDER BY relname COLLATE "C")
		FROM pg_class c WHERE relname LIKE '%loose_foreign_keys%' AND relkind NOT IN ('i', 'I')`,
		"loose_foreign_keys_deleted_records p\nloose_foreign_keys_deleted_records_1 r autovacuum_vacuum_scale_factor=0.01\n"+
			"loose_foreign_keys_deleted_records_id_seq S")
	b.want("SELECT (partition, active_since = now() OR active_since < now()) FROM maintenance.queue_partitions", "(1,t)")
	b.want(`SELECT pg_get_indexdef('index_loose_foreign_keys_deleted_records_for_partitioned_query'::regclass)`,
		"CREATE INDEX index_loose_foreign_keys_deleted_records_for_partitioned_query ON ONLY public.loose_foreign_keys_deleted_records "+
			"USING btree (partition, fully_qualified_table_name, consume_after, id) WHERE (status = 1)")
	before := b.dump()
	b.install(admin.QueueOurs)
	assert.That(t, b.dump() == before, "the second install changed the schema")
	// A queue that is no more is forgotten.
	b.exec(`INSERT INTO maintenance.record_failures (partition, record_id, last_definition, sqlstate) VALUES (1, 1, 'x', 'P0001');
		INSERT INTO maintenance.queue_partitions VALUES (2, now()); DROP TABLE loose_foreign_keys_deleted_records`)
	b.install(admin.QueueInstalled)
	b.want("SELECT array_agg(partition) FROM maintenance.queue_partitions", "{1}")
	b.want("SELECT count(*) FROM maintenance.record_failures", "0")
}

func TestInstallQueue_LeavesGitLabsQueueAndTriggersAloneAndMakesOneOfItsShape(t *testing.T) {
	const columns = `SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod) || attnotnull || coalesce(pg_get_expr(adbin, adrelid), ''), E'\n' ORDER BY attnum)
		FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid = 'loose_foreign_keys_deleted_records'::regclass AND attnum > 0 AND attname <> 'key_values'`
	ours := installed(t)
	for schema, tables := range map[string][]string{
		"main": {"users", "projects", "namespaces", "merge_requests"}, "ci": {"p_ci_pipelines", "ci_triggers"}, "sec": {"vulnerabilities"},
	} {
		b := newBench(t, schema)
		before := b.dump()
		b.install(admin.QueueGitLabs)
		for _, table := range tables {
			got := b.track(table, "").Triggers
			assert.That(t, len(got) == 0, "%s: got %q", table, got)
		}
		assert.That(t, b.dump() == before, "%s: install or track changed the schema", schema)
		b.want("SELECT count(*) FROM maintenance.queue_partitions", "0")
		ours.want(columns, b.value(columns))
		b.exec("CREATE TABLE own (id int PRIMARY KEY); INSERT INTO own VALUES (1)")
		b.track("own", "")
		b.exec("DELETE FROM own")
		b.wantRecords("public.own:1")
	}
}

func TestInstallQueue_RefusesAnotherShape(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	for sql, reason := range map[string]string{
		"CREATE TABLE loose_foreign_keys_deleted_records (id bigint)":      "it has no column partition of type bigint, it has no column primary_key_value",
		"CREATE VIEW loose_foreign_keys_deleted_records AS SELECT 1 AS id": "it has no column id of type bigint",
		`CREATE TABLE loose_foreign_keys_deleted_records (id bigint NOT NULL DEFAULT 1, partition bigint NOT NULL DEFAULT 1, primary_key_value bigint,
			status smallint DEFAULT 1, created_at timestamptz, fully_qualified_table_name text, consume_after timestamptz, cleanup_attempts smallint,
			organization_id bigint NOT NULL) PARTITION BY LIST (id)`: "its column organization_id has no default, it is not partitioned by list (partition)",
	} {
		b.exec(sql)
		before := b.dump()
		_, err := b.InstallQueue(context.Background())
		b.wantRefusal(err, "public.loose_foreign_keys_deleted_records is not a queue", reason)
		assert.That(t, b.dump() == before, "a refused install changed the schema")
		kind, _, _ := strings.Cut(strings.TrimPrefix(sql, "CREATE "), " ")
		b.exec("DROP " + kind + " loose_foreign_keys_deleted_records")
	}
}

func TestInstallQueue_WhatIsInTheWayIsNamedAndNothingRemains(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec("CREATE TABLE loose_foreign_keys_deleted_records_id_seq (x int)")
	before := b.dump()
	_, err := b.InstallQueue(context.Background())
	servicetest.WantError(t, err, `"loose_foreign_keys_deleted_records_id_seq" already exists`, "nothing was changed")
	assert.That(t, b.dump() == before, "a failed install changed the schema")
	// Functions that exist are used.
	b.exec("DROP TABLE loose_foreign_keys_deleted_records_id_seq")
	b.exec("CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO x SELECT; END'")
	b.install(admin.QueueInstalled)
	b.want("SELECT prosrc FROM pg_proc WHERE proname = 'insert_into_loose_foreign_keys_deleted_records'", "BEGIN INSERT INTO x SELECT; END")
	b.want("SELECT prosecdef FROM pg_proc WHERE proname = 'insert_into_loose_foreign_keys_deleted_records_override_table'", "true")
}

func TestInstallQueue_TwoAtOnceInstallOnce(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	results := make(chan string, 4)
	for range cap(results) {
		go func() {
			result, err := b.InstallQueue(context.Background())
			for err != nil && strings.Contains(err.Error(), "nothing was changed, because of a lock timeout") {
				result, err = b.InstallQueue(context.Background()) // on a busy machine, a lock can be held for 2 s
			}
			if err != nil {
				result = err.Error()
			}
			results <- result
		}()
	}
	count := map[string]int{}
	for range cap(results) {
		count[<-results]++
	}
	assert.That(t, count[admin.QueueInstalled] == 1 && count[admin.QueueOurs] == 3,
		"got %v, want one that installed and three that found it", count)
}

func TestInstallQueue_NeedsASchemaAndTheRightToCreate(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	_, err := admin.New(servicetest.Open(t, b.with("search_path=nowhere")).Database).InstallQueue(context.Background())
	b.wantRefusal(err, "no schema of the connection's search_path exists")

	poor := b.estate.Role(`GRANT USAGE ON SCHEMA maintenance TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA maintenance TO {role}`)
	_, err = admin.New(servicetest.Open(t, b.estate.URLAs(poor, "x")).Database).InstallQueue(context.Background())
	servicetest.WantError(t, err, "42501", "(nothing was changed): connect as a role that owns")
	b.want("SELECT to_regnamespace('gitlab_partitions_dynamic') IS NULL", "true")
	// Nor does it track a table that it does not own.
	b.install(admin.QueueInstalled)
	b.exec(`CREATE TABLE p (id int PRIMARY KEY); GRANT ALL ON p TO ` + poor)
	_, err = admin.New(servicetest.Open(t, b.estate.URLAs(poor, "x")).Database).Track(context.Background(), "p", "")
	servicetest.WantError(t, err, "42501", "(nothing was changed): connect as a role that owns the tables and the queue")
	b.wantTriggers()
	if _, err := admin.New(servicetest.Open(t, "postgres://caretaker@127.0.0.1:1/x?connect_timeout=2").Database).InstallQueue(context.Background()); !errors.Is(err,
		dberr.ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}

func TestInstallQueue_RepairsWhatARestoreHasLeftBehind(t *testing.T) {
	b := installed(t)
	b.exec(`CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 9)`)
	b.track("p", "")
	b.exec(`DELETE FROM p WHERE id <= 3`)
	// Rows without their sequence.
	b.exec(`SELECT setval('loose_foreign_keys_deleted_records_id_seq', 1, false)`)
	if _, err := b.sql.Exec(context.Background(), `DELETE FROM p WHERE id = 4`); err == nil {
		t.Error("the sequence is not behind")
	}
	b.install("managed by caretaker, sequences advanced")
	b.exec(`DELETE FROM p WHERE id = 4`)
	b.install(admin.QueueOurs)
	// The application's schema alone.
	b.exec(`TRUNCATE maintenance.queue_partitions; DROP TABLE maintenance.loose_foreign_keys_deleted_records_1`)
	b.install("managed by caretaker, taken over after a restore (to find child rows whose records were lost, run `caretaker lfk orphans`), partition created")
	b.exec(`DELETE FROM p WHERE id = 5`)
	b.want("SELECT array_agg(partition) FROM maintenance.queue_partitions", "{1}")
	b.install(admin.QueueOurs)
	b.exec(`CREATE TABLE u (id uuid PRIMARY KEY)`)
	b.track("u", "")
}

// buried makes a queue with dead records 1 to n, the odd ones of p, the even ones of other.q.
func buried(t *testing.T, n string) *bench {
	t.Helper()
	b := installed(t)
	b.bury(n)
	return b
}

func (b *bench) bury(n string) {
	b.Helper()
	b.exec(`INSERT INTO maintenance.dead_records
		(fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
		SELECT CASE n % 2 WHEN 1 THEN 'public.p' ELSE 'other.q' END, n * 10, 'c.p_id -> p', 'P0001', 'no', 10, now() - interval '1 day'
		FROM generate_series(1, ` + n + `) n`)
}

func TestDeadRecords_ArePagedByID(t *testing.T) {
	b := buried(t, "5")
	for _, c := range []struct {
		filter admin.DeadRecordFilter
		after  int64
		want   []int64
	}{
		{admin.DeadRecordFilter{}, 0, []int64{1, 2, 3}},
		{admin.DeadRecordFilter{}, 3, []int64{4, 5}},
		{admin.DeadRecordFilter{Table: "p"}, 0, []int64{1, 3, 5}},
		{admin.DeadRecordFilter{Table: "public.p"}, 1, []int64{3, 5}},
		{admin.DeadRecordFilter{Table: "other.q"}, 0, []int64{2, 4}},
		{admin.DeadRecordFilter{Table: "q"}, 0, nil},
		{admin.DeadRecordFilter{ID: new(int64(4))}, 0, []int64{4}},
		{admin.DeadRecordFilter{ID: new(int64(4)), Table: "p"}, 0, nil},
	} {
		page, err := b.DeadRecords(context.Background(), c.filter, c.after, 3)
		var got []int64
		for _, r := range page {
			got = append(got, r.ID)
			assert.That(t, r.Key() == lfk.IntKey(r.ID*10) && r.Definition == "c.p_id -> p" &&
				r.SQLState == "P0001" && r.Message == "no" && r.Failures == 10 && r.RecordedAt.Before(r.DeadAt),
				"got %+v", r)
		}
		assert.That(t, err == nil && slices.Equal(got, c.want), "%+v after %d: got %v, %v, want %v", c.filter, c.after, got, err, c.want)
	}
}

func TestRetryDeadRecords_PutsThemBackAsNew(t *testing.T) {
	b := buried(t, "5")
	// Nothing is lost if the queue refuses.
	b.exec("ALTER TABLE loose_foreign_keys_deleted_records ALTER COLUMN partition SET DEFAULT 7")
	if n, err := b.RetryDeadRecords(context.Background(), admin.DeadRecordFilter{}); err == nil || n != 0 {
		t.Errorf("got %d, %v, want an error", n, err)
	}
	b.want("SELECT count(*) FROM maintenance.dead_records", "5")
	b.exec("ALTER TABLE loose_foreign_keys_deleted_records ALTER COLUMN partition SET DEFAULT 1")
	for _, c := range []struct {
		filter  admin.DeadRecordFilter
		n       int64
		records []string
	}{
		{admin.DeadRecordFilter{ID: new(int64(9))}, 0, nil},
		{admin.DeadRecordFilter{ID: new(int64(3))}, 1, []string{"public.p:30"}},
		{admin.DeadRecordFilter{Table: "p"}, 2, []string{"public.p:10", "public.p:50"}},
		{admin.DeadRecordFilter{}, 2, []string{"other.q:20", "other.q:40"}},
	} {
		n, err := b.RetryDeadRecords(context.Background(), c.filter)
		assert.That(t, err == nil && n == c.n, "%+v: got %d, %v, want %d", c.filter, n, err, c.n)
		b.want("SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE (partition, status, cleanup_attempts, consume_after > now(), created_at > now() - interval '1 minute') <> (1, 1, 0, false, false)", "0")
		b.wantRecords(c.records...)
	}
	b.want("SELECT count(*) FROM maintenance.dead_records", "0")
	// Many go in several transactions.
	b.bury("2500")
	n, err := b.RetryDeadRecords(context.Background(), admin.DeadRecordFilter{})
	assert.That(t, err == nil && n == 2500, "got %d, %v", n, err)
	b.want("SELECT (count(*), count(DISTINCT xmin::text), count(DISTINCT primary_key_value)) FROM loose_foreign_keys_deleted_records", "(2500,3,2500)")
	b.exec("DROP TABLE loose_foreign_keys_deleted_records")
	_, err = b.RetryDeadRecords(context.Background(), admin.DeadRecordFilter{})
	b.wantRefusal(err, "no queue of deleted parents found")
}

func TestRetryDeadRecords_SaysWhatBecomesOfThoseWhoseQueueIsGone(t *testing.T) {
	b := buried(t, "3")
	b.exec("UPDATE maintenance.dead_records SET queue = 'loose_foreign_keys_user_deleted_records', owner = 7 WHERE id > 1")
	n, err := b.RetryDeadRecords(t.Context(), admin.DeadRecordFilter{})
	assert.Equal(t, n, 1)
	b.wantRefusal(err, "2 dead records were not queued again, because their queue loose_foreign_keys_user_deleted_records does not exist")
	_, advised, _ := strings.Cut(err.Error(), " with ")
	b.exec(advised)
	n, err = b.RetryDeadRecords(t.Context(), admin.DeadRecordFilter{})
	assert.That(t, err == nil && n == 2, "%d, %v", n, err)
}

// TestValidate_TakesAsLongAsItNeeds: the role's own limit does not end it while it waits for a lock.
func TestValidate_TakesAsLongAsItNeeds(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "")
	b.exec(`CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p_id int);
		ALTER TABLE c ADD CONSTRAINT fk FOREIGN KEY (p_id) REFERENCES p NOT VALID`)
	b.exec(`BEGIN; LOCK TABLE c IN SHARE UPDATE EXCLUSIVE MODE`)
	patient := admin.New(servicetest.Open(t, b.with("statement_timeout=300")).Database)
	done := make(chan error, 1)
	go func() {
		done <- patient.Validate(context.Background(), admin.RealKey{Table: catalog.Table{Schema: "public", Name: "c"}, Name: "fk"})
	}()
	watch := servicetest.Connect(t, b.url)
	devdb.Eventually(t, "the statement to wait for longer than the role's limit", func() (waits bool) {
		err := watch.QueryRow(t.Context(), `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '400 ms'`).Scan(&waits)
		return waits || err != nil || len(done) > 0
	})
	b.exec(`COMMIT`)
	assert.NoError(t, <-done)
	b.want(`SELECT convalidated FROM pg_constraint WHERE conname = 'fk'`, "true")
}

package lfk_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/lfk/admin"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLooseForeignKeysCleanup_OrderIsPartitionTimeID(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	// The names of the leaves lie: their bounds count, as numbers.
	e.Exec("main", `CREATE SCHEMA elsewhere;
		CREATE TABLE elsewhere.loose_foreign_keys_deleted_records_1 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (10);
		CREATE TABLE gitlab_partitions_dynamic.a PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (9)`)
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (partition, id, fully_qualified_table_name, primary_key_value, consume_after) VALUES
		(10, 1, 'public.p', 7, now() - interval '9 hours'), (10, 2, 'public.p', 8, NULL),
		(9, 5, 'public.p', 6, NULL), (9, 7, 'public.p', 3, now() - interval '1 hour'), (9, 6, 'public.p', 2, now() - interval '1 hour'),
		(9, 9, 'public.p', 1, now() - interval '2 hours'), (9, 2, 'public.p', 5, NULL),
		(9, 1, 'public.p', 4, now() - interval '1 minute'), (1, 99, 'public.p', 0, now() - interval '1 second')`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(0, 8) i`)
	for taken := 1; taken <= 9; taken++ {
		wantRun(t, e.Service(servicetest.OneChild, servicetest.Batches(1, 1)), "processed_records=1 deleted_rows=1")
		var left []string
		for key := taken; key <= 8; key++ {
			left = append(left, fmt.Sprint(key))
		}
		e.WantQueue("main", strings.Join(left, " "))
	}
}

func TestLooseForeignKeysCleanup_EveryDueRecordIsTakenWhateverTheBatchSize(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	addLeaves(e, "two", "three", "four")
	for _, size := range []int{1, 3, 7, 500} {
		// Few times, many NULLs, the ends of time, the same ids in every partition, and one partition that has nothing.
		e.Exec("main", `TRUNCATE c; DELETE FROM loose_foreign_keys_deleted_records; INSERT INTO c (p_id) SELECT generate_series(1, 500);
			INSERT INTO loose_foreign_keys_deleted_records (partition, id, fully_qualified_table_name, primary_key_value, consume_after)
			SELECT p, i, 'public.p', p * 100 + i, CASE WHEN i = 20 THEN 'infinity' WHEN i > 16 THEN '-infinity' WHEN i % 3 > 0 THEN now() - i % 3 * interval '1 hour' END
			FROM unnest('{1,2,4}'::int[]) p, generate_series(1, 20) i`)
		s := e.Service(servicetest.OneChild, servicetest.Batches(size, 0))
		wantRun(t, s, "processed_records=57 deleted_rows=57")
		e.WantQueue("main", "120 220 420")
		// Records of one key are one key for the children. The same id in two partitions is two records.
		e.Exec("main", `TRUNCATE c; INSERT INTO c (p_id) VALUES (7), (7), (8), (9); DELETE FROM loose_foreign_keys_deleted_records;
			INSERT INTO loose_foreign_keys_deleted_records (partition, id, fully_qualified_table_name, primary_key_value) VALUES (1, 1, 'public.p', 7),
			(1, 2, 'public.p', 8), (1, 3, 'public.p', 7), (2, 1, 'public.p', 7), (2, 2, 'public.p', 7), (2, 3, 'public.elsewhere', 10), (1, 4, 'public.elsewhere', 11)`)
		wantRun(t, s, "processed_records=5 deleted_rows=3")
		e.WantQueue("main", "10 11")
	}
}

func TestLooseForeignKeysCleanup_RecordsOfAnotherStatusAndOfTheFutureAreNotRead(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) VALUES (1), (2)`)
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, status)
		VALUES ('public.p', 1, 2), ('public.p', 1, 2), ('public.p', 2, 0), ('public.p', 2, 3)`)
	const queue = `SELECT string_agg(q::text || xmin, ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records q`
	before := e.Value("main", queue)
	s := e.Service(servicetest.OneChild)
	wantRun(t, s, "")
	e.Want("main", queue, before)
	e.Want("main", `SELECT count(*) FROM c`, "2")

	// A pending record of the same key takes its own way.
	e.Deleted("main", "p", 1, 1)
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	e.Want("main", queue, before)

	// A record is taken once its time has come.
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
		VALUES ('public.p', 2, now() + interval '1 minute')`)
	wantWithinLimits(t, wantRun(t, s, ""))
	b := servicetest.Status(t, s).Backlog
	assert.That(t, b.Pending == 1 && b.Deferred == 1 && b.Due == 0, "backlog %+v, want 1 pending, deferred, not due", b)
	dueAgain(e, "main")
	wantRun(t, s, "processed_records=1 deleted_rows=1")
}

// All records of a page have the same time, their ids have gaps, and records that are not due lie between them.
func TestLooseForeignKeysCleanup_WalksOverAllPages(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	s := e.Service(servicetest.OneChild, servicetest.Batches(3, 0))
	for _, n := range servicetest.PageEdges(3) {
		e.Exec("main", `TRUNCATE c; DELETE FROM loose_foreign_keys_deleted_records`)
		e.Exec("main", fmt.Sprintf(`INSERT INTO c (p_id) SELECT i FROM generate_series(1, %d) i;
			INSERT INTO loose_foreign_keys_deleted_records (id, fully_qualified_table_name, primary_key_value, consume_after)
			SELECT 7 * i, 'public.p', i, '2020-01-01'::timestamptz FROM generate_series(1, %[1]d) i
			UNION ALL SELECT 7 * i + 3, 'public.p', 1000 + i, now() + interval '1 hour' FROM generate_series(0, %[1]d) i`, n))
		counts := fmt.Sprintf("processed_records=%d deleted_rows=%[1]d", n)
		servicetest.WantCounts(t, servicetest.DryRun(t, s), counts)
		wantWithinLimits(t, wantRun(t, s, counts))
		e.Want("main", `SELECT count(*) || ' ' || (SELECT count(*) FROM c) FROM loose_foreign_keys_deleted_records`, fmt.Sprintf("%d 0", n+1))
	}
}

// addLeaves adds partitions with the numbers 2, 3 ... to a queue of GitLab's.
func addLeaves(e *servicetest.Estate, names ...string) {
	e.T.Helper()
	for i, name := range names {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE gitlab_partitions_dynamic.%s PARTITION OF loose_foreign_keys_deleted_records FOR
			VALUES IN (%d)`, name, i+2))
	}
}

// queueStatements runs the worker and counts the statements that name the queue.
func queueStatements(e *servicetest.Estate, s *service.Service) string {
	e.T.Helper()
	e.Exec("main", `SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)`)
	servicetest.WantRun(e.T, servicetest.RunBatch(e.T, s, "main"), "succeeded", "processed_records=1")
	return e.Value("main", `SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query LIKE '%loose_foreign_keys_deleted_records%' AND query NOT LIKE '%pg_class%'`)
}

func TestLooseForeignKeysCleanup_ParentsWithoutRecordsCostNoStatements(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	definitions := servicetest.OneChild
	for i := range 44 {
		e.Exec("main", fmt.Sprintf(`CREATE TABLE child_%02d (p_id bigint)`, i))
		definitions += fmt.Sprintf("child_%02d:\n  - {table: parent_%d, column: p_id, on_delete: async_delete}\n", i, i)
	}
	e.Deleted("main", "p", 1, 1)
	one := queueStatements(e, e.Service(servicetest.OneChild))
	e.Deleted("main", "p", 1, 1)
	many := queueStatements(e, e.Service(definitions))
	assert.That(t, one == many && one != "NULL", "%s statements on the queue with one parent defined, %s with 45", one, many)
	for line := range strings.Lines(e.Value("main", `SELECT string_agg(regexp_replace(query, '\s+', ' ', 'g'), E'\n')
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query LIKE '%"loose_foreign_keys_deleted_records"%'`)) {
		assert.That(t, strings.Contains(line, "partition = "), "does not name the partition: %s", line)
	}
}

func TestLooseForeignKeysCleanup_ALeafThatVanishesInMidRunIsPassedOver(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	addLeaves(e, "two", "three")
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (partition, fully_qualified_table_name, primary_key_value)
		SELECT p, 'public.p', p * 10 + i FROM generate_series(1, 3) p, generate_series(1, 5) i`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(1, 40) i`)
	held := e.Hold(`SELECT FROM c WHERE p_id = 11 FOR UPDATE`)
	s := e.Service(servicetest.OneChild, servicetest.Batches(1, 5000))
	begun := servicetest.Begin(t, s, "main")
	e.Eventually("main", anyWaits, "true")
	e.Exec("main", `DROP TABLE gitlab_partitions_dynamic.two`)
	held()
	servicetest.WantState(t, servicetest.Ended(t, s, begun.ID), "succeeded")
	e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE primary_key_value > 30`, "0")
	e.Want("main", `SELECT count(*) FROM c WHERE p_id BETWEEN 21 AND 25`, "5")
}

func TestLooseForeignKeysCleanup_WorksInTheApplicationSchemaOfItsConnection(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	// The service connects when it first needs to: after this.
	e.Exec("main", `CREATE SCHEMA "My App"`)
	e.Exec("main", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = nowhere, "My App", public', current_database()); END $$`)
	got, err := admin.New(e.Open[0].Database).InstallQueue(context.Background())
	assert.Require(t, err == nil && got == "installed", "install: %q, %v", got, err)
	e.Exec("main", `CREATE TABLE "My App".c (p_id bigint); CREATE TABLE public.c (p_id bigint); CREATE TABLE public.d (p_id bigint)`)
	e.Exec("main", `INSERT INTO "My App".c VALUES (1), (2); INSERT INTO public.c VALUES (1), (2); INSERT INTO public.d VALUES (1)`)
	e.Exec("main", `INSERT INTO "My App".loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		VALUES ('My App.p', 1), ('public.p', 2)`)
	e.Exec("main", `INSERT INTO maintenance.absent_children (child, accepted_by) VALUES ('d', 'me')`)
	wantRun(t, e.Service(servicetest.OneChild+"d:\n  - {table: p, column: p_id, on_delete: async_delete}\n"),
		"processed_records=1 deleted_rows=1")
	e.Want("main", `SELECT p_id FROM "My App".c`, "2")
	e.Want("main", `SELECT count(*) FROM public.c`, "2")
	e.Want("main", `SELECT count(*) FROM public.d`, "1")
	e.Want("main", `SELECT fully_qualified_table_name FROM "My App".loose_foreign_keys_deleted_records`, "public.p")
}

func TestLooseForeignKeysCleanup_RecordsThatComeWhileItWorksAreNotLost(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY);
		INSERT INTO p SELECT generate_series(1, 3000);
		INSERT INTO c (p_id) SELECT i FROM generate_series(1, 3000) i;
		CREATE TRIGGER p_loose_fk_trigger AFTER DELETE ON p REFERENCING OLD TABLE AS old_table
			FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records()`)
	s := e.Service(servicetest.OneChild, servicetest.Batches(50, 0))
	var total int64
	for from := 1; from <= 3000; from += 300 {
		begun := servicetest.Begin(t, s, "main")
		for i := from; i < from+300; i += 10 {
			e.Exec("main", `DELETE FROM p WHERE id >= $1 AND id < $1 + 10`, i)
		}
		r := servicetest.Ended(t, s, begun.ID)
		servicetest.WantState(t, r, "succeeded")
		total += r.Counts["deleted_rows"]
	}
	total += servicetest.RunBatch(t, s, "main").Counts["deleted_rows"]
	assert.That(t, total == 3000, "%d rows deleted, want 3000", total)
	e.WantQueue("main", "")
	e.Want("main", `SELECT count(*) FROM c`, "0")
}

func TestLooseForeignKeysCleanup_ARecordWithoutATimeIsDueWhateverElseItsParentHas(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	definitions := ""
	for parent, times := range map[string]string{
		"alone": `(NULL)`, "behind_a_future_one": `(now() + interval '1 hour'), (NULL)`, "behind_others": `(now() + interval '1 hour'), (now()), (NULL)`,
		"future": `(now() + interval '1 hour'), ('infinity')`,
	} {
		e.Exec("main", `CREATE TABLE c_`+parent+` (p_id bigint)`)
		e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
			SELECT 'public.' || $1, 1, t::timestamptz FROM (VALUES `+times+`) x (t)`, parent)
		definitions += "c_" + parent + ":\n  - {table: " + parent + ", column: p_id, on_delete: async_delete}\n"
	}
	wantWithinLimits(t, wantRun(t, e.Service(definitions), "processed_records=4"))
	e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE consume_after > now()`, "4")
}

func TestLooseForeignKeysCleanup_FewStatementsAreRolledBackWhereTheNumberOfRowsVaries(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(0, 239) i, generate_series(1, CASE WHEN i / 10 % 2 = 0 THEN 1 ELSE 20 END);
		CREATE SEQUENCE tried; CREATE TABLE sent (n bigint DEFAULT nextval('tried'));
		CREATE FUNCTION sent() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO sent DEFAULT VALUES; RETURN NULL; END';
		CREATE TRIGGER sent BEFORE DELETE ON c FOR EACH STATEMENT EXECUTE FUNCTION sent()`)
	e.Deleted("main", "p", 0, 239)
	const child = "c:\n  - {table: p, column: p_id, on_delete: async_delete, delete_limit: 100}\n"
	wantRun(t, e.Service(child, servicetest.Batches(10, 0), unhurried), "processed_records=240 deleted_rows=2520")
	e.Want("main", `SELECT last_value - (SELECT count(*) FROM sent) < 8 FROM tried`, "true")
}

// To compare the kind of a row that does not count takes long, as to search for a key in many partitions.
func TestLooseForeignKeysCleanup_StatementsDoNotShrinkWhereFewRowsAreSearchedForLong(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TYPE kind AS ENUM ('other', 'P');
		CREATE FUNCTION slow(kind, kind) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
			$$ BEGIN IF $1::text = 'other' THEN PERFORM pg_sleep(0.035); END IF; RETURN $1::text = $2::text; END $$;
		CREATE OPERATOR = (LEFTARG = kind, RIGHTARG = kind, FUNCTION = slow);
		CREATE TABLE c (p_id bigint, kind kind); CREATE INDEX ON c (p_id);
		INSERT INTO c SELECT i, CASE WHEN i % 3 > 0 THEN 'P' ELSE 'other' END::kind FROM generate_series(1, 240) i;
		CREATE TABLE sent (n bigint);
		CREATE FUNCTION sent() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO sent SELECT count(*) FROM gone; RETURN NULL; END';
		CREATE TRIGGER sent AFTER DELETE ON c REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION sent()`)
	e.Deleted("main", "p", 1, 240)
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete, conditions: [{column: kind, value: P}]}]", unhurried, servicetest.Batches(30, 0))
	wantRun(t, s, "processed_records=240 deleted_rows=160")
	e.Want("main", `SELECT count(*) < 10 FROM sent WHERE n > 0`, "true")
}

func TestReload_ARunKeepsItsDefinitionsAndAMistakeThoseOfTheServer(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint); CREATE TABLE d (p_id bigint); INSERT INTO c VALUES (1), (2); INSERT INTO d TABLE c;
		CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN OLD; END';
		CREATE TRIGGER wait BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION wait(); SELECT pg_advisory_lock(1)`)
	const ofC = "c: [{table: p, column: p_id, on_delete: async_delete}]\n"
	file := servicetest.Save(t, ofC+strings.Replace(ofC, "c:", "d:", 1))
	s := e.Service("", servicetest.With(func(c *lfk.Config) { c.DefinitionsFile = file }))
	e.Deleted("main", "p", 1, 1)
	assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, Async: true}))(t)
	e.Eventually("main", `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, "1")
	assert.NoError(t, os.WriteFile(file, []byte(ofC), 0o600))
	assert.Equal(t, assert.Must(s.ReloadDefinitions())(t), 1)
	e.Exec("main", `SELECT pg_advisory_unlock(1)`)
	e.Eventually("main", `SELECT counts->>'deleted_rows' FROM maintenance.runs WHERE state = 'succeeded'`, "2")

	assert.NoError(t, os.WriteFile(file, []byte("c: 1"), 0o600))
	_, err := s.ReloadDefinitions()
	assert.Contains(t, err.Error(), file+":1: c")
	const refused = ", so the previous definitions stay in use: "
	servicetest.WantDetail(t, servicetest.Status(t, s), "the definitions file was rejected when it was reloaded at "+
		"20", refused+file+":1: c")
	e.Deleted("main", "p", 2, 2)
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	assert.NoError(t, os.WriteFile(file, []byte(ofC), 0o600))
	assert.Must(s.ReloadDefinitions())(t)
	assert.Lacks(t, servicetest.Status(t, s).ConditionDetail, refused)
}

package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// oneChild is the definition of most tests: rows of c refer to rows of p.
const oneChild = "c:\n  - {table: p, column: p_id, on_delete: async_delete}\n"

// newOneChild is a main with an empty table c.
func newOneChild(t *testing.T) *estate {
	t.Helper()
	e := newEstate(t, "main", "main")
	e.exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	return e
}

// batches limits a run: records of a batch, rows deleted.
func batches(size int, maxDeletes int64) func(*service.Config) {
	return func(c *service.Config) {
		w := service.Settings[loosefk.Config](c)
		w.BatchSize, w.MaxDeletes = size, maxDeletes
	}
}

// wantQueue fails the test unless the records' keys are these, in their order.
func (e *estate) wantQueue(database, keys string) {
	e.t.Helper()
	e.want(database, `SELECT coalesce(string_agg(primary_key_value::text, ' ' ORDER BY primary_key_value), '') FROM loose_foreign_keys_deleted_records`, keys)
}

func TestLooseForeignKeysCleanup_EachDefinitionSeesTheKeysOfItsParentOnly(t *testing.T) {
	t.Parallel()
	e := newOneChild(t)
	e.exec("main", `CREATE TABLE d (id bigserial PRIMARY KEY, o_id bigint)`)
	e.exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(1, 6) i`)
	e.exec("main", `INSERT INTO d (o_id) SELECT i FROM generate_series(1, 6) i`)
	e.deleted("main", "p", 1, 3)
	e.deleted("main", "o", 4, 5)
	r := runBatch(t, e.service(oneChild+"d:\n  - {table: o, column: o_id, on_delete: async_delete}\n"), "main")
	wantCounts(t, r, "processed_records=5 deleted_rows=5")
	e.want("main", `SELECT string_agg(p_id::text, ' ' ORDER BY p_id) FROM c`, "4 5 6")
	e.want("main", `SELECT string_agg(o_id::text, ' ' ORDER BY o_id) FROM d`, "1 2 3 6")
}

func TestLooseForeignKeysCleanup_TakesTheOldestRecordsFirst(t *testing.T) {
	t.Parallel()
	e := newOneChild(t)
	e.exec("main", `INSERT INTO c (p_id) VALUES (1), (2), (3)`)
	e.exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
		VALUES ('public.p', 1, now() - interval '1 hour'), ('public.p', 2, now() - interval '3 hours'), ('public.p', 3, now() - interval '2 hours')`)
	before := e.value("main", `SELECT q::text || xmin FROM loose_foreign_keys_deleted_records q WHERE primary_key_value = 1`)
	r := runBatch(t, e.service(oneChild, batches(2, 2)), "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "processed_records=2 deleted_rows=2")
	if !r.OverLimit {
		t.Error("not over_limit, though a due record is left")
	}
	e.want("main", `SELECT q::text || xmin FROM loose_foreign_keys_deleted_records q`, before)
	e.want("main", `SELECT p_id FROM c`, "1")
}

func TestLooseForeignKeysCleanup_OrderIsPartitionTimeID(t *testing.T) {
	t.Parallel()
	e := newOneChild(t)
	// The names of the leaves lie: their bounds count, as numbers.
	e.exec("main", `CREATE SCHEMA elsewhere;
		CREATE TABLE elsewhere.loose_foreign_keys_deleted_records_1 PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (10);
		CREATE TABLE gitlab_partitions_dynamic.a PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (9)`)
	e.exec("main", `INSERT INTO loose_foreign_keys_deleted_records (partition, id, fully_qualified_table_name, primary_key_value, consume_after) VALUES
		(10, 1, 'public.p', 7, now() - interval '9 hours'), (10, 2, 'public.p', 8, NULL),
		(9, 5, 'public.p', 6, NULL), (9, 7, 'public.p', 3, now() - interval '1 hour'), (9, 6, 'public.p', 2, now() - interval '1 hour'),
		(9, 9, 'public.p', 1, now() - interval '2 hours'), (9, 2, 'public.p', 5, NULL),
		(9, 1, 'public.p', 4, now() - interval '1 minute'), (1, 99, 'public.p', 0, now() - interval '1 second')`)
	e.exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(0, 8) i`)
	for taken := 1; taken <= 9; taken++ {
		r := runBatch(t, e.service(oneChild, batches(1, 1)), "main")
		wantCounts(t, r, "processed_records=1 deleted_rows=1")
		var left []string
		for key := taken; key <= 8; key++ {
			left = append(left, fmt.Sprint(key))
		}
		e.wantQueue("main", strings.Join(left, " "))
	}
}

func TestLooseForeignKeysCleanup_EveryDueRecordIsTakenWhateverTheBatchSize(t *testing.T) {
	for _, size := range []int{1, 3, 7, 500} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			e := newOneChild(t)
			e.exec("main", `CREATE TABLE gitlab_partitions_dynamic.two PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (2);
				CREATE TABLE gitlab_partitions_dynamic.three PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (3);
				CREATE TABLE gitlab_partitions_dynamic.four PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (4)`)
			// Few times, many NULLs, the ends of time, the same ids in every partition, and one partition that has nothing.
			e.exec("main", `INSERT INTO loose_foreign_keys_deleted_records (partition, id, fully_qualified_table_name, primary_key_value, consume_after)
				SELECT p, i, 'public.p', p * 100 + i, CASE WHEN i = 20 THEN 'infinity' WHEN i > 16 THEN '-infinity' WHEN i % 3 > 0 THEN now() - i % 3 * interval '1 hour' END
				FROM unnest('{1,2,4}'::int[]) p, generate_series(1, 20) i`)
			e.exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(1, 500) i`)
			r := runBatch(t, e.service(oneChild, batches(size, 0)), "main")
			wantState(t, r, "succeeded")
			wantCounts(t, r, "processed_records=57 deleted_rows=57")
			e.wantQueue("main", "120 220 420")
		})
	}
}

func TestLooseForeignKeysCleanup_RemovesMoreRecordsThanABatchInOneRun(t *testing.T) {
	t.Parallel()
	e := newOneChild(t)
	e.exec("main", `INSERT INTO c (p_id) SELECT i % 1300 FROM generate_series(1, 2600) i`)
	e.deleted("main", "p", 1, 1200)
	r := runBatch(t, e.service(oneChild), "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "processed_records=1200 deleted_rows=2400")
	e.want("main", `SELECT count(*) FROM c`, "200")
}

func TestLooseForeignKeysCleanup_RecordsOfOneKeyAreOneKeyForTheChildren(t *testing.T) {
	for _, size := range []int{1, 2, 500} {
		t.Run(fmt.Sprintf("batches of %d", size), func(t *testing.T) {
			t.Parallel()
			e := newOneChild(t)
			e.exec("main", `CREATE TABLE gitlab_partitions_dynamic.two PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (2)`)
			e.exec("main", `INSERT INTO loose_foreign_keys_deleted_records (partition, id, fully_qualified_table_name, primary_key_value)
				VALUES (1, 1, 'public.p', 7), (1, 2, 'public.p', 8), (1, 3, 'public.p', 7), (2, 1, 'public.p', 7), (2, 2, 'public.p', 7)`)
			e.exec("main", `INSERT INTO c (p_id) VALUES (7), (7), (8), (9)`)
			r := runBatch(t, e.service(oneChild, batches(size, 0)), "main")
			wantState(t, r, "succeeded")
			wantCounts(t, r, "processed_records=5 deleted_rows=3")
			e.wantQueue("main", "")
		})
	}
}

func TestLooseForeignKeysCleanup_TheSameIDInTwoPartitionsIsTwoRecords(t *testing.T) {
	t.Parallel()
	e := newOneChild(t)
	e.exec("main", `CREATE TABLE gitlab_partitions_dynamic.two PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (2)`)
	e.exec("main", `INSERT INTO loose_foreign_keys_deleted_records (partition, id, fully_qualified_table_name, primary_key_value)
		VALUES (1, 1, 'public.p', 7), (2, 1, 'public.elsewhere', 8), (2, 2, 'public.p', 9), (1, 2, 'public.elsewhere', 10)`)
	r := runBatch(t, e.service(oneChild), "main")
	wantCounts(t, r, "processed_records=2")
	e.wantQueue("main", "8 10")
}

func TestLooseForeignKeysCleanup_RecordsOfAnotherStatusAreNotRead(t *testing.T) {
	t.Parallel()
	e := newOneChild(t)
	e.exec("main", `INSERT INTO c (p_id) VALUES (1), (2)`)
	e.exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, status)
		VALUES ('public.p', 1, 2), ('public.p', 1, 2), ('public.p', 2, 0), ('public.p', 2, 3)`)
	const queue = `SELECT string_agg(q::text || xmin, ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records q`
	before := e.value("main", queue)
	s := e.service(oneChild)
	r := runBatch(t, s, "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "")
	e.want("main", queue, before)
	e.want("main", `SELECT count(*) FROM c`, "2")

	// A pending record of the same key takes its own way.
	e.deleted("main", "p", 1, 1)
	wantCounts(t, runBatch(t, s, "main"), "processed_records=1 deleted_rows=1")
	e.want("main", queue, before)
}

func TestLooseForeignKeysCleanup_ARecordIsTakenOnceItsTimeHasCome(t *testing.T) {
	t.Parallel()
	e := newOneChild(t)
	e.exec("main", `INSERT INTO c (p_id) VALUES (1)`)
	e.exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
		VALUES ('public.p', 1, now() + interval '1 minute')`)
	s := e.service(oneChild)
	r := runBatch(t, s, "main")
	wantState(t, r, "succeeded")
	wantCounts(t, r, "")
	if r.OverLimit {
		t.Error("over_limit, though nothing is due")
	}
	states, err := s.Status(context.Background(), cleanupWorker)
	if err != nil {
		t.Fatal(err)
	}
	if b := states[0].Backlog; b.Pending != 1 || b.Deferred != 1 || b.Due != 0 {
		t.Errorf("backlog %+v, want 1 pending, deferred, not due", b)
	}
	e.exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
	wantCounts(t, runBatch(t, s, "main"), "processed_records=1 deleted_rows=1")
}

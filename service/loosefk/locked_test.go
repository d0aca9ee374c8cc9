package loosefk_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantPostponed fails the test unless the one record left is this key's, due in about a minute, otherwise as it was.
func wantPostponed(e *servicetest.Estate, key string) {
	e.T.Helper()
	e.WantQueue("main", key)
	e.Want("main", `SELECT consume_after BETWEEN now() + interval '40 seconds' AND now() + interval '60 seconds'
		AND cleanup_attempts = 0 AND status = 1 FROM loose_foreign_keys_deleted_records`, "true")
	e.Want("main", `SELECT count(*) FROM maintenance.record_failures`, "0")
}

// While some rows of a key are locked its record stays, whatever the other keys do, and goes when they are free.
func TestLooseForeignKeysCleanup_ALockedRowPostponesItsRecordOnly(t *testing.T) {
	const removes, updates = "on_delete: async_delete", "on_delete: update_column_to, target_column: x, target_value: 2"
	for _, test := range []struct{ name, database, entry, lock, key, counts string }{
		{"delete", "main", removes, "SELECT FROM c WHERE p_id = 7 FOR UPDATE", "7", "deleted_rows=57"},
		{"delete, one row locked", "main", removes, "SELECT FROM c WHERE p_id = 7 LIMIT 1 FOR UPDATE", "7", "deleted_rows=59"},
		{"delete in another database", "ci", removes, "SELECT FROM c WHERE p_id = 7 FOR UPDATE", "7", "deleted_rows=57"},
		{"limit below the keys", "main", removes + ", delete_limit: 4", "SELECT FROM c WHERE p_id = 7 FOR UPDATE", "7", "deleted_rows=57"},
		{"limit of one", "main", removes + ", delete_limit: 1", "DELETE FROM c WHERE p_id = 1", "1", "deleted_rows=57"},
		{"key share", "main", removes, "SELECT FROM c WHERE p_id = 7 FOR KEY SHARE", "7", "deleted_rows=57"},
		{"nullify", "main", "on_delete: async_nullify", "UPDATE c SET x = 1 WHERE p_id = 7 AND id < 10", "7", "updated_rows=59"},
		{"nullify in another database", "ci", "on_delete: async_nullify", "SELECT FROM c WHERE p_id = 7 FOR UPDATE", "7", "updated_rows=57"},
		{"update", "main", updates, "SELECT FROM c WHERE p_id = 7 FOR UPDATE", "7", "updated_rows=57"},
		{"limit of one, update", "main", updates + ", delete_limit: 1", "SELECT FROM c WHERE p_id = 7 FOR SHARE", "7", "updated_rows=57"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := servicetest.New(t, "main", "main")
			if test.database != "main" {
				e.Add(test.database, servicetest.Databases.Clone(t, servicetest.Migrated("")))
			}
			e.Exec(test.database, `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint, x integer); CREATE INDEX ON c (p_id);
				INSERT INTO c (p_id) SELECT 1 + i % 20 FROM generate_series(0, 59) i`)
			e.Deleted("main", "p", 1, 20)
			other := e.Connect(test.database)
			if _, err := other.Exec(t.Context(), "BEGIN; "+test.lock); err != nil {
				t.Fatal(err)
			}
			s := e.Service("c:\n  - {table: p, column: p_id, " + test.entry + "}\n")
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, r, "succeeded")
			servicetest.WantCounts(t, r, "processed_records=19 rescheduled_records=1 "+test.counts)
			wantPostponed(e, test.key)
			if r.OverLimit || r.Reason != "1 record postponed, others hold locks: c on "+test.database+" (1)" {
				t.Errorf("over_limit %t, reason %q", r.OverLimit, r.Reason)
			}
			if _, err := other.Exec(t.Context(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			dueAgain(e, "main")
			r = servicetest.RunBatch(t, s, "main")
			if rows := r.Counts["deleted_rows"] + r.Counts["updated_rows"]; r.Counts["processed_records"] != 1 || rows == 0 {
				t.Errorf("when the rows are free: %v", r.Counts)
			}
			e.WantQueue("main", "")
			e.Want(test.database, `SELECT count(*) FROM c WHERE p_id <= 20 AND x IS DISTINCT FROM 2`, "0")
		})
	}
}

func TestLooseForeignKeysCleanup_ALockedRowPostponesItsRecordOfSeveralColumns(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"async_delete", "async_nullify"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			e := servicetest.New(t, "", "main")
			e.Exec("main", `CREATE TABLE p (a int, b int, PRIMARY KEY (a, b)); INSERT INTO p SELECT i, i FROM generate_series(1, 5) i;
				CREATE TABLE c (id bigserial PRIMARY KEY, x int, y int); CREATE INDEX ON c (x, y); INSERT INTO c (x, y) SELECT a, b FROM p, generate_series(1, 3)`)
			track(e, "p", "a", "b")
			e.Exec("main", `DELETE FROM p`)
			release := e.Hold(`SELECT FROM c WHERE x = 3 LIMIT 1 FOR UPDATE`)
			s := e.Service("c: [{table: p, column: [x, y], on_delete: " + action + "}]")
			r := servicetest.RunBatch(t, s, "main")
			if r.Counts["processed_records"] != 4 || r.Counts["rescheduled_records"] != 1 {
				t.Errorf("%+v", r)
			}
			e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "1")
			e.Want("main", `SELECT string_agg(concat_ws('-', x, y), ' ') FROM c WHERE x IS NOT NULL`, "3-3")
			release()
			dueAgain(e, "main")
			if r = servicetest.RunBatch(t, s, "main"); r.Counts["processed_records"] != 1 {
				t.Errorf("when the row is free: %+v", r)
			}
			e.Want("main", `SELECT count(x) FROM c`, "0")
		})
	}
}

func TestLooseForeignKeysCleanup_ALockReleasedSoonIsWaitedFor(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 + i % 20 FROM generate_series(0, 59) i`)
	e.Deleted("main", "p", 1, 20)
	release := e.Hold(`SELECT FROM c WHERE p_id = 7 FOR UPDATE`)
	ended := background(e.Service(servicetest.OneChild))
	e.Eventually("main", `SELECT count(*) = 0 FROM c WHERE p_id <> 7`, "true")
	release()
	r := ended(t)
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=20 deleted_rows=60")
}

func TestLooseForeignKeysCleanup_RowsThatAreReferredToCanBeNullified(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `INSERT INTO c (p_id) SELECT 1 + i % 20 FROM generate_series(0, 59) i`)
	e.Deleted("main", "p", 1, 20)
	// As a foreign key's check does: no update needs to wait for that, whatever happens to another key.
	e.Hold(`SELECT FROM c WHERE p_id IN (8, 9) FOR KEY SHARE`)
	e.Hold(`SELECT FROM c WHERE p_id = 7 FOR UPDATE`)
	r := servicetest.RunBatch(t, e.Service("c:\n  - {table: p, column: p_id, on_delete: async_nullify}\n"), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=19 rescheduled_records=1 updated_rows=57")
	wantPostponed(e, "7")
}

func TestLooseForeignKeysCleanup_TheOtherDefinitionsOfALockedKeyStillRun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE b (p_id bigint); CREATE TABLE d (p_id bigint)`)
	for _, table := range []string{"b", "c", "d"} {
		e.Exec("main", `INSERT INTO `+table+` (p_id) SELECT i % 3 FROM generate_series(1, 12) i`)
	}
	e.Deleted("main", "p", 1, 2)
	e.Hold(`SELECT FROM c WHERE p_id = 1 LIMIT 1 FOR UPDATE`)
	definitions := ""
	for _, table := range []string{"b", "c", "d"} {
		definitions += table + ":\n  - {table: p, column: p_id, on_delete: async_delete}\n"
	}
	r := servicetest.RunBatch(t, e.Service(definitions), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=1 rescheduled_records=1 deleted_rows=23")
	wantPostponed(e, "1")
	for _, table := range []string{"b", "d"} {
		e.Want("main", `SELECT count(*) FROM `+table, "4")
	}
}

func TestLooseForeignKeysCleanup_ALockedTablePostponesTheRecords(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `CREATE TABLE d (p_id bigint); INSERT INTO d VALUES (1)`)
	e.Exec("main", `INSERT INTO c (p_id) VALUES (1), (2)`)
	e.Deleted("main", "p", 1, 1)
	release := e.Hold(`LOCK TABLE c IN ACCESS EXCLUSIVE MODE`)
	s := e.Service(servicetest.OneChild + "d:\n  - {table: p, column: p_id, on_delete: async_delete}\n")
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "rescheduled_records=1 deleted_rows=1")
	wantPostponed(e, "1")
	release()
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
	servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "processed_records=1 deleted_rows=1")
}

func TestLooseForeignKeysCleanup_ARowThatMovesToAnotherParentIsLeftAlone(t *testing.T) {
	for _, definition := range []string{"on_delete: async_delete", "on_delete: async_delete, delete_limit: 2", "on_delete: async_nullify"} {
		t.Run(definition, func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewOneChild(t)
			e.Exec("main", `ALTER TABLE c ADD moved boolean`)
			e.Exec("main", `INSERT INTO c (p_id) SELECT i % 2 FROM generate_series(1, 20) i`)
			e.Deleted("main", "p", 1, 1)
			release := e.HoldThenCommit(`UPDATE c SET p_id = 0, moved = true WHERE p_id = 1 AND id < 10`)
			ended := background(e.Service("c:\n  - {table: p, column: p_id, " + definition + "}\n"))
			e.Eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, "true")
			release()
			servicetest.WantState(t, ended(t), "succeeded")
			e.Want("main", `SELECT count(*) FROM c WHERE p_id = 0 AND moved`, "5")
			e.Want("main", `SELECT count(*) FROM c WHERE p_id = 1`, "0")
			e.WantQueue("main", "")
		})
	}
}

func TestLooseForeignKeysCleanup_ARowThatMovesToAnotherLeafGoesAllTheSame(t *testing.T) {
	for _, limit := range []string{"", ", delete_limit: 3"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			e := servicetest.New(t, "main", "main")
			e.Exec("main", `CREATE TABLE c (id bigserial, p_id bigint, leaf integer) PARTITION BY LIST (leaf);
				CREATE TABLE c_0 PARTITION OF c FOR VALUES IN (0); CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1);
				INSERT INTO c (p_id, leaf) SELECT i % 2, 0 FROM generate_series(1, 20) i`)
			e.Deleted("main", "p", 1, 1)
			release := e.HoldThenCommit(`UPDATE c SET leaf = 1 WHERE id < 10`)
			ended := background(e.Service("c:\n  - {table: p, column: p_id, on_delete: async_delete" + limit + "}\n"))
			e.Eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, "true")
			release()
			r := ended(t)
			servicetest.WantState(t, r, "succeeded")
			servicetest.WantCounts(t, r, "processed_records=1 deleted_rows=10")
			e.Want("main", `SELECT count(*) FROM c`, "10")
		})
	}
}

func TestLooseForeignKeysCleanup_ARowThatIsChangedMeanwhileGoesAllTheSame(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `ALTER TABLE c ADD x integer`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i % 2 FROM generate_series(1, 20) i`)
	e.Deleted("main", "p", 1, 1)
	release := e.HoldThenCommit(`UPDATE c SET x = 1 WHERE p_id = 1 AND id < 10`)
	ended := background(e.Service(servicetest.OneChild))
	e.Eventually("main", `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, "true")
	release()
	r := ended(t)
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=1 deleted_rows=10")
}

func TestLooseForeignKeysCleanup_ARunGoesOnWhereOneWasKilled(t *testing.T) {
	t.Parallel()
	e := servicetest.NewOneChild(t)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i % 10 FROM generate_series(1, 100) i`)
	e.Deleted("main", "p", 1, 4)
	// As a process leaves it that dies between the statement on the children and the removal: rows of 1 and 2 are gone,
	// the lease is held.
	e.Exec("main", `DELETE FROM c WHERE p_id IN (1, 2)`)
	e.Exec("main", `INSERT INTO maintenance.leases VALUES ('loose_foreign_keys_cleanup/main', 'killed', 7, now(), now(), now() + interval '2 seconds')`)
	s := e.Service(servicetest.OneChild)
	e.Eventually("main", `SELECT expires_at < clock_timestamp() FROM maintenance.leases`, "true")
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=4 deleted_rows=20")
	if r.LeaseEpoch != 8 {
		t.Errorf("epoch %d, want 8", r.LeaseEpoch)
	}
	e.Want("main", `SELECT count(*) FROM c`, "60")
}

func TestLooseForeignKeysCleanup_ALockedTableIsSaidInTheLogAndTheTrace(t *testing.T) {
	spans, log := servicetest.Tracing(t), &bytes.Buffer{}
	e := servicetest.New(t, "main", "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT generate_series(1, 4)`)
	e.Deleted("main", "p", 1, 4)
	other, err := pgx.Connect(t.Context(), e.URLs["ci"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close(context.Background()) })
	if _, err := other.Exec(t.Context(), `BEGIN; LOCK TABLE c IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.TracedLogTo(log)), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "rescheduled_records=4")
	if want := "4 records postponed, others hold locks: c on ci (4)"; r.Reason != want || strings.Count(log.String(), `"locked":"`+want) != 1 {
		t.Errorf("reason %q, log %s", r.Reason, log)
	}
	servicetest.WantAttributes(t, servicetest.Named(spans, "maintenance.batch")[0], map[string]string{"maintenance.outcome": "deferred", "maintenance.reason": "locked: c on ci"})
}

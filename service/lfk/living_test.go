package lfk_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const (
	simpleParent      = "PRIMARY KEY)"
	partitionedParent = "NOT NULL, at date DEFAULT '2026-03-05', PRIMARY KEY (id, at)) PARTITION BY RANGE (at);" +
		"CREATE TABLE p_default PARTITION OF p DEFAULT"
)

// movedRows moves the rows of p to a new partition, as partition maintenance does.
const movedRows = `CREATE TEMP TABLE moved AS SELECT * FROM p WHERE false;
	WITH m AS (DELETE FROM p_default WHERE at >= '2026-03-01' RETURNING *) INSERT INTO moved SELECT * FROM m;
	CREATE TABLE p_2026 PARTITION OF p FOR VALUES FROM ('2026-03-01') TO ('2026-04-01');
	INSERT INTO p SELECT * FROM moved`

// swappedTables lets p and a copy of it swap names, as migrations do.
const swappedTables = `CREATE TABLE p_new (LIKE p INCLUDING ALL); INSERT INTO p_new SELECT * FROM p;
	ALTER TABLE p RENAME TO p_old; ALTER TABLE p_new RENAME TO p`

// leftover makes p a leftover of a split.
const leftover = `CREATE FUNCTION gitlab_schema_prevent_write() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END';
	CREATE TRIGGER w BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON p FOR EACH STATEMENT EXECUTE FUNCTION gitlab_schema_prevent_write()`

// rewrittenRows deletes the rows of p and inserts them again.
const rewrittenRows = `BEGIN; CREATE TEMP TABLE m AS SELECT * FROM p; DELETE FROM p; INSERT INTO p SELECT * FROM m; COMMIT`

// livingCase is what happens to the parents 1 to 10 after the application has deleted 1 and 2. Each
// has a child in main and one in ci.
type livingCase struct {
	name, key, table string
	// transactions one after the other. "track" tracks p.
	transactions []string
	// counts of a run, and the keys of the children that remain in each database.
	counts, remaining string
}

func livingCases() []livingCase {
	return []livingCase{
		{
			"rows moved between partitions", "bigint", partitionedParent,
			[]string{movedRows},
			"processed_records=2 obsolete_records=8 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"rows moved between partitions, text keys", "text", partitionedParent,
			[]string{movedRows},
			"processed_records=2 obsolete_records=8 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"old copy purged after a swap of names", "bigint", simpleParent,
			[]string{swappedTables, "track", `DELETE FROM p_old`},
			"processed_records=2 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"old copy purged after a swap of names, varchar keys", "varchar(9)", simpleParent,
			[]string{swappedTables, "track", `DELETE FROM p_old`},
			"processed_records=2 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"old copy purged after a partition exchange", "bigint", partitionedParent,
			[]string{`
				CREATE TABLE p_copy (LIKE p INCLUDING ALL); INSERT INTO p_copy SELECT * FROM p;
				ALTER TABLE p DETACH PARTITION p_default; ALTER TABLE p ATTACH PARTITION p_copy DEFAULT`, `DELETE FROM p_default`},
			"processed_records=2 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"copy with GitLab's function purged", "bigint", simpleParent,
			[]string{`CREATE TABLE p_copy (LIKE p INCLUDING ALL); INSERT INTO p_copy SELECT * FROM p;
				CREATE FUNCTION insert_into_loose_foreign_keys_deleted_records_with_id() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN
					INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) SELECT 'public.p', id FROM old_table;
					RETURN NULL; END $f$;
				CREATE TRIGGER t AFTER DELETE ON p_copy REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
					EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_with_id('p')`, `DELETE FROM p_copy`},
			"processed_records=2 obsolete_records=8 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"key used again", "bigint", simpleParent,
			[]string{`DELETE FROM p`, `INSERT INTO p VALUES (5)`},
			"processed_records=9 rescheduled_records=1 deleted_rows=18", "5",
		}, {
			"keys used again, varchar", "varchar(9)", simpleParent,
			[]string{`DELETE FROM p`, `INSERT INTO p VALUES (5), (6)`},
			"processed_records=8 rescheduled_records=2 deleted_rows=16", "5 6",
		}, {
			"row updated since it was moved", "int", partitionedParent,
			[]string{movedRows, `UPDATE p SET at = at + 1 WHERE id = 4`},
			"processed_records=2 obsolete_records=7 rescheduled_records=1 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"view in place of the table", "bigint", simpleParent,
			[]string{
				`DELETE FROM p WHERE id = 3`, `ALTER TABLE p RENAME TO base; CREATE VIEW p AS SELECT * FROM base`, `INSERT INTO base VALUES (3)`,
			},
			"processed_records=2 rescheduled_records=1 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"key used again and then moved", "bigint", partitionedParent,
			[]string{`DELETE FROM p WHERE id = 3`, `INSERT INTO p (id) VALUES (3)`, movedRows},
			"processed_records=2 obsolete_records=7 rescheduled_records=2 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"rows moved and a key used again before a split", "bigint", simpleParent,
			[]string{rewrittenRows, `DELETE FROM p WHERE id = 5`, `INSERT INTO p VALUES (5)`, leftover},
			"processed_records=2 obsolete_records=7 rescheduled_records=2 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"table dropped", "bigint", simpleParent,
			[]string{`DELETE FROM p`, `DROP TABLE p`},
			"processed_records=10 deleted_rows=20", "",
		},
	}
}

// relocatedCases are those whose parents are not found under the table's name.
func relocatedCases() []livingCase {
	return []livingCase{
		{
			"rows moved, table renamed", "varchar(9)", simpleParent,
			[]string{rewrittenRows, `ALTER TABLE p RENAME TO people`},
			"processed_records=2 obsolete_records=8 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"rows moved, table moved to another schema", "bigint", simpleParent,
			[]string{rewrittenRows, `CREATE SCHEMA archive; ALTER TABLE p SET SCHEMA archive`},
			"processed_records=2 obsolete_records=8 deleted_rows=4", "3 4 5 6 7 8 9 10",
		}, {
			"rows moved, detachment of their partition pending", "bigint", partitionedParent,
			[]string{movedRows, `UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = 'p_2026'::regclass`},
			"processed_records=2 obsolete_records=8 deleted_rows=4", "3 4 5 6 7 8 9 10",
		},
	}
}

func TestLooseForeignKeysCleanup_ChildrenOfLivingParentsStay(t *testing.T) {
	t.Parallel()
	estates := map[string]*servicetest.Estate{}
	for _, schema := range []string{"", servicetest.IntegerKeys()} {
		if estates[schema] == nil {
			estates[schema] = servicetest.New(t, schema, "main", "ci")
			estates[schema].Install()
		}
	}
	for _, c := range append(livingCases(), relocatedCases()...) {
		e := estates[""]
		// GitLab's trigger of a partition records the table even where the partition was detached.
		if strings.HasSuffix(c.key, "int") && !strings.HasSuffix(c.name, "exchange") {
			e = estates[servicetest.IntegerKeys()]
		}
		t.Run(c.name, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", "CREATE TABLE p (id "+c.key+" "+c.table+"; INSERT INTO p (id) SELECT generate_series(1, 10)")
			children := map[string]string{"main": "c", "ci": "d"}
			for database, child := range children {
				e.Exec(database, "CREATE TABLE "+child+" (p_id "+c.key+"); CREATE INDEX ON "+child+" (p_id); INSERT INTO "+child+" SELECT generate_series(1, 10)")
			}
			track(e, "p")
			for _, sql := range append([]string{`DELETE FROM p WHERE id::text IN ('1', '2')`}, c.transactions...) {
				if sql == "track" {
					track(e, "p")
				} else {
					e.Exec("main", sql)
				}
			}
			s := e.Service("c: &rule [{table: p, column: p_id, on_delete: async_delete}]\nd: *rule\n")
			servicetest.WantCounts(t, servicetest.DryRun(t, s), c.counts)
			for database, child := range children {
				e.Want(database, `SELECT count(*) FROM `+child, "10")
			}
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantRun(t, r, "succeeded", c.counts)
			for database, child := range children {
				e.Want(database, `SELECT coalesce(string_agg(p_id::text, ' ' ORDER BY p_id::text::int), '') FROM `+child, c.remaining)
			}
			held := strings.Contains(r.Reason, "held because of reused keys: to check the records, run `caretaker lfk "+
				"reused p`")
			assert.Equal(t, held, strings.Contains(c.counts, "rescheduled"), "held, by the reason "+r.Reason)
		})
	}
}

// A key is looked up by the columns that it was recorded by: another column of a living parent may have the
// same value.
func TestLooseForeignKeysCleanup_KeysAreLookedUpByTheColumnsThatWereRecorded(t *testing.T) {
	const (
		plain  = "{table: p, column: p_id, on_delete: async_delete}"
		moved  = `BEGIN; CREATE TEMP TABLE k ON COMMIT DROP AS SELECT * FROM p; DELETE FROM p; INSERT INTO p SELECT * FROM k; COMMIT`
		unsure = "5 records held, because the key columns of p are unknown without a trigger: list the recorded " +
			"columns as `key` in the definitions, or run `caretaker lfk reused p`"
	)
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Install()
	for _, c := range []struct{ name, sql, definitions, counts, reason string }{
		{"table renamed", moved + `; ALTER TABLE p RENAME TO q; ` + strings.ReplaceAll(moved, " p", " q"), strings.ReplaceAll(plain, "p,", "q,"), "obsolete_records=5", ""},
		{"trigger lost", moved + `; DROP TRIGGER p_loose_fk_trigger ON p`, plain, "rescheduled_records=5", unsure},
		{"column renamed", moved + `; ALTER TABLE p RENAME number TO no`, plain, "rescheduled_records=5", unsure},
		{
			"the first definition names it", moved + `; DROP TRIGGER p_loose_fk_trigger ON p`,
			"{table: p, column: p_id, key: number, on_delete: async_delete}, {table: p, column: q_id, on_delete: async_delete}", "obsolete_records=5", "",
		},
		{
			"definitions disagree", moved + `; DROP TRIGGER p_loose_fk_trigger ON p`,
			"{table: p, column: p_id, key: number, on_delete: async_delete}, {table: p, column: q_id, key: id, on_delete: async_delete}", "rescheduled_records=5", unsure,
		},
		{"the table is another one", `BEGIN; CREATE TABLE n (LIKE p INCLUDING ALL); WITH d AS (DELETE FROM p RETURNING *) INSERT INTO n SELECT * FROM d;
			DROP TABLE p; ALTER TABLE n RENAME TO p; COMMIT`, plain, "rescheduled_records=5", unsure},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY, number bigint NOT NULL UNIQUE); INSERT INTO p SELECT i, i + 10 FROM generate_series(1, 5) i;
				CREATE TABLE c (p_id bigint, q_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c SELECT number, number FROM p`)
			track(e, "p", "number")
			e.Exec("main", c.sql)
			s := e.Service("c: ["+c.definitions+"]", servicetest.With(func(c *lfk.Config) { c.ReusedKeys = lfk.ReuseHold }))
			for _, dry := range []bool{true, false} {
				r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: dry}))(t)
				servicetest.WantRun(t, r, "succeeded", c.counts)
				assert.Equal(t, r.Reason, c.reason)
			}
			e.Want("main", `SELECT count(*) FROM c`, "5")
		})
	}
}

// reuseKey deletes the parents 5 and 6, and lets another row have the key 5.
func reuseKey(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id); INSERT INTO c (p_id) VALUES (5), (5), (6);
		CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (5), (6)`)
	track(e, "p")
	e.Exec("main", `DELETE FROM p`)
	e.Exec("main", `INSERT INTO p VALUES (5)`)
}

func TestLooseForeignKeysCleanup_AReusedKeyIsHeldUntilTheOperatorDecides(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	decide := func(clean bool) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			keys := e.Keys(servicetest.OneChild)
			done := assert.Must(keys.DecideReused(context.Background(), "p", clean))(t)
			assert.That(t, len(done) == 1 && done[0].Records == 1, "decided %+v, want 1 record of main", done)
			for table, want := range map[string]string{"p": "no held record of p has a reused key", "nowhere": "unknown table nowhere"} {
				_, err := keys.DecideReused(context.Background(), table, clean)
				servicetest.WantError(t, err, want)
			}
			_, err := keys.Reused(context.Background(), "nowhere")
			servicetest.WantError(t, err, "unknown table nowhere")
		}
	}
	for _, c := range []struct {
		name   string
		decide func(*testing.T)
		// counts of the run after the decision, and the children that remain.
		counts, remaining string
	}{
		{"clean", decide(true), "processed_records=1 deleted_rows=2", "0"},
		{"keep", decide(false), "", "2"},
		{"clean, and the first try fails", func(t *testing.T) {
			t.Helper()
			decide(true)(t)
			e.Exec("main", `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
				CREATE TRIGGER no BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION no()`)
			servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
			e.Exec("main", `DROP TRIGGER no ON c; UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
		}, "processed_records=1 deleted_rows=2", "0"},
		{"clean, and the key is used a third time", func(t *testing.T) {
			t.Helper()
			decide(true)(t)
			e.Exec("main", `DELETE FROM p`)
			e.Exec("main", `INSERT INTO p VALUES (5)`)
		}, "rescheduled_records=2", "2"},
		{"clean, and another record gets the number", func(t *testing.T) {
			t.Helper()
			decide(true)(t)
			e.Exec("main", `TRUNCATE loose_foreign_keys_deleted_records RESTART IDENTITY; DELETE FROM p`)
			e.Exec("main", `INSERT INTO p VALUES (5)`)
			servicetest.WantCounts(t, servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main"), "rescheduled_records=1")
			e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
		}, "rescheduled_records=1", "2"},
		{"the row is deleted too", func(*testing.T) {
			e.Exec("main", `DELETE FROM p`)
			e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
		}, "processed_records=2 deleted_rows=2", "0"},
		{"nothing", func(*testing.T) {
			e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
		}, "rescheduled_records=1", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.InTurn(t)
			reuseKey(e)
			s := e.Service(servicetest.OneChild)
			servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "processed_records=1 rescheduled_records=1 deleted_rows=1")
			held := assert.Must(e.Keys(servicetest.OneChild).Reused(context.Background(), "p"))(t)
			assert.That(t, len(held) == 1 && held[0].Key().String() == "5" && held[0].Failures == 0,
				"held %+v, want the key 5 without failures", held)
			servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "")
			c.decide(t)
			servicetest.WantRun(t, servicetest.RunBatch(t, s, "main"), "succeeded", c.counts)
			e.Want("main", `SELECT count(*) FROM c`, c.remaining)
		})
	}
}

// The operator may close the record of a run that is about to check its row.
func TestLooseForeignKeysCleanup_AReusedKeyIsKeptInTheRun(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.IntegerKeys(), "main", "ci")
	e.Install()
	for child, lock := range map[string]string{"main": "c", "ci": "p"} {
		t.Run("children in "+child, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (5)`)
			e.Exec(child, `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (5)`)
			track(e, "p")
			e.Exec("main", `DELETE FROM p`)
			e.Exec("main", `INSERT INTO p VALUES (5)`)
			s := e.Service(servicetest.OneChild)
			e.Held(`LOCK TABLE `+lock, 1, `DELETE FROM loose_foreign_keys_deleted_records`)
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantRun(t, r, "succeeded", "")
			assert.That(t, !r.OverLimit, "the run did not end by itself")
			e.Want(child, `SELECT count(*) FROM c`, "1")
		})
	}
}

// Between the two renames of a swap, the table that records name has another name.
func TestLooseForeignKeysCleanup_AParentTableThatComesInTheRunIsChecked(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 9); INSERT INTO c (p_id) SELECT id FROM p`)
	track(e, "p")
	e.Exec("main", `DELETE FROM p WHERE id < 3`)
	e.Exec("main", rewrittenRows)
	e.Exec("main", `ALTER TABLE p RENAME TO p_old`)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	// Two batches may be in hand: those of 1 and 2.
	s := e.Service(servicetest.OneChild, servicetest.Batches(1, 0))
	run := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	e.Exec("main", `ALTER TABLE p_old RENAME TO p`)
	e.Lift("main", servicetest.App)
	servicetest.WantCounts(t, servicetest.Ended(t, s, run.ID), "rescheduled_records=9")
	dueAgain(e, "main")
	servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "processed_records=2 rescheduled_records=7 deleted_rows=2")
	e.Want("main", `SELECT count(*) FROM c`, "7")
}

// After an outage it cannot be told any more that the rows were there before.
func TestLooseForeignKeysCleanup_MovedRowsAreClosedThoughNoChildAnswers(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.IntegerKeys(), "main", "ci")
	e.Install()
	for name, sql := range map[string]string{"silent": `ALTER SCHEMA public RENAME TO away`, "absent": `DROP TABLE c`} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(11, 22); CREATE TABLE q (id bigint PRIMARY KEY); INSERT INTO q VALUES (7)`)
			e.Exec("ci", `CREATE TABLE c (p_id bigint); INSERT INTO c VALUES (1)`)
			track(e, "p")
			track(e, "q")
			e.Exec("main", rewrittenRows+`; BEGIN; DELETE FROM q; INSERT INTO q VALUES (7); COMMIT`)
			e.Exec("ci", sql)
			var log servicetest.Buffer
			s := e.Service(servicetest.OneChild+"  - {table: q, column: p_id, on_delete: async_delete}\n", log.Keep)
			servicetest.WantCounts(t, servicetest.DryRun(t, s), "obsolete_records=13")
			servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "obsolete_records=13")
			lines := strings.Join(log.Lines("parent rows exist, records closed"), "")
			assert.That(t, strings.Count(lines, "\n") == 2 && strings.Contains(lines, `table=public.q keys=1 first_keys=7`) &&
				strings.Contains(lines, `table=public.p keys=12 first_keys="11, 12, 13, 14, 15, 16, 17, 18, 19, 20"`), "%s", lines)
		})
	}
}

func TestLooseForeignKeysCleanup_RecordsWhoseRemovalIsRolledBackAreNotCounted(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci")
	e.Exec("ci", `CREATE TABLE c (p_id bigint)`)
	e.Install()
	e.Deleted("main", "p", 1, 3)
	e.Exec("main", `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE CONSTRAINT TRIGGER no AFTER DELETE ON loose_foreign_keys_deleted_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()`)
	servicetest.WantRun(t, servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main"), "failed", "")
}

func TestLooseForeignKeysCleanup_TheConfigurationDecidesOnReusedKeys(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	for setting, c := range map[string]struct{ counts, remaining string }{
		lfk.ReuseHold:  {"processed_records=1 rescheduled_records=1 deleted_rows=1", "2"},
		lfk.ReuseClean: {"processed_records=2 deleted_rows=3", "0"},
		lfk.ReuseKeep:  {"processed_records=1 obsolete_records=1 deleted_rows=1", "2"},
	} {
		t.Run(setting, func(t *testing.T) {
			e.InTurn(t)
			reuseKey(e)
			s := e.Service(servicetest.OneChild, servicetest.With(func(w *lfk.Config) { w.ReusedKeys = setting }))
			servicetest.WantCounts(t, servicetest.DryRun(t, s), c.counts)
			servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), c.counts)
			e.Want("main", `SELECT count(*) FROM c`, c.remaining)
		})
	}
}

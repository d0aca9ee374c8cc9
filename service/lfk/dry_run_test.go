package lfk_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// definitions are a dry run's, in words.
func definitions(r run.Run) string {
	var out []string
	for _, d := range r.Definitions {
		atLeast := ""
		if d.AtLeast {
			atLeast = "+"
		}
		out = append(out, fmt.Sprintf("%s.%s -> %s %s %d%s", d.Table, d.Column, d.Parent, d.Action, d.Rows, atLeast))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

const everyAction = `
c: [{table: p, column: p_id, on_delete: async_delete}]
n:
  - {table: p, column: p_id, on_delete: async_nullify, conditions: [{column: kind, value: P}]}
  - {table: o, column: p_id, on_delete: async_nullify, conditions: [{column: kind, value: O}]}
u: [{table: p, column: p_id, on_delete: update_column_to, target_column: state, target_value: 4}]
absent: [{table: p, column: p_id, on_delete: async_delete}]
`

// newEveryAction has children for every action, in two databases. Their parents are due, recorded
// twice, not due, or alive.
func newEveryAction(t *testing.T) *servicetest.Estate {
	t.Helper()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT i % 10 FROM generate_series(1, 100) i;
		CREATE TABLE n (p_id integer, kind text); INSERT INTO n SELECT i % 10, CASE WHEN i % 3 = 0 THEN 'P' ELSE 'O' END FROM generate_series(1, 90) i`)
	e.Exec("ci", `CREATE TABLE c (p_id bigint PRIMARY KEY); INSERT INTO c SELECT generate_series(1, 9);
		CREATE TABLE u (p_id bigint, state smallint); INSERT INTO u SELECT i % 10, i % 5 FROM generate_series(1, 100) i`)
	e.Deleted("main", "p", 1, 5)
	e.Deleted("main", "p", 2, 2)
	e.Deleted("main", "o", 3, 4)
	e.Deleted("main", "unknown", 1, 9)
	e.Exec("main", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after) VALUES ('public.p', 6, now() + interval '1 hour');
		INSERT INTO maintenance.absent_children (child, accepted_by) VALUES ('absent', 'me')`)
	return e
}

func TestDryRun_CountsWhatARunWouldDoAndChangesNothing(t *testing.T) {
	e := newEveryAction(servicetest.Parallel(t))
	s := e.Service(everyAction, servicetest.Batches(3, 0))
	main, ci := e.State("main", "c", "n", "maintenance.leases"), e.State("ci", "c", "u", "maintenance.leases")
	dry := servicetest.DryRun(t, s)
	servicetest.WantState(t, dry, control.RunSucceeded)
	e.WantSame("main", main, "c", "n", "maintenance.leases")
	e.WantSame("ci", ci, "c", "u", "maintenance.leases")
	assert.That(t, !dry.OverLimit && dry.LeaseEpoch == 0 && dry.Reason == "" && dry.DryRun, "%+v", dry)
	const want = "c.p_id -> p async_delete 55, n.p_id -> o async_nullify 12, n.p_id -> p async_nullify 15, u.p_id -> p update_column_to 40"
	assert.Equal(t, definitions(dry), want, "definitions")
	kept, err := e.Service(everyAction).Run(t.Context(), dry.ID)
	assert.That(t, err == nil && definitions(kept) == want && kept.DryRun && fmt.Sprint(kept.Counts) == fmt.Sprint(dry.Counts),
		"%+v, %v", kept, err)

	done := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, done, control.RunSucceeded)
	assert.That(t, done.LeaseEpoch == 1, "epoch %d, want 1", done.LeaseEpoch)
	assert.That(t, slices.Equal(dry.Tables, done.Tables), "tables %v, then %v", dry.Tables, done.Tables)
	servicetest.WantCounts(t, dry, "processed_records=8 deleted_rows=55 updated_rows=67")
	servicetest.WantCounts(t, done, "processed_records=8 deleted_rows=55 updated_rows=67")
	assert.That(t, len(done.Definitions) == 0, "definitions %v of a real run", done.Definitions)
	again := servicetest.DryRun(t, s)
	assert.That(t, len(again.Tables) == 0, "tables %v after the run, want none", again.Tables)
}

func TestDryRun_CountsUpToAHundredThousandRowsADefinition(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE d (p_id bigint); INSERT INTO d VALUES (700)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT i % 1000 FROM generate_series(1, 100000) i`)
	e.Deleted("main", "p", 0, 999)
	s := e.Service(cAndD, servicetest.With(func(c *lfk.Config) { c.MaxDeletes = 10 }))
	if r := servicetest.DryRun(t, s); definitions(r) != "c.p_id -> p async_delete 100000, d.p_id -> p async_delete 1" || r.OverLimit {
		t.Errorf("definitions %s, over_limit %t", definitions(r), r.OverLimit)
	}
	e.Exec("main", `INSERT INTO c (p_id) VALUES (7)`)
	r := servicetest.DryRun(t, s)
	servicetest.WantState(t, r, control.RunSucceeded)
	got := definitions(r)
	assert.That(t, got == "c.p_id -> p async_delete 100000+, d.p_id -> p async_delete 1", "definitions %s", got)
	assert.That(t, r.OverLimit && strings.Contains(r.Reason, "c.p_id -> p") && !strings.Contains(r.Reason, "d.p_id"),
		"over_limit %t, reason %q", r.OverLimit, r.Reason)
	servicetest.WantCounts(t, r, "processed_records=1000 deleted_rows=100001")
}

func TestDryRun_EndsWithItsTimeAndSaysWhatIsUnfinished(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	// Counting takes a moment for every row: what the condition's value is converted to has a slow check.
	e.Exec("main", `CREATE FUNCTION slow() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
		IF current_setting('application_name') = 'caretaker' THEN PERFORM pg_sleep(0.05); END IF; RETURN true; END $$;
		CREATE DOMAIN slow_text AS text CHECK (slow());
		ALTER TABLE c ADD kind slow_text; INSERT INTO c (p_id, kind) SELECT i, 'x' FROM generate_series(1, 100) i;
		CREATE TABLE d (o_id bigint); INSERT INTO d VALUES (1)`)
	e.Deleted("main", "p", 1, 100)
	e.Deleted("main", "o", 1, 1)
	s := e.Service("c: [{table: p, column: p_id, on_delete: async_delete, conditions: [{column: kind, value: x}]}]\nd: [{table: o, column: o_id, on_delete: async_delete}]\n",
		servicetest.Batches(10, 0), servicetest.With(func(c *lfk.Config) { c.MaxRuntime = 3 * time.Second }))
	r := servicetest.DryRun(t, s)
	servicetest.WantState(t, r, control.RunSucceeded)
	assert.That(t, r.OverLimit && strings.Contains(r.Reason, "max_runtime") && strings.Contains(r.Reason, "c.p_id -> p"),
		"over_limit %t, reason %q", r.OverLimit, r.Reason)
	for _, d := range r.Definitions {
		assert.That(t, d.Table != "c" || d.AtLeast && d.Rows != 0 && d.Rows < 100, "%+v, want a part of the rows", d)
	}
}

// Each case is of two deleted parents with three rows of c and one of d each. While all databases
// answer, it has a living parent, too.
func TestDryRun_CountsEachRecordAsTheRunWould(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	for name, c := range map[string]struct {
		prepare           string
		down, lock        bool
		definitions, want string
	}{
		"all is well": {want: "obsolete_records=1 processed_records=4 deleted_rows=8"},
		"a database does not answer": {
			down: true, want: "rescheduled_records=4 deleted_rows=8",
		},
		"only that database may have the child": {
			down: true, prepare: `DROP TABLE c, d`, want: "rescheduled_records=4",
		},
		"a child that no key fits": {
			prepare: `ALTER TABLE d ALTER p_id TYPE real`, want: "rescheduled_records=4 deleted_rows=6 obsolete_records=1",
		},
		"a child that keys of another number of columns would fit": {
			definitions: "d: [{table: p, column: [p_id, id], key: [id, x], on_delete: async_delete}]\n",
			prepare:     `ALTER TABLE p ADD x int`, want: "rescheduled_records=4 deleted_rows=6 obsolete_records=1",
		},
		"a protected child": {
			prepare: `CREATE TABLE users (id bigint PRIMARY KEY, c bigint REFERENCES c ON DELETE CASCADE); INSERT INTO users SELECT 7, min(id) FROM c WHERE p_id = 1;
				INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by) VALUES ('user', 7, 'r', 'ann')`,
			want: "processed_records=2 rescheduled_records=2 deleted_rows=5 obsolete_records=1",
		},
		"a protected child beside a definition that fails": {
			prepare: `CREATE TABLE users (id bigint PRIMARY KEY, c bigint REFERENCES c ON DELETE CASCADE); INSERT INTO users SELECT 7, min(id) FROM c WHERE p_id = 1;
				INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by) VALUES ('user', 7, 'r', 'ann'); ALTER TABLE d DROP p_id`,
			want: "rescheduled_records=4 deleted_rows=3 obsolete_records=1",
		},
		"a child that is locked": {lock: true, want: "rescheduled_records=4 deleted_rows=6 obsolete_records=1"},
		"a definition that fails": {
			prepare: `ALTER TABLE d DROP p_id`, want: "rescheduled_records=4 deleted_rows=6 obsolete_records=1",
		},
		"an absent child, and a definition that fails": {
			prepare:     `ALTER TABLE d DROP p_id`,
			definitions: "d: [{table: p, column: p_id, on_delete: async_delete}]\nx: [{table: p, column: p_id, on_delete: async_delete}]\n",
			want:        "rescheduled_records=4 deleted_rows=6 obsolete_records=1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			deletedParents(e, 2)
			e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE d (id bigint PRIMARY KEY, p_id bigint); INSERT INTO d VALUES (1, 1), (2, 2), (3, 3);
				INSERT INTO p VALUES (3)`)
			e.Deleted("main", "p", 1, 2) // for the second time
			e.Exec("main", c.prepare)
			if c.down {
				e.AddDown()
			} else {
				e.Deleted("main", "p", 3, 3)
			}
			if c.lock {
				assert.Must(e.Connect("main").Exec(t.Context(), `BEGIN; LOCK TABLE d`))(t)
			}
			s := e.Service(servicetest.OneChild+cmp.Or(c.definitions, "d: [{table: p, column: p_id, on_delete: async_delete}]\n"), servicetest.Batches(3, 0))
			queue := e.State("main", "loose_foreign_keys_deleted_records")
			dry := servicetest.DryRun(t, s)
			e.WantSame("main", queue, "loose_foreign_keys_deleted_records")
			done := servicetest.RunBatch(t, s, "main")
			servicetest.WantCounts(t, done, c.want)
			told := func(r run.Run) string {
				return fmt.Sprint(r.State, r.Counts, r.Tables, " reason ", r.Reason, " error ", r.Error)
			}
			assert.Equal(t, told(dry), told(done))
		})
	}
}

func TestDryRun_IsReadOnlyForTheServerToo(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	// Comparing with the condition's value calls a function that writes.
	e.Exec("main", `CREATE TABLE written (x bigint); CREATE TABLE d (p_id bigint); INSERT INTO d VALUES (1);
		CREATE FUNCTION writes() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
			IF current_setting('application_name') = 'caretaker' THEN INSERT INTO written VALUES (1); END IF; RETURN true; END $$;
		CREATE DOMAIN writing_text AS text CHECK (writes()); ALTER TABLE c ADD kind writing_text; INSERT INTO c (p_id, kind) VALUES (1, 'x')`)
	e.Deleted("main", "p", 1, 1)
	r := servicetest.DryRun(t, e.Service("c: [{table: p, column: p_id, on_delete: async_delete, conditions: [{column: kind, value: x}]}]\n"+
		"d: [{table: p, column: p_id, on_delete: async_delete}]\n"))
	servicetest.WantFailed(t, r, "c.p_id -> p on main: unreachable (25006 read_only_sql_transaction), 1 record")
	got := definitions(r)
	assert.That(t, got == "c.p_id -> p async_delete 0, d.p_id -> p async_delete 1", "definitions %s", got)
	e.Want("main", `SELECT count(*) FROM written`, "0")
}

func TestDryRun_HoldsProtectedRowsOfEveryKindOfDefinition(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE pu (id uuid PRIMARY KEY); CREATE TABLE pc (a int, b text, PRIMARY KEY (b, a)); CREATE TABLE pi (id bigint PRIMARY KEY);
		INSERT INTO pu VALUES ('0198f000-0000-7000-8000-000000000001'); INSERT INTO pc VALUES (1, 'x'), (2, 'x'); INSERT INTO pi VALUES (1), (2);
		CREATE TABLE cu (id bigint PRIMARY KEY, p uuid); INSERT INTO cu SELECT 1, id FROM pu;
		CREATE TABLE cc (id bigint PRIMARY KEY, a int, b text); INSERT INTO cc SELECT a, a, b FROM pc; CREATE INDEX ON cc (a, b);
		CREATE TABLE ck (id bigint PRIMARY KEY, kind text, p bigint, n int DEFAULT 1); INSERT INTO ck SELECT id, 'K', id FROM pi; CREATE INDEX ON ck (p);
		CREATE TABLE users (id bigint PRIMARY KEY, cu bigint REFERENCES cu ON DELETE CASCADE, cc bigint REFERENCES cc ON DELETE CASCADE,
			ck bigint REFERENCES ck ON DELETE CASCADE);
		INSERT INTO users VALUES (1, 1, NULL, NULL), (2, NULL, 1, NULL), (3, NULL, NULL, 1), (4, NULL, NULL, 2);
		UPDATE ck SET kind = 'other' WHERE id = 2;
		INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by) SELECT 'user', id, 'r', 'ann' FROM users`)
	track(e, "pu")
	track(e, "pc", "b", "a")
	track(e, "pi")
	e.Exec("main", `DELETE FROM pu; DELETE FROM pc; DELETE FROM pi`)
	s := e.Service(`
cu: [{table: pu, column: p, on_delete: async_delete}]
cc: [{table: pc, column: [a, b], key: [a, b], on_delete: async_delete}]
ck: [{table: pi, column: p, on_delete: async_delete, conditions: [{column: kind, value: K}, {column: n, value: "01"}]}]`)
	for _, dry := range []bool{true, false} {
		r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: dry}))(t)
		assert.That(t, r.Counts["processed_records"] == 2 && r.Counts["rescheduled_records"] == 3, "dry run %t: %v %s %s", dry, r.Counts, r.Reason, r.Error)
	}
}

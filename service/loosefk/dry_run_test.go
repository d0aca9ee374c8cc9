package loosefk_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// definitions are a dry run's, in words.
func definitions(r service.Run) string {
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

// newEveryAction has children for every action, in two databases, of parents that are due, of one recorded twice, of
// one that is not due, and of one alive.
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
	servicetest.WantState(t, dry, repo.RunSucceeded)
	e.WantSame("main", main, "c", "n", "maintenance.leases")
	e.WantSame("ci", ci, "c", "u", "maintenance.leases")
	assert.That(t, !dry.OverLimit && dry.LeaseEpoch == 0 && dry.Reason == "" && dry.DryRun, "%+v", dry)
	const want = "c.p_id -> p async_delete 55, n.p_id -> o async_nullify 12, n.p_id -> p async_nullify 15, u.p_id -> p update_column_to 40"
	got := definitions(dry)
	assert.That(t, got == want, "definitions %s\nwant %s", got, want)
	kept, err := e.Service(everyAction).Run(t.Context(), dry.ID)
	assert.That(t, err == nil && definitions(kept) == want && kept.DryRun && fmt.Sprint(kept.Counts) == fmt.Sprint(dry.Counts),
		"%+v, %v", kept, err)

	done := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, done, repo.RunSucceeded)
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
	s := e.Service(cAndD, servicetest.With(func(c *loosefk.Config) { c.MaxDeletes = 10 }))
	if r := servicetest.DryRun(t, s); definitions(r) != "c.p_id -> p async_delete 100000, d.p_id -> p async_delete 1" || r.OverLimit {
		t.Errorf("definitions %s, over_limit %t", definitions(r), r.OverLimit)
	}
	e.Exec("main", `INSERT INTO c (p_id) VALUES (7)`)
	r := servicetest.DryRun(t, s)
	servicetest.WantState(t, r, repo.RunSucceeded)
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
		servicetest.Batches(10, 0), servicetest.With(func(c *loosefk.Config) { c.MaxRuntime = time.Second }))
	r := servicetest.DryRun(t, s)
	servicetest.WantState(t, r, repo.RunSucceeded)
	assert.That(t, r.OverLimit && strings.Contains(r.Reason, "max_runtime") && strings.Contains(r.Reason, "c.p_id -> p"),
		"over_limit %t, reason %q", r.OverLimit, r.Reason)
	for _, d := range r.Definitions {
		assert.That(t, d.Table != "c" || d.AtLeast && d.Rows != 0 && d.Rows < 100, "%+v, want a part of the rows", d)
	}
}

func TestDryRun_SaysWhatWouldFail(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 2)
	e.Exec("main", `CREATE TABLE d (x bigint)`)
	before := e.State("main", "c")
	r := servicetest.DryRun(t, e.Service(cAndD))
	servicetest.WantFailed(t, r, "d.p_id -> p on main: 42703 undefined_column, 2 records")
	got := definitions(r)
	assert.That(t, strings.Contains(got, "c.p_id -> p async_delete 6"), "definitions %s", got)
	e.WantSame("main", before, "c")
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
	servicetest.WantFailed(t, r, "c.p_id -> p on main: unreachable (25006 read_only_sql_transaction), 1 records")
	got := definitions(r)
	assert.That(t, got == "c.p_id -> p async_delete 0, d.p_id -> p async_delete 1", "definitions %s", got)
	e.Want("main", `SELECT count(*) FROM written`, "0")
}

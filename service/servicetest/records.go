package servicetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
)

// OneChild is the definition of most tests: rows of c refer to rows of p.
const OneChild = "c:\n  - {table: p, column: p_id, on_delete: async_delete}\n"

// NewOneChild is a main with an empty table c.
func NewOneChild(t *testing.T) *Estate {
	t.Helper()
	return New(t, Small, "main").OneChild()
}

// OneChild makes it on an estate.
func (e *Estate) OneChild() *Estate {
	e.T.Helper()
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	return e
}

// NewDeletedParents is a main with the children of parents 1 to n, three each, which have been deleted.
func NewDeletedParents(t *testing.T, n int) *Estate {
	t.Helper()
	return New(t, Small, "main").DeletedParents(n)
}

// DeletedParents makes them on an estate.
func (e *Estate) DeletedParents(n int) *Estate {
	e.T.Helper()
	e.OneChild()
	e.Exec("main", `INSERT INTO c (p_id) SELECT i % $1 + 1 FROM generate_series(1, 3 * $1) i`, n)
	e.Deleted("main", "p", 1, n)
	return e
}

// Deleted records the keys first to last as deleted rows of a parent in the application schema.
func (e *Estate) Deleted(database, parent string, first, last int) {
	e.T.Helper()
	e.Exec(database, `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value)
		SELECT 'public.' || $1, i FROM generate_series($2::bigint, $3) i`, parent, first, last)
}

// Batches limits a run: records of a batch, rows deleted.
func Batches(size int, maxDeletes int64) func(*service.Config) {
	return func(c *service.Config) {
		w := service.Settings[lfk.Config](c)
		w.BatchSize, w.MaxDeletes = size, maxDeletes
	}
}

// Goal sets the target duration of a statement.
func Goal(d time.Duration) func(*service.Config) {
	return func(c *service.Config) { service.Settings[lfk.Config](c).StatementGoal = d }
}

// Patient lets statements take their time, so that their sizes do not depend on the machine's speed.
func Patient(c *service.Config) { Goal(time.Minute)(c) }

// WantQueue fails the test unless the records' keys are these, in their order.
func (e *Estate) WantQueue(database, keys string) {
	e.T.Helper()
	e.Want(database, `SELECT coalesce(string_agg(primary_key_value::text, ' ' ORDER BY primary_key_value), '') FROM loose_foreign_keys_deleted_records`, keys)
}

// MainLease is the lease of loose_foreign_keys_cleanup on main.
const MainLease = LooseForeignKeys + "/main"

// ForeignLease is a lease row of another program.
func (e *Estate) ForeignLease(database, name, expires string) {
	e.T.Helper()
	e.Exec(database, `INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at)
		VALUES ($1, 'somebody', 7, now(), now(), now() + $2::text::interval)`, name, expires)
}

// WantLease fails the test unless the row of main's lease in a database has this epoch and is held, or free.
func (e *Estate) WantLease(database string, epoch int64, held bool) {
	e.T.Helper()
	var gotEpoch int64
	var gotHeld bool
	err := e.SQL[database].QueryRow(context.Background(), `SELECT epoch, expires_at > clock_timestamp() FROM maintenance.leases WHERE name = $1`,
		MainLease).Scan(&gotEpoch, &gotHeld)
	if err != nil {
		e.T.Fatal(err)
	}
	if gotEpoch != epoch || gotHeld != held {
		e.T.Errorf("lease in %s: epoch %d, held %t; want %d, %t", database, gotEpoch, gotHeld, epoch, held)
	}
}

// State is all of a database that a run of the worker may change, with the version of every row.
func (e *Estate) State(database string, tables ...string) string {
	e.T.Helper()
	var all strings.Builder
	for _, table := range append(tables, "loose_foreign_keys_deleted_records", "maintenance.dead_records", "maintenance.record_failures") {
		rows := e.Value(database, `SELECT string_agg(concat_ws(' ', x::text, x.tableoid, x.ctid, x.xmin), '; '
			ORDER BY x.tableoid, x.ctid) FROM `+table+` x`)
		fmt.Fprintf(&all, "%s: %s\n", table, rows)
	}
	return all.String()
}

// WantSame fails the test unless state is what it was.
func (e *Estate) WantSame(database, before string, tables ...string) {
	e.T.Helper()
	if after := e.State(database, tables...); after != before {
		e.T.Errorf("%s has changed\nfrom %s\nto %s", database, before, after)
	}
}

// Mine makes every change of rows of a table of main that meet a condition on OLD fail with this SQLSTATE. Sequence tried
// counts the tries: no rollback takes that back.
func (e *Estate) Mine(table, condition, sqlstate string) {
	e.T.Helper()
	e.Exec("main", `CREATE SEQUENCE IF NOT EXISTS tried MINVALUE 0 START 0; SELECT nextval('tried')`)
	e.Exec("main", `CREATE FUNCTION explode_`+table+`() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM nextval('tried'); RAISE EXCEPTION 'secret of %', OLD.p_id USING ERRCODE = '`+sqlstate+`'; END $$`)
	e.Exec("main", `CREATE TRIGGER mine BEFORE DELETE OR UPDATE ON `+table+` FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION explode_`+table+`()`)
}

// Keys are the loose foreign keys of an estate.
func (e *Estate) Keys(definitions string) admin.Admin {
	e.T.Helper()
	keys := admin.Admin{Databases: e.Open}
	if definitions != "" {
		keys.Definitions = Definitions(e.T, definitions)
	}
	return keys
}

// Install makes queues in all databases, and tracks tables: "table" or "table column".
func (e *Estate) Install(tables ...string) {
	e.T.Helper()
	keys := e.Keys("")
	if _, err := keys.Install(context.Background()); err != nil {
		e.T.Fatal(err)
	}
	for _, t := range tables {
		table, column, _ := strings.Cut(t, " ")
		if _, err := keys.Track(context.Background(), table, column); err != nil {
			e.T.Fatal(err)
		}
	}
	e.Reroute()
}

// NewHalfway is a run that has removed the first 4 of 10 records and stands before the others.
func NewHalfway(t *testing.T) (*Estate, *service.Service, run.Run, string) {
	t.Helper()
	e := New(t, Small, "main")
	s, r, before := e.Halfway()
	return e, s, r, before
}

// Halfway makes it on an estate.
func (e *Estate) Halfway() (*service.Service, run.Run, string) {
	e.T.Helper()
	e.DeletedParents(10)
	e.Gate("main", "c", "OLD.p_id > 4")
	e.Shut("main", App)
	s := e.Service(OneChild, Batches(2, 0))
	r := Begin(e.T, s, "main")
	e.Eventually("main", `SELECT min(primary_key_value) FROM loose_foreign_keys_deleted_records`, "5")
	e.AtGate("main", App)
	return s, r, e.State("main", "c")
}

// WantHalf fails the test unless the run was stopped for this reason and has left everything else as it was.
func (e *Estate) WantHalf(r run.Run, reason, before string) {
	e.T.Helper()
	WantState(e.T, r, control.RunCancelled)
	// A pause reports whose it is, a cancellation whose if that is known.
	if r.Reason != reason || (r.Error != "") != (reason == "PAUSED") && reason != "CANCELLED" || !strings.HasPrefix(r.Error, "cancelled by ") && !strings.HasPrefix(r.Error, "all workers are paused by ") && !strings.HasPrefix(r.Error, r.Worker+" is paused by ") && r.Error != "" || r.OverLimit {
		e.T.Errorf("reason %q, error %q, over_limit %t", r.Reason, r.Error, r.OverLimit)
	}
	WantCounts(e.T, r, "processed_records=4 deleted_rows=12")
	e.WantSame("main", before, "c")
	e.WantLease("main", r.LeaseEpoch, false)
}

// Route lets the trigger of a table write to the queues of some owners. "user" names them by the column
// user_id, "user:author_id" by author_id.
func (e *Estate) Route(database, table string, owners ...string) {
	e.T.Helper()
	e.Exec(database, `DROP TRIGGER IF EXISTS `+table+`_loose_fk_trigger ON `+table+`;
		CREATE TRIGGER `+table+`_loose_fk_trigger AFTER DELETE ON `+table+` REFERENCING OLD TABLE AS old_table
		FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records('`+routes(owners...)+`')`)
}

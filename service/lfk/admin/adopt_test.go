package admin_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// newAdoptable is a main with a real foreign key of c to p, and an empty definitions file.
func newAdoptable(t *testing.T) (*servicetest.Estate, string) {
	t.Helper()
	e := servicetest.New(t, "", "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY);
		CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint CONSTRAINT fk REFERENCES p ON DELETE CASCADE); CREATE INDEX ON c (p_id)`)
	e.Install()
	return e, servicetest.Save(t, "")
}

// at is the state of the file now, as a command reads it.
func at(t *testing.T, e *servicetest.Estate, file string) admin.Admin {
	t.Helper()
	d := assert.Must(lfk.LoadDefinitions(file))(t)
	return admin.Admin{Databases: e.Open, Definitions: d}
}

var ofC = admin.AdoptRequest{Table: "c", Columns: []string{"p_id"}, Holder: "test"}

// adopted adopts a foreign key by as many commands as it takes.
func adopted(t *testing.T, e *servicetest.Estate, file string, of admin.AdoptRequest) {
	t.Helper()
	for {
		a := assert.Must(at(t, e, file).PlanAdoption(t.Context(), of))(t)
		if a.Dropped() {
			return
		}
		ready := a.Ready()
		assert.NoError(t, a.Prepare(t.Context()))
		if ready {
			assert.NoError(t, a.Drop(t.Context()))
		}
	}
}

// TestAdopt_RowsHaveSomebodyWhoCleansThemAtAnyTime: parents come and go meanwhile, with their children.
func TestAdopt_RowsHaveSomebodyWhoCleansThemAtAnyTime(t *testing.T) {
	e, file := newAdoptable(servicetest.Parallel(t))
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for n := range 3 {
		conn := e.Connect("main")
		wait.Go(func() {
			for i := n; ; i += 3 {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := conn.Exec(t.Context(), fmt.Sprintf(`WITH p AS (INSERT INTO p VALUES (%d) RETURNING id)
					INSERT INTO c (p_id) SELECT id FROM p, generate_series(1, 3)`, i)); err != nil {
					t.Error(err)
				}
				if _, err := conn.Exec(t.Context(), `DELETE FROM p WHERE id = $1 AND id % 4 > 0`, i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	e.Eventually("main", `SELECT count(*) > 20 FROM p`, "true")
	adopted(t, e, file, ofC)
	seen := e.Value("main", `SELECT max(id) FROM p`)
	e.Eventually("main", `SELECT max(id) > `+seen+` + 200 FROM p`, "true")
	close(stop)
	wait.Wait()
	s := e.Service(servicetest.OneChild)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	e.Want("main", `SELECT count(*) FROM c WHERE p_id NOT IN (SELECT id FROM p)`, "0")
	e.Want("main", `SELECT count(*) = 3 * (SELECT count(*) FROM p) FROM c`, "true")
	a := assert.Must(at(t, e, file).PlanReversion(t.Context(), ofC))(t)
	assert.NoError(t, a.Restore(t.Context()))
	// Interrupted here, another command goes on.
	a = assert.Must(at(t, e, file).PlanReversion(t.Context(), ofC))(t)
	assert.Must(a.Finish(t.Context()))(t)
	left := at(t, e, file).Definitions.Keys
	assert.That(t, len(left) == 0, "%+v", left)
	e.Want("main", `SELECT convalidated FROM pg_constraint WHERE conname = 'fk'`, "true")
}

// TestAdopt_AServerThatDoesNotKnowTheDefinitionLeavesTheRecords of the parent to one that does.
func TestAdopt_AServerThatDoesNotKnowTheDefinitionLeavesTheRecords(t *testing.T) {
	e, file := newAdoptable(servicetest.Parallel(t))
	e.Exec("main", `CREATE TABLE d (p_id bigint); CREATE INDEX ON d (p_id)`)
	old := e.Service("d:\n  - {table: p, column: p_id, on_delete: async_delete}\n")
	adopted(t, e, file, ofC)
	e.Exec("main", `INSERT INTO p VALUES (1); INSERT INTO c (p_id) VALUES (1); DELETE FROM p`)
	r := servicetest.RunBatch(t, old, "main")
	servicetest.WantState(t, r, control.RunSucceeded)
	const left = "are skipped, because this server's definitions file has no definitions of the adopted foreign keys "
	assert.Contains(t, r.Reason, "records "+left, "c.p_id: add the definitions to the file and send SIGHUP to the "+
		"server, or run `caretaker lfk revert`")
	detail := servicetest.StatusOf(t, old, servicetest.LooseForeignKeys).ConditionDetail
	assert.Contains(t, detail, "records on main "+left)
	assert.That(t, strings.Count(detail, left) == 1, "detail %q, want that it says once that records are left", detail)
	e.WantQueue("main", "1")
	servicetest.WantRun(t, servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main"), "succeeded", "processed_records=1 deleted_rows=1")
}

// TestAdopt_OnlyADefinitionThatDoesTheSameStandsForTheKey: a run with another one leaves the records.
func TestAdopt_OnlyADefinitionThatDoesTheSameStandsForTheKey(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (x int, "y,""(z" int, PRIMARY KEY (x, "y,""(z"));
		CREATE TABLE c (a int, b int, kind text, CONSTRAINT fk FOREIGN KEY (a, b) REFERENCES p ON DELETE CASCADE); CREATE INDEX ON c (a, b);
		INSERT INTO p VALUES (1, 2); INSERT INTO c VALUES (1, 2)`)
	e.Install()
	file := servicetest.Save(t, "")
	of := admin.AdoptRequest{Table: "c", Columns: []string{"b", "a"}, Holder: "test"}
	adopted(t, e, file, of)
	e.Want("main", `SELECT count(*) FROM pg_constraint WHERE conname = 'fk'`, "0")
	e.Exec("main", `DELETE FROM p`)
	const entry = "c:\n  - table: p\n    on_delete: async_delete\n    "
	for _, other := range []string{
		"column: [a, b]\n    key: ['y,\"(z', x]\n", "column: [b, a]\n",
		"column: [a, b]\n    conditions: [{column: kind, value: A}]\n",
	} {
		servicetest.WantState(t, servicetest.RunBatch(t, e.Service(entry+other), "main"), control.RunSucceeded)
		e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "1")
		if a, err := at(t, e, servicetest.Save(t, entry+other)).PlanAdoption(t.Context(), of); err == nil || a.Ready() {
			t.Errorf("%s: %v", other, err)
		}
	}
	same := entry + "column: [b, a]\n    key: ['y,\"(z', x]\n"
	if a, err := at(t, e, servicetest.Save(t, same)).PlanAdoption(t.Context(), of); err != nil || !a.Ready() {
		t.Error(err)
	}
	servicetest.WantRun(t, servicetest.RunBatch(t, e.Service(same), "main"), "succeeded", "processed_records=1 deleted_rows=1")
}

// TestAdopt_WaitsForARunAndForLocks: it tries again, and nothing is dropped before. The file, which the server reads by
// its group, keeps its owner.
func TestAdopt_WaitsForARunAndForLocks(t *testing.T) {
	e, file := newAdoptable(servicetest.Parallel(t))
	root := os.Getuid() == 0 // only root may give files to others
	if root {
		assert.NoError(t, os.Chown(file, 7, 8))
	}
	a, err := at(t, e, file).PlanAdoption(t.Context(), ofC)
	if err == nil {
		err = a.Prepare(t.Context())
	}
	assert.NoError(t, err)
	is, ok := assert.Must(os.Stat(file))(t).Sys().(*syscall.Stat_t)
	assert.That(t, !root || ok && is.Uid == 7 && is.Gid == 8, "the file is of %+v", is)
	assert.Equal(t, len(at(t, e, file).Definitions.Keys), 1)
	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	other := e.Connect("main")
	assert.Must(other.Exec(t.Context(), `BEGIN; LOCK TABLE p IN ROW EXCLUSIVE MODE`))(t)
	if a, err = at(t, e, file).PlanAdoption(t.Context(), ofC); err != nil || !a.Ready() {
		t.Fatal(err)
	}
	dropped := make(chan error, 1)
	go func() { dropped <- a.Drop(t.Context()) }()
	e.Want("main", `SELECT count(*) FROM pg_constraint WHERE conname = 'fk'`, "1")
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	e.Eventually("main", `SELECT count(*) > 0 FROM pg_locks WHERE relation = 'p'::regclass AND NOT granted`, "true")
	e.Want("main", `SELECT count(*) FROM maintenance.adopted_foreign_keys`, "0")
	assert.Must(other.Exec(t.Context(), `COMMIT`))(t)
	assert.NoError(t, <-dropped)
	e.Want("main", `SELECT count(*) || ' ' || (SELECT count(*) FROM maintenance.adopted_foreign_keys) FROM pg_constraint WHERE conname = 'fk'`, "0 1")
}

// TestAdopt_RefusesTablesThatSeveralDatabasesHave: each may have keys of its own. Lint warns of what is tracked so.
func TestAdopt_RefusesTablesThatSeveralDatabasesHave(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "east")
	for _, d := range []string{"main", "east"} {
		e.Exec(d, `CREATE TABLE p (id bigint PRIMARY KEY);
			CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint CONSTRAINT fk REFERENCES p ON DELETE CASCADE); CREATE INDEX ON c (p_id)`)
	}
	e.Install()
	admin := at(t, e, servicetest.Save(t, ""))
	admin.Only = "east"
	_, err := admin.PlanAdoption(t.Context(), ofC)
	assert.Require(t, err != nil, "adopted")
	assert.Contains(t, err.Error(), "east: p is in main, east, and c is in main, east, so a deletion in one "+
		"database would delete children")
	keys := e.Keys(servicetest.OneChild)
	const beside = "warning fk_beside_definition "
	tracked := []string{beside + "main fk on public.c", beside + "east fk on public.c", "warning key_in_several_databases  c.p_id -> p", "error trigger_missing main public.p"}
	for _, d := range []string{"east", "main"} {
		keys.Only = d
		assert.Must(keys.Track(t.Context(), "p"))(t)
		keys.Only = ""
		servicetest.WantFindings(t, keys, tracked...)
		tracked = tracked[:3]
	}
	// With a queue of GitLab's that is no finding.
	e.Exec("east", `DELETE FROM maintenance.queue_partitions; ALTER TABLE loose_foreign_keys_deleted_records DROP key_values`)
	servicetest.WantFindings(t, keys, tracked[:2]...)
	e.Exec("main", `DROP TABLE c`)
	if _, err := admin.PlanAdoption(t.Context(), ofC); err != nil {
		t.Error(err)
	}
}

func TestInstall_ReportsEachDatabase(t *testing.T) {
	ctx := context.Background()
	e := servicetest.New(t, "", "main", "ci")
	own := servicetest.New(t, servicetest.Small, "sec")
	main := e.Open[0]
	e.Open = append(e.Open, own.Open...)
	keys := e.Keys("")
	keys.Only = "ci"
	if done, err := keys.Install(ctx); err != nil || !reflect.DeepEqual(done, []admin.Installed{{Database: "ci", Result: "installed"}}) {
		t.Errorf("got %v, %v", done, err)
	}
	keys.Only = ""
	want := []admin.Installed{{Database: "main", Result: "installed"}, {Database: "ci", Result: "managed by caretaker"}, {Database: "sec", Result: "managed by GitLab, nothing changed"}}
	done := assert.Must(keys.Install(ctx))(t)
	assert.That(t, reflect.DeepEqual(done, want), "got %v", done)
	// One that is down does not stop the others.
	e.Exec("main", `DROP TABLE loose_foreign_keys_deleted_records`)
	e.Open = e.Open[1:]
	e.AddDown()
	e.Open = append(e.Open, main)
	if done, err := e.Keys("").Install(ctx); !errors.Is(err, dberr.ErrUnreachable) || len(done) != 3 || done[2] != want[0] {
		t.Errorf("got %v, %v", done, err)
	}
}

func TestTrack_AsksForTheDatabaseOnlyIfThereIsAChoice(t *testing.T) {
	ctx := context.Background()
	e := servicetest.New(t, "", "main", "ci")
	e.Install()
	e.Exec("main", "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE here (id int PRIMARY KEY)")
	e.Exec("ci", "CREATE TABLE p (id int PRIMARY KEY); CREATE VIEW seen AS SELECT 1 AS id")
	keys := e.Keys("")
	_, err := keys.Track(ctx, "p", "")
	servicetest.WantError(t, err, "p exists in main, ci: select a database with --database")
	_, err = keys.Track(ctx, "nowhere", "")
	servicetest.WantError(t, err, "unknown table nowhere in main, ci")
	_, err = keys.Track(ctx, "seen", "")
	servicetest.WantError(t, err, "ci: public.seen is a view")
	e.Exec("main", `CREATE TABLE "Customers" (id int); CREATE SCHEMA sales; CREATE TABLE sales.customers (id int)`)
	e.Exec("ci", `CREATE SCHEMA sales; CREATE TABLE sales.customers (id int)`)
	_, err = keys.Track(ctx, "customers", "")
	servicetest.WantError(t, err, "unknown table customers in main, ci: did you mean Customers or sales.customers?")
	if tracked, err := keys.Track(ctx, "here", ""); err != nil || tracked.Database != "main" || tracked.Table != "public.here" {
		t.Errorf("got %+v, %v", tracked, err)
	}
	keys.Only = "ci"
	if tracked, err := keys.Track(ctx, "p", ""); err != nil || tracked.Database != "ci" {
		t.Errorf("got %+v, %v", tracked, err)
	}
	_, err = keys.Track(ctx, "here", "")
	servicetest.WantError(t, err, "unknown table here in ci")
	e.Want("main", "SELECT count(*) FROM pg_trigger WHERE tgname = 'p_loose_fk_trigger'", "0")

	// With one of the databases down it is unknown whether a choice exists.
	e.AddDown()
	if _, err := e.Keys("").Track(ctx, "here", ""); !errors.Is(err, dberr.ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}

func TestUntrack_NamesDefinitionsThatAreNoLongerFed(t *testing.T) {
	ctx := context.Background()
	const definitions = `
c:
  - {table: p, column: p_id, on_delete: async_delete}
  - {table: q, column: q_id, on_delete: async_delete}
d: [{table: p, column: p_id, on_delete: async_nullify}]
`
	e := servicetest.New(t, "", "main", "ci")
	e.Exec("main", `CREATE TABLE p (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part); CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1);
		CREATE TABLE c (p_id int, q_id int); CREATE TABLE d (p_id int); CREATE INDEX ON c (p_id); INSERT INTO p VALUES (1, 1), (2, 1); INSERT INTO c VALUES (1, 1), (2, 1)`)
	e.Install("p")
	e.Exec("main", "DELETE FROM p WHERE id = 1")
	keys := e.Keys(definitions)
	done, err := keys.Untrack(ctx, "p_1")
	assert.That(t, err == nil && len(done) == 1 && done[0].Table == "public.p_1" && len(done[0].Unfed) == 0, "got %+v, %v", done, err)
	done, err = keys.Untrack(ctx, "p")
	if err != nil || len(done) != 1 || done[0].Database != "main" || !reflect.DeepEqual(done[0].Unfed, []string{"c.p_id -> p", "d.p_id -> p"}) {
		t.Errorf("got %+v, %v", done, err)
	}
	_, err = keys.Untrack(ctx, "p")
	servicetest.WantError(t, err, "main: public.p is not tracked", "ci: unknown table p")

	// Pending records are still cleaned.
	e.Exec("main", "DELETE FROM p WHERE id = 2")
	servicetest.WantRun(t, servicetest.RunBatch(t, e.Service(definitions), "main"), "succeeded", "processed_records=1 deleted_rows=1")
	e.Want("main", "SELECT string_agg(p_id::text, ',') FROM c", "2")
}

func TestDeadAndRetry_WorkOnAllDatabases(t *testing.T) {
	ctx := context.Background()
	e := servicetest.New(t, "", "main", "ci")
	e.Install()
	const bury = `INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
		SELECT 'public.' || t, 7, 'c.p_id -> p', 'P0001', 'no', 10, now() FROM unnest($1::text[]) t`
	e.Exec("main", bury, []string{"p", "q", "p"})
	e.Exec("ci", bury, []string{"p"})
	keys := e.Keys("")
	list := func(table string) (got string) {
		err := keys.Dead(ctx, table, func(r admin.DeadRecord) error {
			got += strings.Join([]string{r.Database, r.Table}, ":") + " "
			return nil
		})
		assert.That(t, err == nil, "%v", err)
		return got
	}
	assert.Equal(t, list(""), "main:public.p main:public.q main:public.p ci:public.p ")
	assert.Equal(t, list("q"), "main:public.q ")
	var pages []string
	for after := ""; ; {
		page, unread, err := keys.Records(ctx, admin.RecordFilter{State: admin.RecordDead, After: after, Limit: 2})
		assert.That(t, err == nil && unread == nil, "%v, unread %v", err, unread)
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			after, pages = r.Cursor, append(pages, r.Database+":"+r.ID)
		}
		pages = append(pages, "|")
	}
	assert.Equal(t, strings.Join(pages, " "), "main:1 main:2 | main:3 ci:1 |", "pages of the records")
	one, three, nine := int64(1), int64(3), int64(9)
	for _, c := range []struct {
		id    *int64
		table string
		want  []admin.Retried
		err   string
	}{
		{&one, "", nil, "dead record 1 exists in main, ci: select a database with --database"},
		{&nine, "", nil, "unknown dead record 9"},
		{nil, "r", nil, "unknown table r in main, ci"},
		{&three, "", []admin.Retried{{Database: "main", Records: 1}}, ""},
		{nil, "p", []admin.Retried{{Database: "main", Records: 1}, {Database: "ci", Records: 1}}, ""},
		{nil, "", []admin.Retried{{Database: "main", Records: 1}}, ""},
		{nil, "", nil, "no dead record matches"},
	} {
		done, err := keys.Retry(ctx, c.id, c.table)
		assert.That(t, (err != nil) == (c.err != "") && (len(done)+len(c.want) == 0 || reflect.DeepEqual(done, c.want)),
			"%v %q: got %+v, %v, want %+v", c.id, c.table, done, err, c.want)
		if c.err != "" {
			servicetest.WantError(t, err, c.err)
		}
	}
	e.Want("main", "SELECT string_agg(fully_qualified_table_name, ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records", "public.p public.p public.q")
}

package loosefk_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/loosefk"
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
func at(t *testing.T, e *servicetest.Estate, file string) loosefk.Admin {
	t.Helper()
	d := assert.Must(loosefk.LoadDefinitions(file))(t)
	return loosefk.Admin{Databases: e.Open, Definitions: d}
}

var ofC = loosefk.AdoptRequest{Table: "c", Columns: []string{"p_id"}, Holder: "test"}

// adopted adopts a foreign key by as many commands as it takes.
func adopted(t *testing.T, e *servicetest.Estate, file string, of loosefk.AdoptRequest) {
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
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
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
	servicetest.WantState(t, r, repo.RunSucceeded)
	const left = "are left, the definitions of this server lack the adopted foreign keys "
	assert.Contains(t, r.Reason, "records "+left, "c.p_id: add them to its file and send SIGHUP to it, or run caretaker lfk revert")
	detail := servicetest.StatusOf(t, old, servicetest.LooseForeignKeys).ConditionDetail
	assert.Contains(t, detail, "records on main "+left)
	assert.That(t, strings.Count(detail, left) == 1, "detail %q, want that it says once that records are left", detail)
	e.WantQueue("main", "1")
	wantRun(t, e.Service(servicetest.OneChild), "processed_records=1 deleted_rows=1")
}

// TestAdopt_OnlyADefinitionThatDoesTheSameStandsForTheKey: a run with another one leaves the records.
func TestAdopt_OnlyADefinitionThatDoesTheSameStandsForTheKey(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (x int, "y,""(z" int, PRIMARY KEY (x, "y,""(z"));
		CREATE TABLE c (a int, b int, kind text, CONSTRAINT fk FOREIGN KEY (a, b) REFERENCES p ON DELETE CASCADE); CREATE INDEX ON c (a, b);
		INSERT INTO p VALUES (1, 2); INSERT INTO c VALUES (1, 2)`)
	e.Install()
	file := servicetest.Save(t, "")
	of := loosefk.AdoptRequest{Table: "c", Columns: []string{"b", "a"}, Holder: "test"}
	adopted(t, e, file, of)
	e.Want("main", `SELECT count(*) FROM pg_constraint WHERE conname = 'fk'`, "0")
	e.Exec("main", `DELETE FROM p`)
	const entry = "c:\n  - table: p\n    on_delete: async_delete\n    "
	for _, other := range []string{
		"column: [a, b]\n    key: ['y,\"(z', x]\n", "column: [b, a]\n",
		"column: [a, b]\n    conditions: [{column: kind, value: A}]\n",
	} {
		servicetest.WantState(t, servicetest.RunBatch(t, e.Service(entry+other), "main"), repo.RunSucceeded)
		e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "1")
		if a, err := at(t, e, servicetest.Save(t, entry+other)).PlanAdoption(t.Context(), of); err == nil || a.Ready() {
			t.Errorf("%s: %v", other, err)
		}
	}
	same := entry + "column: [b, a]\n    key: ['y,\"(z', x]\n"
	if a, err := at(t, e, servicetest.Save(t, same)).PlanAdoption(t.Context(), of); err != nil || !a.Ready() {
		t.Error(err)
	}
	wantRun(t, e.Service(same), "processed_records=1 deleted_rows=1")
}

// TestAdopt_WaitsForARunAndForLocks: it tries again, and nothing is dropped before.
func TestAdopt_WaitsForARunAndForLocks(t *testing.T) {
	e, file := newAdoptable(servicetest.Parallel(t))
	a, err := at(t, e, file).PlanAdoption(t.Context(), ofC)
	if err == nil {
		err = a.Prepare(t.Context())
	}
	assert.NoError(t, err)
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
	assert.Contains(t, err.Error(), "east: p is in main, east, and c in main, east: a deletion in one of them would be carried out in all")
	keys := e.Keys(servicetest.OneChild)
	const beside = "warning fk_beside_definition "
	tracked := []string{beside + "main fk on public.c", beside + "east fk on public.c", "warning key_in_several_databases  c.p_id -> p", "error trigger_missing main public.p"}
	for _, d := range []string{"east", "main"} {
		keys.Only = d
		assert.Must(keys.Track(t.Context(), "p"))(t)
		keys.Only = ""
		wantFindings(t, keys, tracked...)
		tracked = tracked[:3]
	}
	// With a queue of GitLab's that is no finding.
	e.Exec("east", `DELETE FROM maintenance.queue_partitions; ALTER TABLE loose_foreign_keys_deleted_records DROP key_values`)
	wantFindings(t, keys, tracked[:2]...)
	e.Exec("main", `DROP TABLE c`)
	if _, err := admin.PlanAdoption(t.Context(), ofC); err != nil {
		t.Error(err)
	}
}

// TestAdopt_TheFileKeepsItsOwner: the server reads it by its group.
func TestAdopt_TheFileKeepsItsOwner(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may give files to others")
	}
	e, file := newAdoptable(t)
	assert.NoError(t, os.Chown(file, 7, 8))
	a, err := at(t, e, file).PlanAdoption(t.Context(), ofC)
	if err == nil {
		err = a.Prepare(t.Context())
	}
	info, statErr := os.Stat(file)
	assert.Require(t, err == nil && statErr == nil, "%v %v", err, statErr)
	is, ok := info.Sys().(*syscall.Stat_t)
	assert.That(t, ok && is.Uid == 7 && is.Gid == 8 && len(at(t, e, file).Definitions.Keys) == 1, "the file is of %d:%d", is.Uid, is.Gid)
}

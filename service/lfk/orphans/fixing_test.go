package orphans_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/orphans"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// byHand is a search that writes records, of c, which refers to p by the keys 1 to n, none of which is there.
func byHand(e *servicetest.Estate, n int) *orphans.Search {
	e.T.Helper()
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY)`)
	e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, $1::int)`, n)
	e.Install("p")
	keys := e.Keys(servicetest.OneChild)
	fix := &orphans.Repair{Main: keys.Databases[0], Holder: "somebody"}
	return &orphans.Search{
		Audit: orphans.Audit{Databases: keys.Databases, Keys: keys.Definitions.Keys}, Limit: 1_000_000, Fix: fix,
	}
}

// searched runs a search until no other test's transactions keep it from writing.
func searched(t *testing.T, search *orphans.Search) orphans.Found {
	t.Helper()
	for {
		found, err := search.Run(t.Context())
		assert.Require(t, err == nil && len(found) == 1, "%+v, %v", found, err)
		if !strings.Contains(found[0].Fault, "older transactions are open") {
			return found[0]
		}
	}
}

// The kill switch, and a pause of either worker.
func aPauseHoldsItsWriting(e *servicetest.Estate) {
	search := byHand(e, 3)
	s := e.Service(servicetest.OneChild)
	for _, worker := range []string{fault.AllWorkers, orphans.Name, servicetest.LooseForeignKeys} {
		servicetest.Pause(e.T, s, worker)
		_, err := search.Run(e.T.Context())
		_, paused := errors.AsType[*fault.WorkerPausedError](err)
		assert.That(e.T, paused && strings.Contains(err.Error(), "caretaker resume"), "%s: %v", worker, err)
		assert.That(e.T, search.Fix.WithPermit(e.T.Context(), search.Databases[0], func(fencing.Permit) error { return nil }) != nil,
			"%s: a record may be written", worker)
		servicetest.Resume(e.T, s, worker)
	}
	e.WantQueue("main", "")
	found := searched(e.T, search)
	assert.That(e.T, found.Queued == 3 && found.Fault == "", "%+v", found)
}

// A search for orphans may find none for minutes.
func aLeaseThatRanOutIsTakenAgain(e *servicetest.Estate) {
	search := byHand(e, 3)
	nothing := func(fencing.Permit) error { return nil }
	assert.NoError(e.T, search.Fix.WithPermit(e.T.Context(), search.Databases[0], nothing))
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now() - interval '1 s'`)
	found := searched(e.T, search)
	assert.That(e.T, found.Queued == 3 && found.Fault == "", "%+v", found)
	e.WantQueue("main", "1 2 3")
}

// They may be those that it has written itself.
func tooManyWaitingRecordsEndIt(e *servicetest.Estate) {
	search := byHand(e, 2500)
	e.Deleted("main", "p", 10_001, 19_900)
	found := searched(e.T, search)
	got := fmt.Sprint(found.Queued, found.More, found.AtLeast)
	assert.Require(e.T, got == "1000 true true" &&
		strings.Contains(found.Fault, "more than 10,000 pending records"), "%+v", found)
	search.Fix.End(e.T.Context())
	// The worker keeps its place, and does not fail.
	r := audited(e.T, e.Service(servicetest.OneChild, fixing(1000, 1000)))
	assert.That(e.T, r.State == control.RunSucceeded && r.OverLimit && strings.Contains(r.Reason, "more than 10,000 pending records"), "%+v", r)
	e.Want("main", `SELECT count(*) FROM maintenance.orphan_audits WHERE NOT done`, "1")
	e.Exec("main", `DELETE FROM c WHERE p_id <= 1000; DELETE FROM loose_foreign_keys_deleted_records`)
	found = searched(e.T, search)
	assert.That(e.T, found.Fault == "" && !found.More, "%+v", found)
	e.Want("main", `SELECT min(primary_key_value) || ' ' || count(*) FROM loose_foreign_keys_deleted_records`, "1001 1500")
}

// A parent may have come into another database than the one with the queue.
func everyHomeIsAskedAgainBeforeARecordIsWritten(e *servicetest.Estate) {
	e.Exec("ci", childOf1And2)
	e.Install()
	homes(e, map[string]string{"main": "bigint", "sec": "bigint"})
	search := looking(e, servicetest.OneChild)
	tasks, err := search.Tasks(e.T.Context())
	assert.Require(e.T, err == nil && len(tasks) == 1, "%+v, %v", tasks, err)
	page, err := tasks[0].Scan(e.T.Context(), lfk.Key{}, 10, 10)
	assert.Require(e.T, err == nil && len(page.Orphans) == 2, "%+v, %v", page, err)
	e.Exec("sec", `INSERT INTO p VALUES (1)`)
	fix := &orphans.Repair{Main: search.Databases[0], Holder: "somebody"}
	defer fix.End(context.WithoutCancel(e.T.Context()))
	for late := true; late; {
		_, late, err = tasks[0].Record(e.T.Context(), page, func(do func(fencing.Permit) error) error {
			return fix.WithPermit(e.T.Context(), tasks[0].QueueDatabase(), do)
		})
		assert.NoError(e.T, err)
	}
	e.WantQueue("main", "2")
}

// looking is a search that writes nothing.
func looking(e *servicetest.Estate, definitions string) *orphans.Search {
	e.T.Helper()
	keys := e.Keys(definitions)
	return &orphans.Search{
		Audit: orphans.Audit{Databases: keys.Databases, Keys: keys.Definitions.Keys}, Limit: 1000,
	}
}

func isOfTheSelectedDefinitions(e *servicetest.Estate) {
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE q (id bigint PRIMARY KEY); ALTER TABLE c ADD type text;
		INSERT INTO c (p_id, type) VALUES (5, 'P'), (1, 'Q'), (7, 'P')`)
	search := looking(e, `
c:
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: type, value: P}]}
  - {table: q, column: p_id, on_delete: async_delete, conditions: [{column: type, value: Q}]}
`)
	search.Which = func(task *orphans.Task) bool { return task.Key.Parent == "p" }
	found := assert.Must(search.Run(e.T.Context()))(e.T)
	assert.That(e.T, len(found) == 1 && found[0].Keys == 2, "%+v", found)
	search.Which = func(*orphans.Task) bool { return false }
	_, err := search.Run(e.T.Context())
	if !errors.Is(err, orphans.ErrNoTask) || !strings.Contains(err.Error(), "choose from c.p_id -> p if type = P "+
		"on main, c.p_id -> q") {
		e.T.Errorf("%v", err)
	}
}

// In another order each step would read them all.
func keysAreWalkedInTheOrderOfAnIndex(e *servicetest.Estate) {
	e.Exec("main", `CREATE TABLE k (m int, n int, PRIMARY KEY (m, n)); CREATE TABLE d (x int, y int, type text); CREATE INDEX ON d (y, x);
		INSERT INTO d VALUES (1, 2, 'D')`)
	const columns = "d: [{table: k, column: [x, y], key: [m, n], on_delete: async_delete, conditions: [{column: type, value: D}]}]"
	const turned = "d: [{table: k, column: [y, x], key: [n, m], on_delete: async_delete}]"
	wants := func(definitions, fault string) {
		e.T.Helper()
		found, err := looking(e, definitions).Run(e.T.Context())
		assert.That(e.T, err == nil && len(found) == 1 && strings.HasPrefix(found[0].Fault, fault) && (fault == "") == (found[0].Keys == 1),
			"%+v, %v; want %q", found, err, fault)
	}
	wants(columns, "the search for orphans of d requires an index on (x, y), in this order")
	wants(turned, "")
	e.Exec("main", `CREATE INDEX ON d (type, x, y)`)
	wants(columns, "")
}

// Records are written in that of the first.
func homesThatRecordInTwoFormsAreNotFixed(e *servicetest.Estate) {
	e.Exec("ci", childOf1And2)
	e.Install()
	homes(e, map[string]string{"main": "bigint", "sec": "text"})
	search := looking(e, servicetest.OneChild)
	search.Fix = &orphans.Repair{Main: search.Databases[0], Holder: "somebody"}
	found := assert.Must(search.Run(e.T.Context()))(e.T)
	assert.That(e.T, strings.Contains(found[0].Fault, "the key of p is recorded in different forms on main and "+
		"sec"), "%+v", found)
}

// TestSearch_ARenamedParentIsKnownByTheKeyThatItsTriggerRecords: no child of a living parent is an orphan.
func TestSearch_ARenamedParentIsKnownByTheKeyThatItsTriggerRecords(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), ref uuid UNIQUE DEFAULT gen_random_uuid()); INSERT INTO p SELECT FROM generate_series(1, 5);
		CREATE TABLE c (p_ref uuid); CREATE INDEX ON c (p_ref); INSERT INTO c SELECT ref FROM p; INSERT INTO c VALUES (gen_random_uuid())`)
	e.Install()
	assert.Must(e.Keys("").Track(t.Context(), "p", "ref"))(t)
	e.Exec("main", `ALTER TABLE p RENAME TO q`)
	const definition = "c: [{table: q, column: p_ref, on_delete: async_delete}]"
	runAll(t, e.Service(definition, fixing(1, 1)), orphans.Name, "")
	r := servicetest.RunBatch(t, e.Service(definition), "main")
	servicetest.WantCounts(t, r, "processed_records=1 deleted_rows=1")
	e.Want("main", `SELECT count(*) FROM c JOIN q ON ref = p_ref`, "5")
}

func rowsOfAPartitionWhoseDetachmentIsPendingAreParents(e *servicetest.Estate) {
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (1) TO (3);
		CREATE TABLE p_2 PARTITION OF p DEFAULT; INSERT INTO p VALUES (1), (2), (3); INSERT INTO c (p_id) VALUES (1), (3), (4)`)
	e.Install("p")
	e.Exec("main", `UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = 'p_1'::regclass`)
	found := assert.Must(looking(e, servicetest.OneChild).Run(e.T.Context()))(e.T)
	assert.That(e.T, found[0].Fault == "" && found[0].Keys == 1, "%+v", found)
}

// lookingNeedsNoMoreThanSELECT on the parents and the children.
func lookingNeedsNoMoreThanSELECT(e *servicetest.Estate) {
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO c (p_id) VALUES (1)`)
	search := looking(e, servicetest.OneChild)
	search.Databases = []*repo.Database{e.As("orphan_reader")}
	for _, table := range []string{"c", "p"} {
		e.Exec("main", `REVOKE ALL ON `+table+` FROM orphan_reader`)
		found := assert.Must(search.Run(e.T.Context()))(e.T)
		assert.That(e.T, strings.Contains(found[0].Fault, "42501 insufficient_privilege (run `caretaker "+
			"doctor`)"), "%+v", found)
		e.Exec("main", `GRANT SELECT ON `+table+` TO orphan_reader`)
	}
	found := assert.Must(search.Run(e.T.Context()))(e.T)
	assert.That(e.T, found[0].Fault == "" && found[0].Keys == 1, "%+v", found)
}

// TestOrphanAudit_AKeyThatTheParentsEncodingCannotHoldIsAnOrphan: no parent can have it, and no record names it.
func TestOrphanAudit_AKeyThatTheParentsEncodingCannotHoldIsAnOrphan(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "")
	latin := servicetest.Migrated("")
	latin.Encoding = "LATIN1"
	e.Add("main", servicetest.Databases.Clone(t, latin))
	e.Add("ci", servicetest.Databases.Clone(t, servicetest.Migrated("")))
	e.Exec("main", `CREATE TABLE p (name text PRIMARY KEY); INSERT INTO p VALUES ('a')`)
	e.Exec("ci", `CREATE TABLE c (p_name text); CREATE INDEX ON c (p_name); INSERT INTO c VALUES ('a'), ('"b"'), ('€1'), ('€2'), ('€3'), ('é')`)
	assert.Must(e.Keys("").Install(t.Context()))(t)
	assert.Must(e.Keys("").Track(t.Context(), "p", "name"))(t)
	const definition = "c: [{table: p, column: p_name, on_delete: async_delete}]"
	runAll(t, e.Service(definition, fixing(1, 1)), orphans.Name, "")
	e.Want("main", `SELECT string_agg(ascii(key_values[1])::text, ' ' ORDER BY key_values) FROM loose_foreign_keys_deleted_records`, `34 233`)
	r := audited(t, e.Service(definition))
	servicetest.WantRun(t, r, control.RunSucceeded, "examined_keys=6 orphaned_keys=3 orphaned_rows=3")
}

package orphans_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk/orphans"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) {
	// Records are written when all older transactions of the cluster have ended. On a cluster of their
	// own these tests do not wait for those of other packages.
	servicetest.Databases.Settings = map[string]string{"synchronous_commit": "off"}
	servicetest.Main(m)
}

func TestContract(t *testing.T) {
	// The definitions are another worker's setting.
	t.Setenv("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", servicetest.Save(t, servicetest.OneChild))
	servicetest.Contract(t, servicetest.Fixture{
		Worker: orphans.Name,
		Schema: "main",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `CREATE TABLE p (id bigserial PRIMARY KEY);
				CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
			e.Install("p")
		},
		Due: func(e *servicetest.Estate, n int) {
			e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, $1::int)`, n)
		},
		Done: servicetest.Change{
			Event: "INSERT", Table: "loose_foreign_keys_deleted_records", Thing: `r ->> 'primary_key_value'`,
		},
		Settings: map[string]string{
			"enabled": "true", "fix": "true", "batch_size": "1", "max_runtime": "2m",
		},
		Limit:  map[string]string{"max_records": "3"},
		Unseen: true,
	})
}

// shop are parents of every kind of key in main, and their children in main and ci.
const shop = `
a:
  - {table: p, column: p_id, on_delete: async_nullify}
b:
  - {table: u, column: u_id, on_delete: async_delete}
c:
  - {table: p, column: p_id, on_delete: async_delete}
d:
  - {table: k, column: [x, y], key: [m, n], on_delete: async_delete}
e:
  - {table: p, column: p_id, on_delete: update_column_to, target_column: state, target_value: gone}
f:
  - {table: p, column: p_id, on_delete: async_delete, conditions: [{column: kind, value: P}]}
`

func newShop(t *testing.T) *servicetest.Estate {
	t.Helper()
	e := servicetest.New(t, "", "main", "ci")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE u (id uuid PRIMARY KEY); CREATE TABLE k (m int, n text, PRIMARY KEY (m, n));
		CREATE TABLE a (id bigserial PRIMARY KEY, p_id int); CREATE INDEX ON a (p_id);
		CREATE TABLE b (id bigserial PRIMARY KEY, u_id uuid); CREATE INDEX ON b (u_id);
		CREATE TABLE d (id bigserial PRIMARY KEY, x int, y text); CREATE INDEX ON d (x, y);
		CREATE TABLE e (id bigserial PRIMARY KEY, p_id bigint, state text); CREATE INDEX ON e (p_id);
		CREATE TABLE f (id bigserial PRIMARY KEY, p_id bigint, kind text); CREATE INDEX ON f (kind, p_id)`)
	e.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Install("p", "u")
	assert.Must(e.Keys("").Track(t.Context(), "k", "m", "n"))(t)
	// Of the keys 1 to 60 a third has a parent.
	e.Exec("main", `INSERT INTO p SELECT i FROM generate_series(1, 60, 3) i; INSERT INTO u SELECT md5(i::text)::uuid FROM generate_series(1, 60, 3) i;
		INSERT INTO k SELECT i, 'n' || i FROM generate_series(1, 60, 3) i;
		INSERT INTO a (p_id) SELECT i % 60 + 1 FROM generate_series(1, 120) i; INSERT INTO a (p_id) VALUES (NULL);
		INSERT INTO b (u_id) SELECT md5((i % 60 + 1)::text)::uuid FROM generate_series(1, 120) i;
		INSERT INTO d (x, y) SELECT i % 60 + 1, 'n' || i % 60 + 1 FROM generate_series(1, 120) i; INSERT INTO d (x, y) VALUES (2, NULL), (1, 'n2');
		INSERT INTO e (p_id, state) SELECT i % 60 + 1, CASE WHEN i % 2 = 0 THEN 'gone' END FROM generate_series(1, 60) i;
		INSERT INTO f (p_id, kind) SELECT i % 60 + 1, CASE WHEN i % 4 = 0 THEN 'P' ELSE 'Q' END FROM generate_series(1, 60) i`)
	e.Exec("ci", `INSERT INTO c (p_id) SELECT i % 60 + 1 FROM generate_series(1, 120) i`)
	return e
}

// runAll runs a worker once more, until no limit stops it.
func runAll(t *testing.T, s *service.Service, worker, database string) (last run.Run) {
	t.Helper()
	for {
		r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: worker, Database: database}))(t)
		servicetest.WantState(t, r, control.RunSucceeded)
		if last = r; !r.OverLimit {
			return last
		}
	}
}

func fixing(size, records int) func(*service.Config) {
	return servicetest.With(func(c *orphans.Config) {
		c.Fix, c.BatchSize, c.MaxRecords = new(true), size, records
	})
}

func TestOrphanAudit_WhatItRecordsIsCleanedAndNothingElse(t *testing.T) {
	e := newShop(servicetest.Parallel(t))
	s := e.Service(shop, fixing(7, 25))
	counted := audited(t, e.Service(shop))
	servicetest.WantState(t, counted, control.RunSucceeded)
	servicetest.WantCounts(t, counted, "examined_keys=316 orphaned_keys=191 orphaned_rows=351")
	e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "0")
	runAll(t, s, orphans.Name, "")
	// 40 keys of p and of u each, 41 of k, where a row (1, n2) refers to no parent.
	e.Want("main", `SELECT string_agg(n::text, ' ' ORDER BY t) FROM (SELECT fully_qualified_table_name AS t, count(*) AS n
		FROM loose_foreign_keys_deleted_records GROUP BY 1) x`, "41 40 40")
	runAll(t, s, orphans.Name, "")
	e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "121")
	runAll(t, s, servicetest.LooseForeignKeys, "main")
	for _, c := range []struct{ database, sql, want string }{
		{"main", `SELECT count(*) FILTER (WHERE p_id IS NULL) || ' ' || count(p_id) FROM a`, "81 40"},
		{"main", `SELECT count(*) || ' ' || count(*) FILTER (WHERE u_id NOT IN (SELECT id FROM u)) FROM b`, "40 0"},
		{"ci", `SELECT count(*) FROM c`, "40"},
		{"main", `SELECT count(*) || ' ' || count(*) FILTER (WHERE y IS NULL) FROM d`, "41 1"},
		{"main", `SELECT count(*) FROM e WHERE state IS DISTINCT FROM 'gone' AND p_id NOT IN (SELECT id FROM p)`, "0"},
		{"main", `SELECT count(*) FROM e WHERE state IS NULL`, "10"},
		{"main", `SELECT count(*) FILTER (WHERE kind = 'Q') || ' ' || count(*) FILTER (WHERE kind = 'P' AND p_id NOT IN (SELECT id FROM p)) FROM f`, "45 0"},
		{"main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "0"},
		{"main", `SELECT count(*) FROM maintenance.orphan_audits`, "0"},
	} {
		e.Want(c.database, c.sql, c.want)
	}
	again := runAll(t, s, orphans.Name, "")
	assert.That(t, again.Counts["orphaned_keys"] == 0, "orphans are left: %v", again.Counts)
}

func TestOrphanAudit_OneChild(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	servicetest.Cases(t, e, map[string]func(*servicetest.Estate){
		"waiting and dead records are no orphans":                     waitingAndDeadRecordsAreNoOrphans,
		"is shown once it ran and looks at all though one fails":      isShownOnceItRanAndLooksAtAllThoughOneFails,
		"walks over all pages":                                        walksOverAllPages,
		"a pause holds its writing":                                   aPauseHoldsItsWriting,
		"a lease that ran out is taken again":                         aLeaseThatRanOutIsTakenAgain,
		"too many waiting records end it":                             tooManyWaitingRecordsEndIt,
		"is of the selected definitions":                              isOfTheSelectedDefinitions,
		"keys are walked in the order of an index":                    keysAreWalkedInTheOrderOfAnIndex,
		"rows of a partition whose detachment is pending are parents": rowsOfAPartitionWhoseDetachmentIsPendingAreParents,
		"looking needs no more than SELECT":                           lookingNeedsNoMoreThanSELECT,
	})
}

func TestOrphanAudit_ThreeDatabases(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci", "sec")
	servicetest.Cases(t, e, map[string]func(*servicetest.Estate){
		"a parent that is not committed yet is not missing":                 aParentThatIsNotCommittedYetIsNotMissing,
		"a parent of another home that is not committed yet is not missing": aParentOfAnotherHomeThatIsNotCommittedYetIsNotMissing,
		"every home is asked again before a record is written":              everyHomeIsAskedAgainBeforeARecordIsWritten,
		"homes that record in two forms are not fixed":                      homesThatRecordInTwoFormsAreNotFixed,
	})
}

// inserting has inserted the parent 1 in a database, and not committed.
func inserting(e *servicetest.Estate, database string) *pgx.Conn {
	e.T.Helper()
	writer := e.Connect(database)
	assert.Must(writer.Exec(e.T.Context(), `BEGIN; INSERT INTO p VALUES (1)`))(e.T)
	return writer
}

// homes makes p, with keys of these types, a parent that is tracked in several databases.
func homes(e *servicetest.Estate, types map[string]string) {
	e.T.Helper()
	for home, key := range types {
		e.Exec(home, `CREATE TABLE p (id `+key+` PRIMARY KEY)`)
		keys := e.Keys("")
		keys.Only = home
		assert.Must(keys.Track(e.T.Context(), "p"))(e.T)
	}
}

// childOf1And2 makes c in ci, whose rows refer to parents 1 and 2.
const childOf1And2 = `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id);
	INSERT INTO c (p_id) VALUES (1), (2)`

// audited runs the audit, whatever comes of the run.
func audited(t *testing.T, s *service.Service) run.Run {
	t.Helper()
	return assert.Must(s.RunBatch(t.Context(), run.Request{Worker: orphans.Name}))(t)
}

// wantLate runs the audit, which has to wait for the writer, and again when that has committed.
func wantLate(e *servicetest.Estate, s *service.Service, writer *pgx.Conn) {
	e.T.Helper()
	r := audited(e.T, s)
	assert.That(e.T, r.State == control.RunSucceeded && r.OverLimit && strings.Contains(r.Reason, "because older transactions are open"), "%+v", r)
	e.WantQueue("main", "")
	assert.Must(writer.Exec(e.T.Context(), `COMMIT`))(e.T)
	runAll(e.T, s, orphans.Name, "")
	e.WantQueue("main", "2")
}

// Its child may be, in another database.
func aParentThatIsNotCommittedYetIsNotMissing(e *servicetest.Estate) {
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY)`)
	e.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
	e.Install("p")
	writer := inserting(e, "main")
	e.Exec("ci", `INSERT INTO c (p_id) VALUES (1), (2)`)
	s := e.Service(servicetest.OneChild, fixing(10, 10))
	wantLate(e, s, writer)
}

// A parent table in several databases: a row is missing only if none has it, nor will have it at a
// commit.
func aParentOfAnotherHomeThatIsNotCommittedYetIsNotMissing(e *servicetest.Estate) {
	e.Exec("ci", childOf1And2)
	s := e.Service(servicetest.OneChild, fixing(10, 10))
	e.Install()
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY)`)
	r := audited(e.T, s)
	assert.That(e.T, r.State == control.RunFailed && strings.Contains(r.Error, "p is not tracked on main"), "%+v", r)
	e.Exec("main", `DROP TABLE p`)
	homes(e, map[string]string{"main": "bigint", "sec": "bigint"})
	writer := inserting(e, "sec")
	wantLate(e, s, writer)
}

func waitingAndDeadRecordsAreNoOrphans(e *servicetest.Estate) {
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO c (p_id) VALUES (1), (2), (3)`)
	e.Install("p")
	e.Deleted("main", "p", 1, 1)
	e.Exec("main", `INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
		VALUES ('public.p', 2, 'c.p_id -> p', 'P0001', 'no', 10, now())`)
	// The reference schema's queue is GitLab's.
	servicetest.WantCounts(e.T, runAll(e.T, e.Service(servicetest.OneChild, fixing(10, 10)), orphans.Name, ""),
		"examined_keys=3 orphaned_keys=1 orphaned_rows=1 queued_records=1")
	e.WantQueue("main", "1 3")
}

func isShownOnceItRanAndLooksAtAllThoughOneFails(e *servicetest.Estate) {
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE b (p_id bigint); INSERT INTO c (p_id) VALUES (1)`)
	s := e.Service("b: [{table: p, column: p_id, on_delete: async_delete}]\n" + servicetest.OneChild)
	all := assert.Must(s.Status(e.T.Context(), ""))(e.T)
	assert.That(e.T, len(all) == len(servicetest.Workers())-1, "%d workers", len(all))
	st := servicetest.StatusOf(e.T, s, orphans.Name)
	assert.That(e.T, st.NotUsed != "", "%+v", st)
	r := audited(e.T, s)
	assert.That(e.T, r.State == control.RunFailed && strings.Contains(r.Error, "b.p_id -> p on main: no index "+
		"covers the keys of b"), "%+v", r)
	servicetest.WantCounts(e.T, r, "examined_keys=1 orphaned_keys=1 orphaned_rows=1")
	if all := assert.Must(s.Status(e.T.Context(), ""))(e.T); all[len(all)-1].Worker != orphans.Name {
		e.T.Errorf("a worker that has run is not shown: %+v", all)
	}
}

// The keys have gaps and several rows each, and NULLs are no keys. Pages without an orphan are no end.
func walksOverAllPages(e *servicetest.Estate) {
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY)`)
	e.Install("p")
	ways := map[string]*service.Service{
		"counted":  e.Service(servicetest.OneChild, servicetest.With(func(c *orphans.Config) { c.BatchSize = 3 })),
		"recorded": e.Service(servicetest.OneChild, fixing(3, 1000)), "recorded one by one": e.Service(servicetest.OneChild, fixing(3, 1)),
	}
	for _, n := range servicetest.PageEdges(3) {
		for parents, there := range map[string]string{"none": "false", "those of a page": "i <= 3", "every second": "i % 2 = 0"} {
			e.Exec("main", `TRUNCATE c; TRUNCATE p`)
			e.Exec("main", fmt.Sprintf(`INSERT INTO c (p_id) SELECT 7 * i FROM generate_series(1, %d) i, generate_series(1, 2); INSERT INTO c (p_id) VALUES (NULL);
				INSERT INTO p SELECT 7 * i FROM generate_series(1, %[1]d) i WHERE %s`, n, there))
			orphans := e.Value("main", `SELECT count(DISTINCT p_id) FROM c WHERE p_id NOT IN (SELECT id FROM p)`)
			for how, s := range ways {
				e.Exec("main", `DELETE FROM loose_foreign_keys_deleted_records`)
				var examined, found, queued int64
				for more := true; more; {
					r := audited(e.T, s)
					servicetest.WantState(e.T, r, control.RunSucceeded)
					examined, found, queued = examined+r.Counts["examined_keys"], found+r.Counts["orphaned_keys"], queued+r.Counts["queued_records"]
					more = r.OverLimit
				}
				want := fmt.Sprintf("%d %s %s", n, orphans, orphans)
				if how == "counted" {
					want = fmt.Sprintf("%d %s 0", n, orphans)
				}
				got := fmt.Sprintf("%d %d %d", examined, found, queued)
				assert.That(e.T, got == want, "%d keys, parents there: %s, %s: examined, orphaned, queued %s, want %s", n, parents, how, got, want)
			}
		}
	}
}

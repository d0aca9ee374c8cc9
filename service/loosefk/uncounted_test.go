package loosefk_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// fewStatements says whether the statements on the child were few, some of them for shares of the first
// batches, and some did not count first.
const fewStatements = `SELECT sum(calls) <= 16 AND sum(calls) FILTER (WHERE query !~ 'counted AS') >= 2
	FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
	WHERE query ~ 'DELETE FROM "[a-z]+"."c" t'`

func TestLooseForeignKeysCleanup_ShortBatchesShareStatementsThatDoNotCount(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 6000)
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=6000 deleted_rows=18000")
	e.Want("main", fewStatements, "true")
	e.WantQueue("main", "")
}

func TestLooseForeignKeysCleanup_SmallBatchesStaySmall(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 100)
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "main")
	// One for each batch of ten at least: more where statements take long.
	e.Want("main", `SELECT sum(calls) >= 10 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query ~ 'DELETE FROM "[a-z]+"."c" t'`, "true")
}

func TestLooseForeignKeysCleanup_MoreRowsThanExpectedStayWithinTheLimit(t *testing.T) {
	for _, c := range []struct {
		name          string
		limit         int64
		counts, state string
	}{
		{"none", 0, "processed_records=100 deleted_rows=5300", "f"},
		{"in the middle of a key", 1000, "processed_records=99 deleted_rows=1000 incremented_records=1", "t"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewDeletedParents(t, 100)
			e.Exec("main", `INSERT INTO c (p_id) SELECT 100 FROM generate_series(1, 5000)`)
			r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(10, c.limit)), "main")
			servicetest.WantCounts(t, r, c.counts)
			if over := c.state == "t"; r.OverLimit != over {
				t.Errorf("over_limit is %t", r.OverLimit)
			}
		})
	}
}

func TestLooseForeignKeysCleanup_RowsThatMayBeKeptAreCounted(t *testing.T) {
	for _, c := range []struct{ name, table, keep string }{
		{"trigger", `CREATE TABLE c (id bigserial, p_id bigint)`, "c"},
		{
			"trigger of a partition", `CREATE TABLE c (id bigserial, p_id bigint) PARTITION BY RANGE (p_id);
			CREATE TABLE c1 PARTITION OF c FOR VALUES FROM (1) TO (90);
			CREATE TABLE c2 PARTITION OF c FOR VALUES FROM (90) TO (101)`, "c2",
		},
		{"trigger of an heir", `CREATE TABLE c (id bigserial, p_id bigint); CREATE TABLE heir () INHERITS (c)`, "heir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := servicetest.New(t, "main", "main")
			e.Exec("main", c.table)
			e.Exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(1, 94) i`)
			if c.keep == "heir" {
				e.Exec("main", `INSERT INTO heir (p_id) SELECT i FROM generate_series(95, 100) i`)
			} else {
				e.Exec("main", `INSERT INTO c (p_id) SELECT i FROM generate_series(95, 100) i`)
			}
			veto(e, c.keep, "OLD.p_id = 99")
			e.Deleted("main", "p", 1, 100)
			r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "main")
			servicetest.WantCounts(t, r, "processed_records=99 deleted_rows=99 rescheduled_records=1")
			e.WantQueue("main", "99")
			e.Want("main", `SELECT p_id FROM c`, "99")
		})
	}
}

func TestLooseForeignKeysCleanup_ASlowStatementThatDoesNotCountIsTriedAgain(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 100)
	// Only a statement that is the first for this row is slow: the next one finds the sequence called.
	e.Exec("main", `CREATE SEQUENCE tries;
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
			IF nextval(''tries'') = 1 THEN PERFORM pg_sleep(0.5); END IF; RETURN NULL; END';
		CREATE TRIGGER slow AFTER DELETE ON c FOR EACH ROW WHEN (OLD.p_id = 100) EXECUTE FUNCTION slow()`)
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=100 deleted_rows=300")
	e.Want("main", `SELECT last_value > 1 FROM tries`, "true")
}

func TestLooseForeignKeysCleanup_LockedRowsOfAStatementThatDoesNotCountArePostponed(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 100)
	e.Hold(`SELECT FROM c WHERE p_id = 95 FOR UPDATE`)
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild, servicetest.Batches(10, 0)), "main")
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "processed_records=99 deleted_rows=297 rescheduled_records=1")
	e.WantQueue("main", "95")
}

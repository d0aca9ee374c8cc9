package neighbours_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/orphanaudit"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const (
	partmanMade = `CREATE SCHEMA partman; CREATE EXTENSION pg_partman SCHEMA partman;`
	// Partitions of ten ids each, from -20 to 29, and one for all other ids.
	partitionedParent = `CREATE TABLE p (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
		SELECT partman.create_parent('public.p', 'id', 'native', '10', p_premake := 2);`
)

func TestNeighbour_ChildrenOfParentsThatPartmanMovesStay(t *testing.T) {
	e := newEstate(t, "pg_partman", plainChild+partmanMade+partitionedParent)
	e.Exec("main", `INSERT INTO p SELECT generate_series(100, 109);`+childrenOfAll+`DELETE FROM p WHERE id < 102`)
	e.Exec("main", `CALL partman.partition_data_proc('public.p', p_wait := 0)`)
	e.Want("main", `SELECT (SELECT count(*) FROM p_default) || ' ' || count(*) FROM p`, "0 8")
	wantRun(e, "processed_records=2 obsolete_records=8 deleted_rows=4")
	wantKeys(e, "102 103 104 105 106 107 108 109")
	// The run has tracked the new partition, too.
	e.Exec("main", `DELETE FROM p_p100 WHERE id = 105`)
	wantRun(e, "processed_records=1 deleted_rows=2")
	wantKeys(e, "102 103 104 106 107 108 109")
}

func TestNeighbour_ParentsInPartitionsThatPartmanMakesOrDrops(t *testing.T) {
	e := newEstate(t, "pg_partman", plainChild+partmanMade+partitionedParent)
	e.Exec("main", `INSERT INTO p SELECT generate_series(1, 29);`+childrenOfAll+`
		UPDATE partman.part_config SET retention = '15', retention_keep_table = false; DELETE FROM p WHERE id = 29`)
	e.Exec("main", `SELECT partman.run_maintenance('public.p')`)
	e.Want("main", `SELECT (to_regclass('p_p0') IS NULL) || ' ' || (to_regclass('p_p40') IS NOT NULL)`, "true true")
	wantRun(e, "processed_records=1 deleted_rows=2")
	e.Exec("main", `INSERT INTO p VALUES (45); INSERT INTO c (p_id) VALUES (45); DELETE FROM p_p40`)
	wantRun(e, "processed_records=1 deleted_rows=1")
	// A dropped partition records nothing: its children are orphans, which the audit finds.
	e.Want("main", `SELECT count(*) || ' ' || (SELECT count(*) FROM c WHERE p_id < 10) FROM loose_foreign_keys_deleted_records`, "0 18")
	s := e.Service(servicetest.OneChild, servicetest.Audited, servicetest.With(func(c *orphanaudit.Config) { c.Fix = new(true) }))
	devdb.Eventually(t, "the audit to queue all orphans", func() bool {
		assert.Must(s.RunBatch(t.Context(), service.RunRequest{Worker: orphanaudit.Name}))(t)
		return e.Value("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`) == "9"
	})
	wantRun(e, "processed_records=9 deleted_rows=18")
	e.Want("main", `SELECT count(*) || ' ' || min(p_id) FROM c`, "38 10")
}

// Rows of a table that others inherit from, and of a partition: the move is committed between the snapshot of the run's
// statement and the statement's first row.
func TestNeighbour_ChildrenThatMoveUnderAStatementAreDeleted(t *testing.T) {
	const (
		data      = `INSERT INTO c SELECT i, 1 + i % 60 FROM generate_series(1, 240) i;`
		inherited = `CREATE TABLE c (id bigint NOT NULL, p_id bigint); CREATE INDEX ON c (p_id);` + data + `
			SELECT partman.create_parent('public.c', 'id', 'partman', '1000', p_premake := 1);`
		partitioned = `CREATE TABLE c (id bigint, p_id bigint) PARTITION BY RANGE (id); CREATE INDEX ON c (p_id);
			SELECT partman.create_parent('public.c', 'id', 'native', '1000', p_premake := 1);` + data
		moves  = `INSERT INTO moved SELECT partman.partition_data_id(''public.c'', p_batch_count := 20)`
		update = `UPDATE c SET id = id + 1000 WHERE id < 1000`
	)
	t.Parallel()
	for name, c := range map[string]struct{ tables, statement, move string }{
		"inherited, by a statement that counts":           {inherited, "counted AS", moves},
		"inherited, by a statement that would not count":  {inherited, "1 / (n", moves},
		"partitioned, by a statement that counts":         {partitioned, "counted AS", update},
		"partitioned, by a statement that does not count": {partitioned, "1 / (n", update},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEstate(t, "pg_partman", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 60);
				CREATE EXTENSION dblink; CREATE TABLE moved (rows bigint);`+partmanMade+c.tables)
			e.Exec("main", `CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF current_query() LIKE '%`+c.statement+`%' THEN
						PERFORM dblink_exec('`+e.URLs["main"]+`', '`+c.move+`');
					END IF; RETURN NULL; END $$;
				CREATE TRIGGER move BEFORE DELETE ON c FOR EACH STATEMENT EXECUTE FUNCTION move(); DELETE FROM p`)
			s := e.Service(servicetest.OneChild, servicetest.Batches(20, 0), servicetest.With(func(c *loosefk.Config) { c.MaxRuntime = devdb.WaitTimeout }))
			servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), "succeeded")
			wantEmptied(e)
			wantKeys(e, "")
		})
	}
}

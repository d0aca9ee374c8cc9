package neighbours_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/orphans"
	"github.com/caretaker-go/caretaker/service/run"
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
	s := e.Service(servicetest.OneChild, servicetest.Audited, servicetest.With(func(c *orphans.Config) { c.Fix = new(true) }))
	devdb.Eventually(t, "the audit to queue all orphans", func() bool {
		assert.Must(s.RunBatch(t.Context(), run.Request{Worker: orphans.Name}))(t)
		return e.Value("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`) == "9"
	})
	wantRun(e, "processed_records=9 deleted_rows=18")
	e.Want("main", `SELECT count(*) || ' ' || min(p_id) FROM c`, "38 10")
}

// Rows of a table that others inherit from, and of a partition. The move is committed between the
// snapshot of the run's statement and the statement's first row.
func TestNeighbour_ChildrenThatMoveUnderAStatementAreDeleted(t *testing.T) {
	const (
		data      = `INSERT INTO c SELECT i, 1 + i % 60 FROM generate_series(1, 240) i;`
		inherited = `CREATE TABLE c (id bigint NOT NULL, p_id bigint); CREATE INDEX ON c (p_id);` + data + `
			SELECT partman.create_parent('public.c', 'id', 'partman', '1000', p_premake := 1);`
		partitioned = `CREATE TABLE c (id bigint, p_id bigint) PARTITION BY RANGE (id); CREATE INDEX ON c (p_id);
			SELECT partman.create_parent('public.c', 'id', 'native', '1000', p_premake := 1);` + data
		moves  = `CALL partman.partition_data_proc(''public.c'', p_wait := 0)`
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
				CREATE EXTENSION dblink;`+partmanMade+c.tables)
			e.Exec("main", `CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF current_query() LIKE '%`+c.statement+`%' THEN
						PERFORM dblink_exec('`+e.URLs["main"]+`', '`+c.move+`');
					END IF; RETURN NULL; END $$;
				CREATE TRIGGER move BEFORE DELETE ON c FOR EACH STATEMENT EXECUTE FUNCTION move(); DELETE FROM p`)
			s := e.Service(servicetest.OneChild, servicetest.Batches(20, 0), servicetest.With(func(c *lfk.Config) { c.MaxRuntime = devdb.WaitTimeout }))
			servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), "succeeded")
			wantEmptied(e)
			wantKeys(e, "")
		})
	}
}

const (
	packed = `CREATE EXTENSION pg_repack; CREATE TABLE p (id bigint PRIMARY KEY);
		INSERT INTO p SELECT generate_series(1, 15);` + plainChild + childrenOfAll
	lockWanted = `EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity USING (pid)
		WHERE application_name = 'pg_repack' AND datname = current_database() AND NOT granted)`
	runEnded = `NOT EXISTS (SELECT FROM maintenance.runs WHERE state = 'running')`
)

// repack starts pg_repack on main. The function waits for its end.
func repack(e *servicetest.Estate, arguments ...string) (wait func()) {
	e.T.Helper()
	u := address(e.T, e.URLs["main"])
	password, _ := u.User.Password()
	program := filepath.Join(e.Value("main", `SELECT setting FROM pg_config() WHERE name = 'BINDIR'`), "pg_repack")
	command := exec.CommandContext(e.T.Context(), program, append(arguments,
		"-h", u.Hostname(), "-p", u.Port(), "-U", u.User.Username(), "-d", servicetest.DatabaseOf(e.URLs["main"]))...)
	command.Env = append(os.Environ(), "PGPASSWORD="+password)
	ended := make(chan error, 1)
	var output servicetest.Buffer
	command.Stdout, command.Stderr = &output, &output
	go func() { ended <- command.Run() }()
	return func() {
		e.T.Helper()
		err := <-ended
		assert.That(e.T, err == nil, "%v: %s", err, &output)
	}
}

// runAtGate begins a run that stops before a child of 5.
func runAtGate(e *servicetest.Estate) (ended func()) {
	e.T.Helper()
	e.Gate("main", "c", "OLD.p_id = 5")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild, servicetest.Batches(4, 0), servicetest.With(func(c *lfk.Config) { c.MaxRuntime = devdb.WaitTimeout }))
	begun := servicetest.Begin(e.T, s, "main")
	e.AtGate("main", servicetest.App)
	return func() { servicetest.Ended(e.T, s, begun.ID) }
}

func TestNeighbour_TablesAreRepackedWhileARunWorks(t *testing.T) {
	t.Parallel()
	const files = `SELECT string_agg(pg_relation_filenode(t.relid)::text, ' ') FROM pg_partition_tree('loose_foreign_keys_deleted_records') t`
	for name, table := range map[string]struct {
		arguments []string
		file      string
	}{
		"parent": {[]string{"--table=p"}, `SELECT pg_relation_filenode('p')`},
		"child":  {[]string{"--table=c"}, `SELECT pg_relation_filenode('c')`},
		"queue":  {[]string{"--parent-table=loose_foreign_keys_deleted_records"}, files},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEstate(t, "pg_repack", packed)
			e.Exec("main", `DELETE FROM p WHERE id <= 8`)
			before := e.Value("main", table.file)
			// pg_repack logs what others change, and waits for older transactions before it copies.
			release := e.Hold(`SELECT`)
			repacked := repack(e, table.arguments...)
			e.Eventually("main", `SELECT count(*) > 0 FROM pg_trigger WHERE tgname = 'repack_trigger'`, "true")
			e.Exec("main", `DELETE FROM p WHERE id <= 10`)
			ended := runAtGate(e)
			release()
			e.Eventually("main", `SELECT `+lockWanted+` OR `+runEnded, "true")
			e.Lift("main", servicetest.App)
			ended()
			repacked()
			assert.That(t, e.Value("main", table.file) != before, "not repacked")
			wantEmptied(e)
			wantKeys(e, "11 12 13 14 15")
			e.Exec("main", `DELETE FROM p WHERE id = 12`)
			wantRun(e, "processed_records=1 deleted_rows=2")
		})
	}
}

// pg_repack cancels, and then terminates, whatever holds a lock on its table for longer than it
// requests to wait.
func TestNeighbour_RepackEndsTheStatementsOfARun(t *testing.T) {
	e := newEstate(t, "pg_repack", packed)
	e.Exec("main", `DELETE FROM p WHERE id <= 10`)
	ended := runAtGate(e)
	repack(e, "--table=c", "--wait-timeout=1")()
	e.Lift("main", servicetest.App)
	ended()
	wantEmptied(e)
	wantKeys(e, "11 12 13 14 15")
}

func TestNeighbour_DeletionsThatPglogicalAppliesAreRecorded(t *testing.T) {
	need(servicetest.Parallel(t), "pglogical")
	const parents = `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE later (id bigint PRIMARY KEY);`
	e, server := newServer(t, map[string]string{
		"shared_preload_libraries": "pglogical", "wal_level": "logical", "track_commit_timestamp": "on", "max_worker_processes": "32",
	}, parents+plainChild+`CREATE TABLE d (later_id bigint); CREATE INDEX ON d (later_id)`)
	e.Install("later")
	provider, subscriber := server.Cluster.URL("other"), e.URLs["main"]
	e.URLs["provider"] = provider
	e.SQL["provider"] = e.Connect("provider")
	// Newer minor releases let only the plugins work that they are told to trust.
	if e.Value("main", `SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'`) == "1" {
		e.Exec("main", `ALTER SYSTEM SET output_plugin_libraries = pgoutput, pglogical_output`)
		e.Exec("main", `SELECT pg_reload_conf()`)
	}
	e.Exec("provider", parents+`CREATE EXTENSION pglogical; INSERT INTO p SELECT generate_series(1, 10)`)
	e.Exec("provider", `SELECT pglogical.create_node('provider', $1)`, provider)
	e.Exec("provider", `SELECT pglogical.replication_set_add_table('default', 'p', true)`)
	keys := e.Keys(servicetest.OneChild + "d: [{table: later, column: later_id, on_delete: async_delete}]")
	wantUntracked := func(want int) {
		t.Helper()
		found := 0
		for _, f := range assert.Must(keys.Lint(t.Context()))(t).Findings {
			if f.Code == "trigger_replication" {
				found++
			}
		}
		assert.Equal(t, found, want)
	}
	e.Exec("main", `CREATE EXTENSION pglogical`)
	wantUntracked(0)
	e.Exec("main", `SELECT pglogical.create_node('subscriber', $1)`, subscriber)
	e.Exec("main", `SELECT pglogical.create_subscription('s', $1)`, provider)
	e.Eventually("main", `SELECT count(*) FROM p`, "10")
	// No catalogue of the subscriber has the tables that the provider adds without a copy.
	e.Exec("provider", `SELECT pglogical.replication_set_add_table('default', 'later')`)
	e.Exec("provider", `INSERT INTO later VALUES (1)`)
	e.Eventually("main", `SELECT count(*) FROM later`, "1")
	e.Exec("main", childrenOfAll+`INSERT INTO d VALUES (1)`)
	wantUntracked(2)
	assert.Must(keys.Track(t.Context(), "p"))(t)
	assert.Must(keys.Track(t.Context(), "later"))(t)
	wantUntracked(0)
	e.Exec("provider", `DELETE FROM p WHERE id < 4; DELETE FROM later`)
	e.Eventually("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "4")
	r := servicetest.RunBatch(t, e.Service(servicetest.OneChild+"d: [{table: later, column: later_id, on_delete: async_delete}]"), "main")
	servicetest.WantCounts(t, r, "processed_records=4 deleted_rows=7")
	wantKeys(e, "4 5 6 7 8 9 10")
}

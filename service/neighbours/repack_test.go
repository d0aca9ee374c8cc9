package neighbours_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

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
	s := e.Service(servicetest.OneChild, servicetest.Batches(4, 0), servicetest.With(func(c *loosefk.Config) { c.MaxRuntime = devdb.WaitTimeout }))
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

// pg_repack cancels, and then terminates, whatever holds a lock on its table for longer than it wants to wait.
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

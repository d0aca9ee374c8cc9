package cli_test

import (
	"context"
	"encoding/json"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/caretaker-go/caretaker/cli"
	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// asProcess holds the command when this test program plays caretaker.
const asProcess = "TEST_AS_CARETAKER"

func TestProcess(*testing.T) {
	if command := os.Getenv(asProcess); command != "" {
		os.Exit(cli.Main(strings.Fields(command)))
	}
}

// process starts a command as a process of its own, which signals can reach.
func (sh *shell) process(command string, more ...string) (*exec.Cmd, *screen) {
	sh.t.Helper()
	c, out := sh.child(context.Background(), command, more...), &screen{}
	c.Stdout, c.Stderr = out, out
	assert.NoError(sh.t, c.Start())
	sh.t.Cleanup(func() { _ = c.Process.Kill() })
	return c, out
}

// child is a process that will run a command until the context ends.
func (sh *shell) child(ctx context.Context, command string, more ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestProcess$")
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.Env = slices.Concat(os.Environ(), sh.environment(), []string{asProcess + "=" + command}, more)
	return c
}

// signal sends a signal.
func signal(t *testing.T, c *exec.Cmd, s os.Signal) {
	t.Helper()
	assert.NoError(t, c.Process.Signal(s))
}

func TestFault_Signals_TermStopsTheServerInOrder(t *testing.T) {
	sh, _ := newPrepared(t)
	sh.set("CARETAKER_METRICS_LISTEN", "")
	server, log := sh.process("serve")
	log.field(t, "serving", "listen")
	signal(t, server, syscall.SIGTERM)
	if err := server.Wait(); err != nil {
		t.Errorf("%v: %s", err, log)
	}
	log.field(t, "stopped", "")
}

func TestFault_Signals_HangupReadsDefinitionsAndTokensAgain(t *testing.T) {
	sh, _ := newPrepared(t)
	definitions, tokens := sh.defined(oneKey), saved(t, "tokens.yml", "- {name: a, role: admin, sha256: "+strings.Repeat("ab", 32)+"}")
	single := saved(t, "token", "one")
	sh.set("CARETAKER_AUTH_TOKENS_FILE", tokens)
	sh.set("CARETAKER_AUTH_TOKEN_FILE", single)
	server, log := sh.process("serve")
	log.field(t, "serving", "listen")
	assert.NoError(t, os.WriteFile(definitions, []byte("c: 1"), 0o600))
	assert.NoError(t, os.WriteFile(tokens, nil, 0o600))
	assert.NoError(t, os.WriteFile(single, []byte(" \n"), 0o600))
	signal(t, server, syscall.SIGHUP)
	assert.Contains(t, log.field(t, "definitions not reloaded", "error"), definitions+":1: c")
	assert.Contains(t, log.field(t, "token file not loaded, previous tokens stay valid", "error"), tokens)
	assert.Contains(t, log.field(t, "token not read, previous token stays valid", "error"), single)
	assert.Lacks(t, log.String(), `"stack"`)
	assert.NoError(t, os.WriteFile(single, []byte("two"), 0o600))
	assert.NoError(t, os.WriteFile(definitions, []byte(oneKey), 0o600))
	signal(t, server, syscall.SIGHUP)
	log.field(t, "token reloaded", "")
	log.field(t, "definitions reloaded", "")
	signal(t, server, syscall.SIGTERM)
	assert.NoError(t, server.Wait())
}

func TestFault_Signals_AClientWhoseServerIsKilledSaysThatTheConnectionWasLost(t *testing.T) {
	sh, sql := newPrepared(t)
	sh.defined(oneKey)
	execute(t, sql, slow)
	sh.set("CARETAKER_METRICS_LISTEN", "")
	sh.set("CARETAKER_SCHEDULER_ENABLED", "false")
	server, log := sh.process("serve")
	address := log.field(t, "serving", "listen")
	run, out := sh.process("run " + worker + " --address " + address)
	eventually(t, "the run starts", out, func() bool { return strings.Contains(out.String(), " started") })
	signal(t, server, os.Kill)
	assert.That(t, run.Wait() != nil && run.ProcessState.ExitCode() == 1, "exit %d", run.ProcessState.ExitCode())
	assert.Contains(t, out.String(), " at "+address+" ended during run ", "caretaker watch ")
	assert.Lacks(t, out.String(), "--tls")
}

func TestFault_Signals_InterruptCancelsTheRunThatIsWaitedFor(t *testing.T) {
	sh, sql := newPrepared(t)
	sh.defined(oneKey)
	execute(t, sql, slow)
	r := sh.serving()
	run, out := sh.process("run " + worker + " --address " + r.address)
	eventually(t, "the run starts", out, func() bool { return strings.Contains(out.String(), " started") })
	signal(t, run, os.Interrupt)
	if err := run.Wait(); err == nil || run.ProcessState.ExitCode() != 1 {
		t.Errorf("got %v, exit %d", err, run.ProcessState.ExitCode())
	}
	assert.Contains(t, out.String(), "cancelling run", "on main cancelled")
}

const serviceName = "maintenance.v1.MaintenanceService"

// wantServing fails the test unless health is so for the whole server and the service. The process is live all the time.
func (n *node) wantServing(want bool, when string) {
	n.t.Helper()
	for _, name := range []string{"", serviceName} {
		assert.That(n.t, n.serving(name) == want,
			"%s: health of %q is SERVING: %t, want %t", when, name, !want, want)
	}
	assert.That(n.t, n.serving("live"), "%s: the process is not live", when)
}

// untilServing waits until health is so, and returns when it was.
func (n *node) untilServing(want bool) time.Time {
	n.t.Helper()
	eventually(n.t, "health changes", n.log, func() bool { return n.serving("") == want })
	n.wantServing(want, "by then")
	return time.Now()
}

func TestFault_Outage_ServerThatStartsBeforeItsDatabaseGoesToWorkWithIt(t *testing.T) {
	t.Parallel()
	there := databases.Clone(t, reference)
	u := assert.Must(url.Parse(there))(t)
	closed := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	home := u.Host
	u.Host = closed.Addr().String()
	_ = closed.Close()
	n := startNode(t, "early", u.String(), "CARETAKER_SCHEDULER_ENABLED=true")
	n.wantServing(false, "without a database")
	st := n.wantCondition(worker, maintenancev1.Condition_CONDITION_FAILING)
	if f := st.GetFailing(); f.GetClass() != maintenancev1.FailureClass_FAILURE_CLASS_UNREACHABLE || f.GetDatabase() != "main" || f.GetSince() == nil {
		t.Errorf("%s", f)
	}

	// It comes without the schema maintenance, which an operator makes later.
	forward(t, u.Host, home)
	s := newShared(t, there)
	var f *maintenancev1.Failing
	eventually(t, "the status says that main is not migrated", n.log, func() bool {
		f = n.status(worker).GetFailing()
		return f.GetClass() == maintenancev1.FailureClass_FAILURE_CLASS_SCHEMA
	})
	assert.Equal(t, f.GetMessage(), "database main is not migrated: run `caretaker migrate`", f)
	n.log.field(t, "database not migrated", "database")
	n.wantServing(false, "without the schema")
	migrated := time.Now()
	s.migrate().exec(gateSQL)
	s.users(1, 3)
	s.children(1, 3)
	t.Logf("ready %s after the migration", n.untilServing(true).Sub(migrated).Round(time.Millisecond))
	s.until(`SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	t.Logf("jobs worked %s after the migration", time.Since(migrated).Round(time.Millisecond))
	n.wantCondition("ghost_user_migration", maintenancev1.Condition_CONDITION_IDLE)
	run := assert.Must(n.clean())(t)
	assert.That(t, run.GetState() == maintenancev1.RunState_RUN_STATE_SUCCEEDED, "%s", run)
	n.end(syscall.SIGTERM)
	n.log.field(t, "stopped", "")
}

func TestFault_Outage_HealthFollowsMainAfterTenSeconds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	config := devdb.Config{Dir: filepath.Join(folder(t), "server")}
	cluster := assert.Must(devdb.Start(ctx, config))(t)
	t.Cleanup(func() { _ = cluster.Stop(ctx) })
	assert.NoError(t, cluster.CreateDatabase(ctx, "main"))
	assert.NoError(t, devdb.LoadSchema(ctx, cluster.URL("main"), "main"))
	s := newShared(t, cluster.URL("main")).migrate()
	s.exec(gateSQL)
	n := startNode(t, "steady", s.url, "CARETAKER_SCHEDULER_ENABLED=true")
	n.wantServing(true, "at the start")
	before := len(n.log.String())

	stopped := time.Now()
	assert.NoError(t, cluster.Stop(ctx))
	n.wantCondition(worker, maintenancev1.Condition_CONDITION_FAILING)
	failing := time.Now()
	_, err := n.clean()
	assert.That(t, status.Code(err) == codes.Unavailable, "a run without main: %v", err)
	kept := n.untilServing(false).Sub(stopped)
	assert.That(t, kept >= 9*time.Second, "not ready %s after main's end", kept)
	if since := n.status(worker).GetFailing().GetSince().AsTime(); since.Before(stopped) || since.After(failing) {
		t.Errorf("failing since %s, main ended at %s", since, stopped)
	}

	cluster = assert.Must(devdb.Start(ctx, config))(t)
	started := time.Now()
	t.Logf("ready %s after main's start", n.untilServing(true).Sub(started).Round(time.Millisecond))
	s.sql = servicetest.Connect(t, s.url)
	s.users(1, 3)
	s.until(`SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	t.Logf("jobs worked %s after main's start", time.Since(started).Round(time.Millisecond))
	n.wantCondition("ghost_user_migration", maintenancev1.Condition_CONDITION_IDLE)
	// River's loops log once a minute each. The calls are those of this test.
	lines, most := map[string]int{}, 3+int(time.Since(stopped)/time.Minute)
	for text := range strings.Lines(n.log.String()[before:]) {
		var line struct{ Msg, Worker, Level, Stack string }
		assert.NoError(t, json.Unmarshal([]byte(text), &line))
		assert.That(t, line.Level == "ERROR" || line.Stack == "", "a stack in %s", text)
		lines[line.Msg+" "+line.Worker]++
	}
	for message, times := range lines {
		assert.That(t, times <= most, "%d lines %q\n%s", times, message, n.log)
	}
	n.end(syscall.SIGTERM)
	n.log.field(t, "stopped", "")
}

func TestFault_Outage_ServerStopsInTimeWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cluster := assert.Must(devdb.Start(ctx, devdb.Config{Ephemeral: true}))(t)
	t.Cleanup(func() { _ = cluster.Stop(ctx) })
	assert.NoError(t, cluster.CreateDatabase(ctx, "main"))
	assert.NoError(t, devdb.LoadSchema(ctx, cluster.URL("main"), "main"))
	s := newShared(t, cluster.URL("main")).migrate()
	s.exec(gateSQL)
	n := startNode(t, "leaving", s.url)
	s.children(1, 3)
	s.begin(n)
	s.users(1, 6)
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'running'`, "4")
	assert.NoError(t, cluster.Stop(ctx))
	began := time.Now()
	n.end(syscall.SIGTERM)
	n.log.field(t, "stopped", "")
	t.Logf("stopped after %s", time.Since(began).Round(time.Millisecond))
}

package cli_test

import (
	"context"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

const serviceName = "maintenance.v1.MaintenanceService"

// wantServing fails the test unless health is so for the whole server and the service. The process is live all the time.
func (n *node) wantServing(want bool, when string) {
	n.t.Helper()
	for _, name := range []string{"", serviceName} {
		if n.serving(name) != want {
			n.t.Errorf("%s: health of %q is SERVING: %t, want %t", when, name, !want, want)
		}
	}
	if !n.serving("live") {
		n.t.Errorf("%s: the process is not live", when)
	}
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
	assert.Equal(t, f.GetMessage(), "database main is not migrated: run caretaker migrate", f)
	n.log.field(t, "database is not migrated: run caretaker migrate", "database")
	n.wantServing(false, "without the schema")
	migrated := time.Now()
	s.migrate().exec(gateSQL)
	s.users(1, 3)
	s.children(1, 3)
	t.Logf("ready %s after the migration", n.untilServing(true).Sub(migrated).Round(time.Millisecond))
	s.until(`SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	t.Logf("jobs worked %s after the migration", time.Since(migrated).Round(time.Millisecond))
	n.wantCondition("ghost_user_migration", maintenancev1.Condition_CONDITION_IDLE)
	if run, err := n.clean(); err != nil || run.GetState() != maintenancev1.RunState_RUN_STATE_SUCCEEDED {
		t.Errorf("%s, %v", run, err)
	}
	n.end(syscall.SIGTERM)
	n.log.field(t, "stopped", "")
}

// maxLines is what a server may say about an outage, whatever its length: each of its parts once, River's loops each
// once a minute.
const maxLines = 40

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
	before := strings.Count(n.log.String(), "\n")

	stopped := time.Now()
	assert.NoError(t, cluster.Stop(ctx))
	n.wantCondition(worker, maintenancev1.Condition_CONDITION_FAILING)
	failing := time.Now()
	if kept := n.untilServing(false).Sub(stopped); kept < 9*time.Second {
		t.Errorf("not ready %s after main's end", kept)
	}
	if since := n.status(worker).GetFailing().GetSince().AsTime(); stopped.Sub(since) > 5*time.Second || since.After(failing) {
		t.Errorf("failing since %s, main ended at %s", since, stopped)
	}

	cluster = assert.Must(devdb.Start(ctx, config))(t)
	started := time.Now()
	t.Logf("ready %s after main's start", n.untilServing(true).Sub(started).Round(time.Millisecond))
	s.connect()
	s.users(1, 3)
	s.until(`SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	t.Logf("jobs worked %s after main's start", time.Since(started).Round(time.Millisecond))
	n.wantCondition("ghost_user_migration", maintenancev1.Condition_CONDITION_IDLE)
	if lines := strings.Count(n.log.String(), "\n") - before; lines > maxLines {
		t.Errorf("%d lines about one outage\n%s", lines, n.log)
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

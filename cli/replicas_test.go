package cli_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	maintenancev1 "github.com/caretaker-go/caretaker/gen/maintenance/v1"
	"github.com/caretaker-go/caretaker/internal/assert"
)

// nodes of these tests by their names.
type nodes map[string]*node

// startNodes starts three of them on one database.
func startNodes(t *testing.T, s *shared) nodes {
	t.Helper()
	all := nodes{}
	for _, name := range []string{"one", "two", "three"} {
		all[name] = startNode(t, name, s.url)
	}
	return all
}

// begin lets a node begin a run that stands at the gate.
func (s *shared) begin(n *node) string {
	s.t.Helper()
	s.shut(n.name)
	id := ""
	eventually(s.t, "a run of "+n.name+" that stands at the gate", n.log, func() bool {
		if id != "" {
			run := assert.Must(n.GetRun(context.Background(), &maintenancev1.GetRunRequest{Id: id}))(s.t)
			if run.GetRun().GetState() == maintenancev1.RunState_RUN_STATE_RUNNING {
				return s.value(waitsAtGate) != "NULL"
			}
		}
		// On a busy machine the time of a run can be over before it comes to the gate.
		answer := assert.Must(n.RunBatch(context.Background(), &maintenancev1.RunBatchRequest{Worker: worker, Async: true}))(s.t)
		id = answer.GetRun().GetId()
		return false
	})
	return id
}

// wantTakenOver waits until a node gets the lease, which another one has not returned. It fails the
// test if that was before the lease expired.
func (s *shared) wantTakenOver(n *node) {
	s.t.Helper()
	s.want(`SELECT extract(epoch FROM expires_at - renewed_at) BETWEEN 0 AND 11 FROM maintenance.leases`, "true")
	expires := s.value(`SELECT expires_at FROM maintenance.leases`)
	eventually(s.t, "the lease is taken over", n.log, func() bool {
		run, err := n.clean()
		if err == nil {
			assert.Equal(s.t, run.GetState(), maintenancev1.RunState_RUN_STATE_SUCCEEDED, "state")
			s.want(`SELECT acquired_at >= '`+expires+`' FROM maintenance.leases`, "true")
			return true
		}
		if status.Code(err) == codes.ResourceExhausted {
			return false // more calls a second than the server takes
		}
		assert.Require(s.t, status.Code(err) == codes.Aborted, "%v\n%s", err, n.log)
		c := n.status(worker).GetCondition()
		if s.value(`SELECT expires_at <= clock_timestamp() FROM maintenance.leases`) == "true" {
			return false // the lease has expired since
		}
		if c != maintenancev1.Condition_CONDITION_RUNNING && c != maintenancev1.Condition_CONDITION_LEASE_HELD_ELSEWHERE &&
			c != maintenancev1.Condition_CONDITION_FAILING {
			s.t.Errorf("condition %s while another node holds the lease", c)
		}
		return false
	})
	s.cleanAll(n)
}

// cleanAll runs loose_foreign_keys_cleanup on a node until no children are left. On a busy machine a run may
// reach its time limit earlier. The fourth such run postpones a record by five minutes, which cleanAll skips.
func (s *shared) cleanAll(n *node) {
	s.t.Helper()
	eventually(s.t, "all children are deleted", n.log, func() bool {
		run, err := n.clean()
		if status.Code(err) == codes.ResourceExhausted {
			return false // more calls a second than the server takes
		}
		assert.Require(s.t, err == nil, "%v\n%s", err, n.log)
		assert.Equal(s.t, run.GetState(), maintenancev1.RunState_RUN_STATE_SUCCEEDED, "state")
		s.exec(`UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1 AND consume_after > now()`)
		return s.value(`SELECT count(*) FROM c`) == "0"
	})
}

// wantOnce fails the test unless every row has been changed once.
func (s *shared) wantOnce(children, users int) {
	s.t.Helper()
	s.want(`SELECT concat_ws(' ', count(*) FILTER (WHERE what = 'c'), count(DISTINCT row) FILTER (WHERE what = 'c'),
		count(*) FILTER (WHERE what <> 'c'), count(DISTINCT row) FILTER (WHERE what <> 'c')) FROM audit`,
		fmt.Sprintf("%[1]d %[1]d %[2]d %[2]d", children, users))
	s.want(`SELECT count(*) FROM maintenance.river_job WHERE state <> 'completed'`, "0")
}

func TestFault_Replicas_ShareJobsAndTakeOverFromTheKilledAndTheStopped(t *testing.T) {
	t.Parallel()
	s := newShared(t, databases.Clone(t, reference)).migrate()
	s.exec(gateSQL)
	all := startNodes(t, s)

	// Shared: each by one, and all take part.
	s.users(1, 300)
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'completed'`, "300")
	s.want(`SELECT count(DISTINCT app) || ' ' || (SELECT max(attempt) FROM maintenance.river_job) FROM audit`, "3 1")

	// Killed: in the middle of a job and of a run.
	s.children(1, 10)
	doomed := all["one"]
	s.begin(doomed)
	s.shut("two", "three")
	s.users(301, 320)
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'running'`, "12")
	doomed.end(syscall.SIGKILL)
	s.attemptsAge()
	s.lift()
	delete(all, "one")
	s.wantTakenOver(all["two"])
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'completed'`, "320")
	s.wantOnce(10, 320)

	// Stopped for longer than any client waits, and back again.
	s.children(11, 20)
	sleeper := all["two"]
	run := s.begin(sleeper)
	s.shut("three")
	s.users(321, 330)
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'running'`, "8")
	signal(t, sleeper.process, syscall.SIGSTOP)
	s.attemptsAge()
	s.lift()
	s.wantTakenOver(all["three"])
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'completed'`, "330")
	signal(t, sleeper.process, syscall.SIGCONT)
	s.until(`SELECT concat_ws(' ', state, reason) FROM maintenance.runs WHERE id = '`+run+`'`, "failed LEASE_LOST")
	s.wantOnce(20, 330)
	sleeper.wantCondition(worker, maintenancev1.Condition_CONDITION_SCHEDULER_OFF)
}

func TestFault_Replicas_CleanStopGivesBackLeaseAndJobsAtOnce(t *testing.T) {
	t.Parallel()
	s := newShared(t, databases.Clone(t, reference)).migrate()
	s.exec(gateSQL)
	all := startNodes(t, s)
	s.children(1, 40)
	leaver := all["one"]
	s.begin(leaver)
	// Its jobs stand at the gate, and more wait than the others can work.
	s.shut("two", "three")
	s.users(1, 60)
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'running'`, "12")
	signal(t, leaver.process, syscall.SIGTERM)
	leaver.log.field(t, "stopping", "")
	s.lift()
	if err := leaver.process.Wait(); err != nil {
		t.Errorf("%v\n%s", err, leaver.log)
	}
	s.cleanAll(all["two"])
	s.want(`SELECT count(*) FROM maintenance.river_job WHERE state = 'running' AND attempted_by[1] LIKE 'one%'`, "0")
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'completed'`, "60")
	s.want(`SELECT max(attempt) FROM maintenance.river_job`, "1")
	s.wantOnce(40, 60)
}

// projectsSQL gives users 1 to 4 a personal project each, whose removal waits at the gate.
const projectsSQL = `
INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
  SELECT i, 'u' || i, 'u' || i, 0, 'active', 15, 1 FROM generate_series(1, 4) i;
INSERT INTO namespaces (id, name, path, type, owner_id, organization_id) SELECT i, 'u' || i, 'u' || i, 'User', i, 1 FROM generate_series(1, 4) i;
INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) SELECT 10 + i, 'p' || i, 'p' || i, 'Project', i, 1 FROM generate_series(1, 4) i;
INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id) SELECT i, 'p', 'p', i, 10 + i, 1 FROM generate_series(1, 4) i;
INSERT INTO project_repositories (project_id, disk_path) SELECT i, '@hashed/' || i FROM generate_series(1, 4) i;
CREATE TRIGGER gate BEFORE DELETE ON project_repositories FOR EACH ROW EXECUTE FUNCTION wait_at_gate()`

func TestFault_Replicas_WaitingJobsAndLeaseAreFreeAtOnceAfterACleanStop(t *testing.T) {
	t.Parallel()
	s := newShared(t, databases.Clone(t, reference)).migrate()
	s.exec(gateSQL)
	s.exec(projectsSQL)
	leaver := startNode(t, "one", s.url)
	s.children(1, 1)
	s.begin(leaver)
	s.queue(1, 4)
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'running'`, "4")
	heir := startNode(t, "two", s.url)
	// The jobs end their slices after the statement in flight, and wait for the other node.
	signal(t, leaver.process, syscall.SIGTERM)
	leaver.log.field(t, "stopping", "")
	s.lift()
	if err := leaver.process.Wait(); err != nil {
		t.Errorf("%v\n%s", err, leaver.log)
	}
	ended := s.value(`SELECT clock_timestamp()`)
	s.cleanAll(heir)
	s.until(`SELECT count(*) FROM maintenance.river_job WHERE state = 'completed'`, "4")
	s.want(`SELECT bool_and(scheduled_at <= timestamptz '`+ended+`' AND attempt = 1) FROM maintenance.river_job`, "true")
	s.want(`SELECT string_agg(DISTINCT app, ' ') FROM audit WHERE what = 'ghost_user_migrations'`, "two")
}

func TestFault_Replicas_HaveTheRolesTheirConfigurationGivesThem(t *testing.T) {
	t.Parallel()
	s := newShared(t, databases.Clone(t, reference)).migrate()
	s.exec(gateSQL)
	const noJobs, schedules = "CARETAKER_JOBS_ENABLED=false", "CARETAKER_SCHEDULER_ENABLED=true"
	api := startNode(t, "api", s.url, noJobs)
	timer := startNode(t, "timer", s.url, noJobs, schedules)
	s.users(1, 5)
	// The two have time to work them until the third one serves.
	jobs := startNode(t, "jobs", s.url)
	s.until(`SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	s.want(`SELECT string_agg(DISTINCT app, ' ') FROM audit`, "jobs")
	for _, n := range []*node{api, jobs} {
		st := n.wantCondition("placeholder_user_cleanup", maintenancev1.Condition_CONDITION_SCHEDULER_OFF)
		assert.That(t, st.GetNextRunAt() == nil && st.GetFailing() == nil, "%s: %s", n.name, st)
	}
	st := timer.wantCondition("placeholder_user_cleanup", maintenancev1.Condition_CONDITION_IDLE)
	assert.That(t, st.GetNextRunAt() != nil, "the scheduler has no next run: %s", st)
	s.children(1, 3)
	eventually(t, "a run of the server without a scheduler, between those of the schedule", api.log, func() bool {
		run, err := api.clean()
		assert.That(t, status.Code(err) == codes.Aborted || err == nil && run.GetState() == maintenancev1.RunState_RUN_STATE_SUCCEEDED, "%s, %v", run, err)
		return err == nil
	})
	for _, n := range []*node{api, timer, jobs} {
		n.end(syscall.SIGTERM)
		n.log.field(t, "stopped", "")
	}
}

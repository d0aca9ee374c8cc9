package service_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestRunBatch(t *testing.T) {
	inTurn(t, servicetest.Small, map[string]func(*servicetest.Estate){
		"SameRequestIDAtOnceStartsOneRunAndNoneIfItIsRefused": runBatchSameRequestIDAtOnceStartsOneRunAndNoneIfItIsRefused,
		"NothingIsDoneForARequestThatIsWrong":                 runBatchNothingIsDoneForARequestThatIsWrong,
		"ARequestIDIsThatOfOneRun":                            runBatchARequestIDIsThatOfOneRun,
		"ARunAtWorkOutlivesItsClientIsJoinedAndNamed":         runBatchARunAtWorkOutlivesItsClientIsJoinedAndNamed,
	})
}

func TestStop(t *testing.T) {
	inTurn(t, servicetest.Small, map[string]func(*servicetest.Estate){
		"Shutdown_StopsRunsAfterTheStatementInFlight":   shutdownStopsRunsAfterTheStatementInFlight,
		"Shutdown_TakesNoNewRunsAndLeavesFiresToOthers": shutdownTakesNoNewRunsAndLeavesFiresToOthers,
		"PauseWorker_StopsTheRunOfWhateverReplica":      pauseWorkerStopsTheRunOfWhateverReplica,
	})
}

// request asks for a run on main under a request id.
func request(s *service.Service, id string, async bool) (run.Run, error) {
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	return s.RunBatch(ctx, run.Request{Worker: servicetest.LooseForeignKeys, Database: "main", RequestID: id, Async: async})
}

func runBatchSameRequestIDAtOnceStartsOneRunAndNoneIfItIsRefused(e *servicetest.Estate) {
	t := e.T
	e.DeletedParents(30)
	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	replicas := []*service.Service{e.Service(servicetest.OneChild), e.Service(servicetest.OneChild)}
	atOnce := func(n int, then func(run.Run, error)) {
		var mu sync.Mutex
		var wait sync.WaitGroup
		for i := range n {
			wait.Go(func() {
				r, err := request(replicas[i%2], "once", i%3 == 0)
				mu.Lock()
				defer mu.Unlock()
				then(r, err)
			})
		}
		wait.Wait()
	}
	// All of them are refused, also those that find the record of another that has not been refused yet.
	atOnce(24, func(_ run.Run, err error) {
		held, ok := errors.AsType[*fault.LeaseHeldError](err)
		assert.That(t, ok && held.Lease.Holder == "somebody", "error %v, want that somebody has the lease", err)
	})
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "0")
	e.Exec("main", `DELETE FROM maintenance.leases`)
	ids := map[string]bool{}
	atOnce(12, func(r run.Run, err error) {
		assert.That(t, err == nil && r.RequestID == "once", "%+v, %v", r, err)
		ids[r.ID] = true
	})
	assert.Equal(t, len(ids), 1, "runs")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	e.Want("main", `SELECT epoch FROM maintenance.leases`, "1")
}

func runBatchNothingIsDoneForARequestThatIsWrong(e *servicetest.Estate) {
	t := e.T
	s, unconfigured := e.Service(servicetest.OneChild), e.Service("")
	_, err := unconfigured.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, RequestID: "once"})
	missing, ok := errors.AsType[*fault.NotConfiguredError](err)
	assert.That(t, ok && strings.Contains(missing.Missing, "definitions"), "error %v", err)
	for what, is := range map[run.Request]error{
		{Worker: "nobody"}: fault.ErrUnknownWorker,
		{Worker: servicetest.LooseForeignKeys, Database: "nowhere"}: fault.ErrUnknownDatabase,
		{Worker: servicetest.LooseForeignKeys, Database: "ci"}:      fault.ErrUnknownDatabase,
	} {
		_, err := s.RunBatch(t.Context(), what)
		isError(t, fmt.Sprintf("%+v", what), err, is)
	}
	_, err = s.RunBatch(t.Context(), run.Request{})
	wantInvalid(t, "no worker", err, "worker")
	_, err = request(s, strings.Repeat("ä", 129), false)
	wantInvalid(t, "a request id of 129 characters", err, "request_id")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "0")
	e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	st := servicetest.WantCondition(t, unconfigured, status.ConditionNotConfigured, "definitions")
	assert.That(t, st.BacklogUnknown, "backlog %+v, want none", st.Backlog)
	assert.Must(request(s, strings.Repeat("ä", 128), false))(t)
}

func runBatchARequestIDIsThatOfOneRun(e *servicetest.Estate) {
	t := e.T
	e.DeletedParents(3)
	e.Add("ci", servicetest.Databases.Clone(t, servicetest.Migrated(servicetest.Small)))
	s := e.Service(servicetest.OneChild)
	first := assert.Must(request(s, "once", false))(t)
	servicetest.WantCounts(t, first, "processed_records=3 deleted_rows=9")
	e.Deleted("main", "p", 1, 1)
	for _, replica := range []*service.Service{s, e.Service(servicetest.OneChild)} {
		for _, async := range []bool{false, true} {
			again := assert.Must(request(replica, "once", async))(t)
			assert.That(t, again.ID == first.ID && again.State == control.RunSucceeded && again.FinishedAt.Equal(first.FinishedAt),
				"%+v, want the first run", again)
		}
	}
	for name, r := range map[string]run.Request{
		"worker":   {Worker: servicetest.GhostUsers},
		"database": {Worker: servicetest.LooseForeignKeys, Database: "ci"},
		"dry run":  {Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: true},
	} {
		r.RequestID = "once"
		_, err := s.RunBatch(context.Background(), r)
		reused, ok := errors.AsType[*fault.RefusedError](err)
		assert.That(t, ok && reused.Reason == "REQUEST_ID_REUSED" && reused.Metadata["run_id"] == first.ID && strings.Contains(err.Error(), first.ID+" of "+servicetest.LooseForeignKeys+" on main"),
			"another %s: %v, want that the id is used for %s", name, err, first.ID)
	}
	again := ran(t, s, run.Request{Worker: servicetest.LooseForeignKeys, RequestID: "once", Async: true})
	assert.Equal(t, again.ID, first.ID, "the run of a request that leaves the database open")
	e.WantQueue("main", "1")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	// The run of a dead process is closed by the first who asks for it.
	const dead = "0197c000-0000-7000-8000-000000000001"
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, request_id, heartbeat_ttl, heartbeat_at)
		VALUES ('`+dead+`', $1, 'main', 'request', 'running', 'twice', '40 s', now() - interval '41 s')`, servicetest.LooseForeignKeys)
	for _, async := range []bool{false, true} {
		r := assert.Must(request(e.Service(servicetest.OneChild), "twice", async))(t)
		assert.Equal(t, r.ID, dead, "the run of a dead process")
		servicetest.WantLost(t, r)
	}
}

func runBatchARunAtWorkOutlivesItsClientIsJoinedAndNamed(e *servicetest.Estate) {
	t := e.T
	e.DeletedParents(3)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild)
	ctx, hangUp := context.WithCancel(context.Background())
	asked := run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"}
	answered := background(func() error {
		first := asked
		first.RequestID, first.RequestedBy = "once", "tester"
		_, err := s.RunBatch(ctx, first)
		return err
	})
	e.AtGate("main", servicetest.App)
	hangUp()
	isError(t, "the client that hung up", <-answered, context.Canceled)
	runs, err := s.Runs(context.Background(), run.Filter{State: control.RunRunning, Limit: 10})
	assert.Require(t, err == nil && len(runs) == 1 && runs[0].RequestedBy == "tester", "%+v, %v, want one at work", runs, err)
	first := runs[0]
	var joined sync.WaitGroup
	for _, replica := range []*service.Service{s, e.Service(servicetest.OneChild)} {
		again, err := request(replica, "once", true)
		assert.That(t, err == nil && again.ID == first.ID && again.State == control.RunRunning, "%+v, %v, want the run at work", again, err)
		_, err = replica.RunBatch(context.Background(), asked)
		held, ok := errors.AsType[*fault.LeaseHeldError](err)
		assert.That(t, ok && held.RunID == first.ID && strings.Contains(err.Error(), "caretaker watch "+first.ID),
			"%v, want that run %s is named", err, first.ID)
		joined.Go(func() {
			again, err := request(replica, "once", false)
			assert.That(t, err == nil && again.ID == first.ID && again.State == control.RunSucceeded && !again.FinishedAt.IsZero(),
				"%+v, %v, want the end of the run", again, err)
		})
	}
	skipped := fired(t, s, servicetest.LooseForeignKeys, minute(25772283))
	assert.That(t, skipped.Reason == "LEASE_HELD" && strings.Contains(skipped.Error, first.ID), "%+v", skipped)
	e.Lift("main", servicetest.App)
	joined.Wait()
	r := servicetest.Ended(t, s, first.ID)
	servicetest.WantRun(t, r, control.RunSucceeded, "processed_records=3 deleted_rows=9")
}

// A database is known by what it has told when it was opened: this one is the test's own.
func TestRunBatch_SecondNameOfADatabaseIsNotWorked(t *testing.T) {
	e := servicetest.NewDeletedParents(servicetest.Parallel(t), 5)
	e.Add("ci", e.URLs["main"])
	repo.MustDiffer(e.Open)
	s := e.Service(servicetest.OneChild)
	const same = "databases.ci.url points to the same database as databases.main.url: remove databases.ci.url"
	for _, dry := range []bool{true, false} {
		r, err := s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "ci", DryRun: dry})
		if dry { // It takes no lease: it begins, and fails.
			assert.That(t, err == nil && r.State == control.RunFailed && strings.Contains(r.Error, same),
				"dry run: state %s, %q, %v", r.State, r.Error, err)
			continue
		}
		database, why := fault.UnreachableDatabase(err)
		assert.That(t, errors.Is(err, fault.ErrUnreachable) && database == "ci" && why == same, "dry run %t: %v", dry, err)
	}
	r := fired(t, s, servicetest.LooseForeignKeys, minute(25772283))
	assert.That(t, r.Database == "ci" && r.State == control.RunFailed && strings.Contains(r.Error, same), "%v", r)
	e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	e.Want("main", `SELECT count(*) FROM c`, "0")
	servicetest.WantCondition(t, s, status.ConditionFailing, same)
}

func shutdownStopsRunsAfterTheStatementInFlight(e *servicetest.Estate) {
	t := e.T
	s, r, before := e.Halfway()
	other := e.Service(servicetest.OneChild)
	// It waits no longer than its context.
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Millisecond, errors.New("enough")) //nolint:gocritic // elapses: the run stands at a gate
	defer cancel()
	servicetest.WantError(t, s.Shutdown(ctx), "enough")
	assert.NoError(t, s.Shutdown(context.Background()))
	// Everything has been recorded and the lease is free when Shutdown returns.
	e.Want("main", `SELECT state FROM maintenance.runs`, "cancelled")
	e.WantHalf(assert.Must(s.Run(context.Background(), r.ID))(t), "SHUTDOWN", before)

	// A client that waits gets the run as it ended.
	result := make(chan run.Run, 1)
	waiting := background(func() error {
		r, err := other.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"})
		result <- r
		return err
	})
	e.AtGate("main", servicetest.App)
	assert.NoError(t, other.Shutdown(context.Background()))
	assert.NoError(t, <-waiting)
	servicetest.WantState(t, <-result, control.RunCancelled)

	e.Lift("main", servicetest.App)
	next := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantRun(t, next, control.RunSucceeded, "processed_records=6 deleted_rows=18")
}

func shutdownTakesNoNewRunsAndLeavesFiresToOthers(e *servicetest.Estate) {
	t := e.T
	e.DeletedParents(3)
	s, other := e.Service(servicetest.OneChild), e.Service(servicetest.OneChild)
	first := assert.Must(request(s, "once", false))(t)
	for range 2 { // the second time it is down already
		assert.NoError(t, s.Shutdown(context.Background()))
	}
	_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main"})
	isError(t, "a request", err, fault.ErrStopping)
	assert.Equal(t, assert.Must(request(s, "once", false))(t).ID, first.ID, "the run of a request that is known")
	fire := time.Now().Truncate(time.Minute)
	if _, ours, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, fire); ours || !errors.Is(err, fault.ErrStopping) {
		t.Errorf("ours %t, error %v, want that the server is stopping", ours, err)
	}
	servicetest.WantState(t, fired(t, other, servicetest.LooseForeignKeys, fire), control.RunSucceeded)
}

func pauseWorkerStopsTheRunOfWhateverReplica(e *servicetest.Estate) {
	t := e.T
	s, r, before := e.Halfway()
	other := e.Service(servicetest.OneChild)
	st := assert.Must(other.PauseWorker(context.Background(), servicetest.LooseForeignKeys, " migration of the disks ", "alice", 0))(t)
	p := st.Paused
	assert.That(t, p != nil && p.Reason == "migration of the disks" && p.By == "alice" && !p.Since.IsZero() && p.Until.IsZero(), "pause %+v", p)
	e.WantHalf(servicetest.Ended(t, s, r.ID), "PAUSED", before)
	servicetest.WantCondition(t, s, status.ConditionPaused, "alice", "migration of the disks")
	_, err := request(s, "once", false)
	paused, ok := errors.AsType[*fault.WorkerPausedError](err)
	assert.That(t, ok && paused.Pause.Reason == "migration of the disks", "error %v, want that it is paused", err)
	skipped := fired(t, s, servicetest.LooseForeignKeys, time.Now().Truncate(time.Minute))
	assert.That(t, skipped.State == control.RunSkipped && strings.HasPrefix(skipped.Reason, "WORKER_PAUSED") && !skipped.FinishedAt.IsZero(),
		"%+v, want a skipped run", skipped)
	e.WantSame("main", before, "c")
	assert.Equal(t, servicetest.Resume(t, s, servicetest.LooseForeignKeys).Paused, nil, "its pause")
	e.Lift("main", servicetest.App)
	servicetest.WantCounts(t, assert.Must(request(s, "once", false))(t), "processed_records=6 deleted_rows=18")
}

// panicking is a log that panics once at a message.
type panicking struct {
	slog.Handler
	message string
	done    *atomic.Bool
}

func (p panicking) Enabled(context.Context, slog.Level) bool { return true }

func (p panicking) WithAttrs([]slog.Attr) slog.Handler { return p }

func (p panicking) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, p.message) && p.done.CompareAndSwap(false, true) {
		panic("secret of the process")
	}
	return nil
}

func TestRunBatch_PanicEndsTheRunNotTheServer(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	for _, message := range []string{"child tables not found, records held", "definition failed"} {
		t.Run(message, func(t *testing.T) {
			e.InTurn(t)
			e.DeletedParents(3)
			e.Exec("main", `CREATE TABLE d (o_id text)`)
			e.Deleted("main", "o", 1, 1)
			panics := &atomic.Bool{}
			s := e.Service(servicetest.OneChild+"d: [{table: o, column: missing, on_delete: async_delete}]\nabsent: [{table: q, column: p_id, on_delete: async_delete}]\n",
				func(c *service.Config) {
					c.Logger = slog.New(panicking{slog.DiscardHandler, message, panics})
				})
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, r, control.RunFailed)
			assert.That(t, panics.Load() && strings.Contains(r.Error, "internal error") && !strings.Contains(r.Error, "secret"),
				"panicked %t, error %q", panics.Load(), r.Error)
			e.WantLease("main", 1, false)
			next := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, next, control.RunFailed)
			assert.That(t, strings.Contains(next.Error, "d.missing -> o on main: 42703 undefined_column, 1 record"), "error %q", next.Error)
			e.WantQueue("main", "1")
		})
	}
}

package service_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// request asks for a run on main under a request id.
func request(s *service.Service, id string, async bool) (service.Run, error) {
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	return s.RunBatch(ctx, service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main", RequestID: id, Async: async})
}

func TestRunBatch_SameRequestIDIsTheFirstRun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	s := e.Service(servicetest.OneChild)
	first := servicetest.Must(request(s, "once", false))(t)
	servicetest.WantCounts(t, first, "processed_records=3 deleted_rows=9")
	e.Deleted("main", "p", 1, 1)
	for _, replica := range []*service.Service{s, e.Service(servicetest.OneChild)} {
		for _, async := range []bool{false, true} {
			again := servicetest.Must(request(replica, "once", async))(t)
			if again.ID != first.ID || again.State != repo.RunSucceeded || !again.FinishedAt.Equal(first.FinishedAt) {
				t.Errorf("%+v, want the first run", again)
			}
		}
	}
	e.WantQueue("main", "1")
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
}

func TestRunBatch_SameRequestIDJoinsTheRunAtWork(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	s, other := e.Service(servicetest.OneChild), e.Service(servicetest.OneChild)
	first := servicetest.Must(request(s, "once", true))(t)
	servicetest.WantState(t, first, repo.RunRunning)
	for _, replica := range []*service.Service{s, other} {
		again, err := request(replica, "once", true)
		if err != nil || again.ID != first.ID || again.State != repo.RunRunning {
			t.Errorf("%+v, %v, want the run at work", again, err)
		}
	}
	var wait sync.WaitGroup
	for _, replica := range []*service.Service{s, other} {
		wait.Go(func() {
			again, err := request(replica, "once", false)
			if err != nil || again.ID != first.ID || again.State != repo.RunSucceeded || again.FinishedAt.IsZero() {
				t.Errorf("%+v, %v, want the end of the run", again, err)
			}
		})
	}
	e.AtGate("main", servicetest.App)
	e.Lift("main", servicetest.App)
	wait.Wait()
}

func TestRunBatch_SameRequestIDAtOnceStartsOneRun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 30)
	replicas := []*service.Service{e.Service(servicetest.OneChild), e.Service(servicetest.OneChild)}
	var mu sync.Mutex
	var ids []string
	var wait sync.WaitGroup
	for i := range 12 {
		wait.Go(func() {
			r, err := request(replicas[i%2], "once", i%3 == 0)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, r.ID)
		})
	}
	wait.Wait()
	if slices.Sort(ids); len(slices.Compact(ids)) != 1 {
		t.Errorf("runs %v, want one", ids)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	e.Want("main", `SELECT epoch FROM maintenance.leases`, "1")
}

func TestRunBatch_RefusedRequestLeavesItsIDFree(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	s, other := e.Service(servicetest.OneChild), e.Service(servicetest.OneChild)
	// All of them are refused, also those that find the record of another that has not been refused yet.
	var wait sync.WaitGroup
	for i := range 24 {
		wait.Go(func() {
			_, err := request([]*service.Service{s, other}[i%2], "once", i%3 == 0)
			wantHeldBy(t, err, "somebody")
		})
	}
	wait.Wait()
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "0")
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	r := servicetest.Must(request(s, "once", false))(t)
	servicetest.WantCounts(t, r, "processed_records=3 deleted_rows=9")
	if r.RequestID != "once" {
		t.Errorf("request id %q", r.RequestID)
	}
}

func wantHeldBy(t *testing.T, err error, holder string) {
	t.Helper()
	var held *service.LeaseHeldError
	if !errors.As(err, &held) || held.Lease.Holder != holder {
		t.Errorf("error %v, want that %s has the lease", err, holder)
	}
}

func TestRunBatch_RequestIDOfADeadProcessIsItsRun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	const id = "0197c000-0000-7000-8000-000000000001"
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, request_id, heartbeat_ttl, heartbeat_at)
		VALUES ('`+id+`', $1, 'main', 'request', 'running', 'once', '40 s', now() - interval '41 s')`, servicetest.LooseForeignKeys)
	for _, async := range []bool{false, true} {
		r := servicetest.Must(request(e.Service(servicetest.OneChild), "once", async))(t)
		if r.ID != id {
			t.Errorf("run %s, want %s", r.ID, id)
		}
		servicetest.WantLost(t, r)
	}
}

func TestRunBatch_ClientThatHangsUpDoesNotStopTheRun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild)
	ctx, hangUp := context.WithCancel(context.Background())
	answered := make(chan error, 1)
	go func() {
		_, err := s.RunBatch(ctx, service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main", RequestedBy: "tester"})
		answered <- err
	}()
	e.AtGate("main", servicetest.App)
	hangUp()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	runs, err := s.Runs(context.Background(), service.RunFilter{State: repo.RunRunning, Limit: 10})
	if err != nil || len(runs) != 1 || runs[0].RequestedBy != "tester" {
		t.Fatalf("%+v, %v, want one at work", runs, err)
	}
	e.Lift("main", servicetest.App)
	r := servicetest.Ended(t, s, runs[0].ID)
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "processed_records=3 deleted_rows=9")
}

func TestRunBatch_SaysWhatIsWrongWithARequest(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	s := e.Service(servicetest.OneChild)
	for _, c := range []struct {
		name    string
		request service.RunRequest
		field   string
		is      error
	}{
		{"no worker", service.RunRequest{}, "worker", nil},
		{"unknown worker", service.RunRequest{Worker: "nobody"}, "", service.ErrUnknownWorker},
		{"unknown database", service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "nowhere"}, "", service.ErrUnknownDatabase},
		{"database that is not configured", service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "ci"}, "", service.ErrUnknownDatabase},
		{"request id of 129 characters", service.RunRequest{Worker: servicetest.LooseForeignKeys, RequestID: strings.Repeat("ä", 129)}, "request_id", nil},
	} {
		_, err := s.RunBatch(context.Background(), c.request)
		var invalid *service.InvalidArgumentError
		if c.field != "" && (!errors.As(err, &invalid) || invalid.Field != c.field) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "0")
	if _, err := request(s, strings.Repeat("ä", 128), false); err != nil {
		t.Error(err)
	}
}

func TestRunBatch_NotConfiguredIsSaidBeforeAnythingIsDone(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	s := e.Service("")
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, RequestID: "once"})
	var unconfigured *service.NotConfiguredError
	if !errors.As(err, &unconfigured) || !strings.Contains(unconfigured.Missing, "definitions") {
		t.Errorf("error %v", err)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "0")
	e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	if st := servicetest.Status(t, s); st.Condition != service.ConditionNotConfigured || !strings.Contains(st.ConditionDetail, "definitions") {
		t.Errorf("condition %s: %s", st.Condition, st.ConditionDetail)
	}
}

func TestRunBatch_DatabaseOfAnEmptyRequestIsThisMinutes(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci", "sec")
	s := e.Service(servicetest.OneChild)
	var now time.Time
	for {
		before := time.Now().Unix() / 60
		r := servicetest.RunBatch(t, s, "")
		if now = time.Now(); now.Unix()/60 != before {
			continue // The minute has changed in between.
		}
		if want := []string{"main", "ci", "sec"}[before%3]; r.Database != want {
			t.Errorf("database %q, want %q", r.Database, want)
		}
		break
	}
	for _, name := range []string{"main", "ci", "sec"} {
		if r := servicetest.RunBatch(t, s, name); r.Database != name {
			t.Errorf("database %q, want %q", r.Database, name)
		}
	}
}

func TestRunBatch_RequestIDOfAnotherRequestIsRefused(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	first := servicetest.Must(request(s, "once", false))(t)
	for name, r := range map[string]service.RunRequest{
		"worker":   {Worker: servicetest.GhostUsers},
		"database": {Worker: servicetest.LooseForeignKeys, Database: "ci"},
		"dry run":  {Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: true},
	} {
		r.RequestID = "once"
		_, err := s.RunBatch(context.Background(), r)
		reused, ok := errors.AsType[*service.RequestReusedError](err)
		if !ok || reused.First.ID != first.ID || !strings.Contains(err.Error(), first.ID+" of "+servicetest.LooseForeignKeys+" on main") {
			t.Errorf("%s: %v, want that the id is used for %s", name, err, first.ID)
		}
	}
	again, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, RequestID: "once", Async: true})
	if err != nil || again.ID != first.ID {
		t.Errorf("%+v, %v, want the first run for a request that leaves the database open", again, err)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
}

func TestRunBatch_NamesTheRunThatHoldsTheLease(t *testing.T) {
	t.Parallel()
	e, s, r, _ := servicetest.NewHalfway(t)
	for _, replica := range []*service.Service{s, e.Service(servicetest.OneChild)} {
		_, err := replica.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
		held, ok := errors.AsType[*service.LeaseHeldError](err)
		if !ok || held.RunID != r.ID || !strings.Contains(err.Error(), "caretaker watch "+r.ID) {
			t.Errorf("%v, want that run %s is named", err, r.ID)
		}
	}
	skipped, ours, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, minute(25772283))
	if err != nil || !ours || skipped.Reason != "LEASE_HELD" || !strings.Contains(skipped.Error, r.ID) {
		t.Errorf("%+v, %t, %v", skipped, ours, err)
	}
	e.Lift("main", servicetest.App)
}

func TestRunBatch_SecondNameOfADatabaseIsNotWorked(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 5)
	e.Add("ci", e.URLs["main"])
	repo.MustDiffer(e.Open)
	s := e.Service(servicetest.OneChild)
	const same = "databases.ci.url is the same database as databases.main.url: leave databases.ci.url out"
	for _, dry := range []bool{true, false} {
		r, err := s.RunBatch(t.Context(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "ci", DryRun: dry})
		if dry { // It takes no lease: it begins, and fails.
			if err != nil || r.State != repo.RunFailed || !strings.Contains(r.Error, same) {
				t.Errorf("dry run: state %s, %q, %v", r.State, r.Error, err)
			}
			continue
		}
		if database, why := run.UnreachableDatabase(err); !errors.Is(err, service.ErrUnreachable) || database != "ci" || why != same {
			t.Errorf("dry run %t: %v", dry, err)
		}
	}
	r, ours, err := s.RunScheduled(t.Context(), servicetest.LooseForeignKeys, time.Unix(25772283*60, 0))
	if err != nil || !ours || r.Database != "ci" || r.State != repo.RunFailed || !strings.Contains(r.Error, same) {
		t.Error(r, ours, err)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	e.Want("main", `SELECT count(*) FROM c`, "0")
	st, err := s.Status(t.Context(), servicetest.LooseForeignKeys)
	if err != nil || st[0].Condition != service.ConditionFailing || !strings.Contains(st[0].ConditionDetail, same) {
		t.Error(st, err)
	}
}

package run_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestRun_IsTheSameOnEveryReplicaAndWatchedUntilItsEnd(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e, s, r, _ := servicetest.NewHalfway(t)
	replicas := []*service.Service{s, e.Service(servicetest.OneChild)}
	devdb.Eventually(t, "the other replica to see the progress", func() bool {
		seen, err := replicas[1].Run(ctx, r.ID)
		assert.Require(t, err == nil && seen.State == control.RunRunning && seen.FinishedAt.IsZero() && seen.LeaseEpoch == 1,
			"%+v, %v, want it at work", seen, err)
		return seen.Counts["processed_records"] == 4
	})
	own, err := s.Run(ctx, r.ID)
	assert.That(t, err == nil && own.Counts["processed_records"] == 4, "%+v, %v, want what has been done so far", own, err)
	// A watch ends with its client, and the run goes on.
	gone := errors.New("the stream is broken")
	broken := s.WatchRun(ctx, r.ID, func(run.Run) error { return gone })
	watched, cancel := context.WithCancelCause(ctx)
	left := s.WatchRun(watched, r.ID, func(run.Run) error { cancel(gone); return nil })
	assert.That(t, errors.Is(broken, gone) && errors.Is(left, gone), "errors %v, %v", broken, left)
	sent := make([][]run.Run, len(replicas))
	var begun, over sync.WaitGroup
	begun.Add(len(replicas))
	for i, replica := range replicas {
		over.Go(func() {
			err := replica.WatchRun(ctx, r.ID, func(run run.Run) error {
				if sent[i] = append(sent[i], run); len(sent[i]) == 1 {
					begun.Done()
				}
				return nil
			})
			assert.That(t, err == nil, "%v", err)
		})
	}
	begun.Wait()
	e.Lift("main", servicetest.App)
	over.Wait()
	for i, runs := range sent {
		servicetest.WantState(t, runs[0], control.RunRunning)
		wantEnd(t, runs[len(runs)-1])
		for i := range runs[1:] {
			assert.That(t, fmt.Sprint(runs[i]) != fmt.Sprint(runs[i+1]), "sent twice: %+v", runs[i])
		}
		seen, err := replicas[i].Run(ctx, r.ID)
		end := servicetest.Ended(t, s, r.ID)
		assert.That(t, err == nil && fmt.Sprint(seen) == fmt.Sprint(end), "%+v, %v\nwant %+v", seen, err, end)
	}
}

// wantEnd fails the test unless a run on ten deleted parents has done everything.
func wantEnd(t *testing.T, end run.Run) {
	t.Helper()
	servicetest.WantRun(t, end, control.RunSucceeded, "processed_records=10 deleted_rows=30")
	want := []jobqueue.TableCount{{Table: "c", Deleted: 30}}
	assert.That(t, slices.Equal(end.Tables, want), "tables %v, want %v", end.Tables, want)
	assert.That(t, !end.FinishedAt.Before(end.StartedAt) && end.Trigger == control.TriggerRequest &&
		end.Database == "main" && end.Worker == servicetest.LooseForeignKeys, "%+v", end)
}

func TestRun_HasAUUIDOfMainsClockAndStaysAsItHasEnded(t *testing.T) {
	s := servicetest.NewDeletedParents(servicetest.Parallel(t), 1).Service(servicetest.OneChild)
	var end run.Run
	for range 20 {
		last := end.ID
		end = servicetest.RunBatch(t, s, "main")
		id := assert.Must(uuid.Parse(end.ID))(t)
		assert.Require(t, id.Version() == 7 && id.Variant() == uuid.RFC4122, "%s is no UUID version 7", end.ID)
		sec, nsec := id.Time().UnixTime()
		d := end.StartedAt.Sub(time.Unix(sec, nsec))
		assert.That(t, d >= -time.Millisecond && d <= time.Minute, "id of %s, run of %s", time.Unix(sec, nsec), end.StartedAt)
		assert.That(t, end.ID > last, "%s after %s", end.ID, last)
	}
	got := assert.Must(s.CancelRun(context.Background(), end.ID, ""))(t)
	assert.That(t, fmt.Sprint(got) == fmt.Sprint(end), "%+v\nwant %+v", got, end)
	for name, call := range map[string]func(id string) error{
		"Run":       func(id string) error { _, err := s.Run(context.Background(), id); return err },
		"CancelRun": func(id string) error { _, err := s.CancelRun(context.Background(), id, ""); return err },
		"WatchRun": func(id string) error {
			return s.WatchRun(context.Background(), id, func(run.Run) error { return errors.New("sent") })
		},
	} {
		for _, id := range []string{uuid.NewString(), "7", "'; SELECT 1", "{0197c000-0000-7000-8000-000000000001}"} {
			err := call(id)
			assert.That(t, errors.Is(err, fault.ErrUnknownRun), "%s(%q): %v", name, id, err)
		}
		invalid, ok := errors.AsType[*fault.InvalidArgumentError](call(""))
		assert.That(t, ok && invalid.Field == "id", "%s without an id: %v", name, invalid)
	}
}

func TestRun_IsFoundByTheBeginningOfItsID(t *testing.T) {
	s := servicetest.NewDeletedParents(servicetest.Parallel(t), 1).Service(servicetest.OneChild)
	first, second := servicetest.RunBatch(t, s, "main").ID, servicetest.RunBatch(t, s, "main").ID
	common := 0
	for first[common] == second[common] {
		common++
	}
	for _, short := range []string{first[:common+1], strings.ToUpper(first[:35]), strings.ReplaceAll(first, "-", "")[:31]} {
		assert.Equal(t, assert.Must(s.Run(t.Context(), short))(t).ID, first)
		assert.Equal(t, assert.Must(s.CancelRun(t.Context(), short, ""))(t).ID, first)
		assert.NoError(t, s.WatchRun(t.Context(), short, func(r run.Run) error {
			assert.Equal(t, r.ID, first)
			return nil
		}))
	}
	_, err := s.Run(t.Context(), first[:4])
	invalid, ok := errors.AsType[*fault.InvalidArgumentError](err)
	assert.Require(t, ok && invalid.Field == "id", "an ambiguous id: %v", err)
	assert.Equal(t, invalid.Description, first[:4]+" matches several runs ("+second+", "+first+"): use more characters")
	for _, unknown := range []string{first[:3], "ffff", "fff-"} {
		_, err := s.Run(t.Context(), unknown)
		assert.That(t, errors.Is(err, fault.ErrUnknownRun), "%s: %v", unknown, err)
	}
}

func TestRuns_ArePagedNewestFirst(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci")
	s := e.Service(servicetest.OneChild)
	var want []string
	for i := range 7 {
		want = append([]string{servicetest.RunBatch(t, s, []string{"main", "ci"}[i%2]).ID}, want...)
	}
	e.Exec("main", `UPDATE maintenance.runs SET state = 'failed' WHERE database = 'ci'`)
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, trigger, state, heartbeat_ttl) VALUES (gen_random_uuid(), 'another', 'request', 'failed', '0')`)
	var got []string
	after := ""
	for {
		page := assert.Must(s.Runs(context.Background(), run.Filter{Worker: servicetest.LooseForeignKeys, After: after, Limit: 3}))(t)
		for _, r := range page {
			got = append(got, r.ID)
		}
		if len(page) < 3 {
			break
		}
		after = page[2].ID
	}
	assert.That(t, slices.Equal(got, want), "runs %v, want %v", got, want)
	for state, n := range map[string]int{"": 8, control.RunSucceeded: 4, control.RunFailed: 4, control.RunRunning: 0} {
		all, err := s.Runs(context.Background(), run.Filter{State: state, Limit: 100})
		assert.That(t, err == nil && len(all) == n, "%d in state %q, %v, want %d", len(all), state, err, n)
	}
	_, err := s.Runs(context.Background(), run.Filter{Worker: "nobody", Limit: 1})
	assert.That(t, errors.Is(err, fault.ErrUnknownWorker), "%v", err)
}

func TestRuns_OfDeadProcessesAreClosedAfterTheirTime(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main")
	s := e.Service(servicetest.OneChild)
	for i, silence := range []string{"39 s", "41 s"} {
		e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, heartbeat_ttl, heartbeat_at)
			VALUES ($1::text::uuid, $2, 'main', 'schedule', 'running', '40 s', now() - $3::text::interval)`,
			fmt.Sprintf("0197c000-0000-7000-8000-%012d", i), servicetest.LooseForeignKeys, silence)
	}
	running, err := s.Runs(context.Background(), run.Filter{State: control.RunRunning, Limit: 10})
	assert.Require(t, err == nil && len(running) == 1, "%+v, %v, want one at work", running, err)
	failed, err := s.Runs(context.Background(), run.Filter{State: control.RunFailed, Limit: 10})
	assert.Require(t, err == nil && len(failed) == 1 && !failed[0].FinishedAt.IsZero(), "%+v, %v, want one failed", failed, err)
	servicetest.WantLost(t, failed[0])

	// A watch reports that a run gives no sign of life, until it is closed.
	const silent = "0197c000-0000-7000-8000-000000000009"
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, heartbeat_ttl)
		VALUES ($1::text::uuid, $2, 'main', 'schedule', 'running', '90 s')`, silent, servicetest.LooseForeignKeys)
	var reasons []string
	err = s.WatchRun(context.Background(), silent, func(r run.Run) error {
		reasons = append(reasons, r.State+" "+r.Reason)
		e.Exec("main", `UPDATE maintenance.runs SET heartbeat_at = heartbeat_at - interval '50 s'`)
		return nil
	})
	if err != nil || len(reasons) != 3 || reasons[0] != "running " || !strings.HasPrefix(reasons[1], "running no heartbeat since ") || reasons[2] != "failed LEASE_LOST" {
		t.Errorf("%q, %v", reasons, err)
	}
}

func TestWatchRun_OutlastsAMainThatDoesNotAnswerForAMoment(t *testing.T) {
	e, _, r, _ := servicetest.NewHalfway(servicetest.Parallel(t))
	defer e.Lift("main", servicetest.App)
	e.Open = []*repo.Database{e.As("watcher")}
	watcher := e.Service(servicetest.OneChild)
	seen, ended := make(chan run.Run, 100), make(chan error, 1)
	go func() {
		ended <- watcher.WatchRun(context.Background(), r.ID, func(r run.Run) error {
			seen <- r
			return nil
		})
	}()
	<-seen
	// Of those who are no superusers.
	limit := `ALTER DATABASE ` + servicetest.DatabaseOf(e.URLs["main"]) + ` CONNECTION LIMIT `
	e.Exec("main", limit+`0`)
	e.Exec("main", `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'watcher'`)
	// It looks twice in that time.
	e.Eventually("main", `SELECT clock_timestamp() > '`+e.Value("main", `SELECT clock_timestamp()`)+`'::timestamptz + interval '1500 ms'`, "true")
	e.Exec("main", limit+`-1`)
	e.Lift("main", servicetest.App)
	assert.NoError(t, <-ended)
}

// elsewhere is a run running in a process of its own, which has removed the first 4 of 10 records
// and stands before the others. s is a service of this process.
func elsewhere(t *testing.T) (e *servicetest.Estate, s *service.Service, p *servicetest.Process, id, before string) {
	t.Helper()
	e = servicetest.NewDeletedParents(t, 10)
	e.Gate("main", "c", "OLD.p_id > 4")
	e.Shut("main", "other")
	s = e.Service(servicetest.OneChild)
	p = e.Start("other", servicetest.OneChild, func(o *servicetest.Order) { o.BatchSize = 2 })
	e.Eventually("main", `SELECT min(primary_key_value) FROM loose_foreign_keys_deleted_records`, "5")
	e.AtGate("main", "other")
	return e, s, p, e.Value("main", `SELECT id FROM maintenance.runs`), e.State("main", "c")
}

func TestFault_CancelRun_EndsARunInAnotherProcessAfterTheStatementInFlight(t *testing.T) {
	e, s, p, id, before := elsewhere(servicetest.Parallel(t))
	if r, err := s.CancelRun(context.Background(), id, "me at home"); err != nil || r.State != control.RunRunning {
		t.Fatal(r, err)
	}
	assert.Must(s.CancelRun(context.Background(), id, "somebody later"))(t)
	r := p.Result().Run
	e.WantHalf(r, "CANCELLED", before)
	assert.That(t, strings.HasPrefix(r.Error, "cancelled by me at home, 20"), "error %q", r.Error)
}

func TestFault_PauseWorker_EndsARunInAnotherProcessAfterTheStatementInFlight(t *testing.T) {
	e, s, p, _, before := elsewhere(servicetest.Parallel(t))
	servicetest.Pause(t, s, fault.AllWorkers)
	e.WantHalf(p.Result().Run, "PAUSED", before)
}

func TestFault_WatchRun_StreamsTheProgressOfARunInAnotherProcess(t *testing.T) {
	e, s, p, id, _ := elsewhere(servicetest.Parallel(t))
	var seen []run.Run
	err := s.WatchRun(context.Background(), id, func(r run.Run) error {
		seen = append(seen, r)
		// Its progress is known here before its end.
		if r.State == control.RunRunning && r.Counts["processed_records"] == 4 {
			e.Lift("main", "other")
		}
		return nil
	})
	assert.NoError(t, err)
	wantEnd(t, seen[len(seen)-1])
	assert.That(t, len(seen) >= 2 && p.Result().Run.ID == id, "seen %+v", seen)
}

func TestMain(m *testing.M) {
	servicetest.FarFromUTC()
	servicetest.Main(m)
}

package service_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestShutdown_StopsRunsAfterTheStatementInFlight(t *testing.T) {
	t.Parallel()
	e, s, r, before := servicetest.NewHalfway(t)
	other := e.Service(servicetest.OneChild)
	// It waits no longer than its context.
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Millisecond, errors.New("enough")) //nolint:gocritic // elapses: the run stands at a gate
	defer cancel()
	servicetest.WantError(t, s.Shutdown(ctx), "enough")
	servicetest.NoError(t, s.Shutdown(context.Background()))
	// Everything has been recorded and the lease is free when Shutdown returns.
	e.Want("main", `SELECT state FROM maintenance.runs`, "cancelled")
	e.WantHalf(servicetest.Must(s.Run(context.Background(), r.ID))(t), "SHUTDOWN", before)

	// A client that waits gets the run as it ended.
	result := make(chan service.Run, 1)
	waiting := background(func() error {
		r, err := other.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
		result <- r
		return err
	})
	e.AtGate("main", servicetest.App)
	servicetest.NoError(t, other.Shutdown(context.Background()))
	servicetest.NoError(t, <-waiting)
	servicetest.WantState(t, <-result, repo.RunCancelled)

	e.Lift("main", servicetest.App)
	next := servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main")
	servicetest.WantState(t, next, repo.RunSucceeded)
	servicetest.WantCounts(t, next, "processed_records=6 deleted_rows=18")
}

func TestShutdown_TakesNoNewRunsAndLeavesFiresToOthers(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	s, other := e.Service(servicetest.OneChild), e.Service(servicetest.OneChild)
	first := servicetest.Must(request(s, "once", false))(t)
	for range 2 { // the second time it is down already
		servicetest.NoError(t, s.Shutdown(context.Background()))
	}
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
	isError(t, "a request", err, service.ErrStopping)
	equal(t, "the run of a request that is known", servicetest.Must(request(s, "once", false))(t).ID, first.ID)
	fire := time.Now().Truncate(time.Minute)
	if _, ours, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, fire); ours || !errors.Is(err, service.ErrStopping) {
		t.Errorf("ours %t, error %v, want that the server is stopping", ours, err)
	}
	servicetest.WantState(t, fired(t, other, servicetest.LooseForeignKeys, fire), repo.RunSucceeded)
}

func TestPauseWorker_StopsTheRunOfWhateverReplica(t *testing.T) {
	t.Parallel()
	e, s, r, before := servicetest.NewHalfway(t)
	other := e.Service(servicetest.OneChild)
	st := servicetest.Must(other.PauseWorker(context.Background(), servicetest.LooseForeignKeys, " migration of the disks ", "alice", 0))(t)
	if p := st.Paused; p == nil || p.Reason != "migration of the disks" || p.By != "alice" || p.Since.IsZero() || !p.Until.IsZero() {
		t.Errorf("pause %+v", p)
	}
	e.WantHalf(servicetest.Ended(t, s, r.ID), "PAUSED", before)
	servicetest.WantCondition(t, s, service.ConditionPaused, "alice", "migration of the disks")
	for _, dryRun := range []bool{false, true} {
		_, err := s.RunBatch(context.Background(), service.RunRequest{
			Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: dryRun, RequestID: "once",
		})
		if paused, ok := errors.AsType[*service.WorkerPausedError](err); !ok || paused.Pause.Reason != "migration of the disks" {
			t.Errorf("error %v, want that it is paused", err)
		}
	}
	skipped := fired(t, s, servicetest.LooseForeignKeys, time.Now().Truncate(time.Minute))
	if skipped.State != repo.RunSkipped || !strings.HasPrefix(skipped.Reason, "WORKER_PAUSED") || skipped.FinishedAt.IsZero() {
		t.Errorf("%+v, want a skipped run", skipped)
	}
	e.WantSame("main", before, "c")
	if st := servicetest.Resume(t, s, servicetest.LooseForeignKeys); st.Paused != nil {
		t.Errorf("%+v", st.Paused)
	}
	e.Lift("main", servicetest.App)
	servicetest.WantCounts(t, servicetest.Must(request(s, "once", false))(t), "processed_records=6 deleted_rows=18")
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
	for _, message := range []string{"no configured database has these child tables", "definition failed"} {
		t.Run(message, func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewDeletedParents(t, 3)
			e.Exec("main", `CREATE TABLE d (o_id text)`)
			e.Deleted("main", "o", 1, 1)
			panics := &atomic.Bool{}
			s := e.Service(servicetest.OneChild+"d: [{table: o, column: missing, on_delete: async_delete}]\nabsent: [{table: q, column: p_id, on_delete: async_delete}]\n",
				func(c *service.Config) {
					c.Logger = slog.New(panicking{slog.DiscardHandler, message, panics})
				})
			r := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, r, repo.RunFailed)
			if !panics.Load() || !strings.Contains(r.Error, "internal error") || strings.Contains(r.Error, "secret") {
				t.Errorf("panicked %t, error %q", panics.Load(), r.Error)
			}
			e.WantLease("main", 1, false)
			next := servicetest.RunBatch(t, s, "main")
			servicetest.WantState(t, next, repo.RunFailed)
			if !strings.Contains(next.Error, "d.missing -> o on main: 42703 undefined_column, 1 records") {
				t.Errorf("error %q", next.Error)
			}
			e.WantQueue("main", "1")
		})
	}
}

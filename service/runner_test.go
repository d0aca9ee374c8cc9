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
	servicetest.NoError(t, s.Shutdown(context.Background()))
	// Everything has been recorded and given back when Shutdown returns.
	e.Want("main", `SELECT state FROM maintenance.runs`, "cancelled")
	got := servicetest.Must(s.Run(context.Background(), r.ID))(t)
	e.WantHalf(got, "SHUTDOWN", before)

	e.Lift("main", servicetest.App)
	next := servicetest.RunBatch(t, other, "main")
	servicetest.WantState(t, next, repo.RunSucceeded)
	servicetest.WantCounts(t, next, "processed_records=6 deleted_rows=18")
}

func TestShutdown_WaitingClientsGetTheRunAsItEnded(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	s := e.Service(servicetest.OneChild)
	result := make(chan service.Run, 1)
	go func() {
		r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
		if err != nil {
			t.Error(err)
		}
		result <- r
	}()
	e.AtGate("main", servicetest.App)
	servicetest.NoError(t, s.Shutdown(context.Background()))
	servicetest.WantState(t, <-result, repo.RunCancelled)
}

func TestShutdown_TakesNoNewRunsAndLeavesFiresToOthers(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 3)
	s, other := e.Service(servicetest.OneChild), e.Service(servicetest.OneChild)
	first, err := request(s, "once", false)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is down already
		if err := s.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main"})
	if !errors.Is(err, service.ErrStopping) {
		t.Errorf("error %v, want that the server is stopping", err)
	}
	if r, err := request(s, "once", false); err != nil || r.ID != first.ID {
		t.Errorf("%+v, %v, want the run of that request", r, err)
	}
	fire := time.Now().Truncate(time.Minute)
	if _, ours, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, fire); ours || !errors.Is(err, service.ErrStopping) {
		t.Errorf("ours %t, error %v, want that the server is stopping", ours, err)
	}
	if r, ours, err := other.RunScheduled(context.Background(), servicetest.LooseForeignKeys, fire); !ours || err != nil || r.State != repo.RunSucceeded {
		t.Errorf("%+v, ours %t, error %v, want a run", r, ours, err)
	}
}

func TestShutdown_WaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	_, s, _, _ := servicetest.NewHalfway(t)
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Millisecond, errors.New("enough")) //nolint:gocritic // elapses: the run stands at a gate
	defer cancel()
	if err := s.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("error %v", err)
	}
}

func TestPauseWorker_StopsTheRunOfWhateverReplica(t *testing.T) {
	t.Parallel()
	e, s, r, before := servicetest.NewHalfway(t)
	other := e.Service(servicetest.OneChild)
	st, err := other.PauseWorker(context.Background(), servicetest.LooseForeignKeys, " migration of the disks ", "alice", 0)
	if err != nil {
		t.Fatal(err)
	}
	if p := st.Paused; p == nil || p.Reason != "migration of the disks" || p.By != "alice" || p.Since.IsZero() || !p.Until.IsZero() {
		t.Errorf("pause %+v", p)
	}
	e.WantHalf(servicetest.Ended(t, s, r.ID), "PAUSED", before)
	if st := servicetest.Status(t, s); st.Condition != service.ConditionPaused || !strings.Contains(st.ConditionDetail, "alice") || !strings.Contains(st.ConditionDetail, "migration of the disks") {
		t.Errorf("condition %s: %s", st.Condition, st.ConditionDetail)
	}

	var paused *service.WorkerPausedError
	for _, dryRun := range []bool{false, true} {
		_, err = s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: dryRun, RequestID: "once"})
		if !errors.As(err, &paused) || paused.Pause.Reason != "migration of the disks" {
			t.Errorf("error %v, want that it is paused", err)
		}
	}
	skipped, ours, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, time.Now().Truncate(time.Minute))
	if err != nil || !ours || skipped.State != repo.RunSkipped || !strings.HasPrefix(skipped.Reason, "WORKER_PAUSED") || skipped.FinishedAt.IsZero() {
		t.Errorf("%+v, ours %t, %v, want a skipped run", skipped, ours, err)
	}
	e.WantSame("main", before, "c")

	if st, err = s.ResumeWorker(context.Background(), servicetest.LooseForeignKeys, ""); err != nil || st.Paused != nil {
		t.Errorf("%+v, %v", st.Paused, err)
	}
	e.Lift("main", servicetest.App)
	next, err := request(s, "once", false)
	if err != nil {
		t.Fatal(err)
	}
	servicetest.WantCounts(t, next, "processed_records=6 deleted_rows=18")
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

package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// writing is a service with a worker whose whole work this is.
func writing(
	t *testing.T, work func(context.Context, *run.Execution) error, others ...string,
) (*servicetest.Estate, *service.Service) {
	t.Helper()
	e := servicetest.New(t, "", append([]string{"main"}, others...)...)
	s := e.Service("")
	err := s.AddWorker(&run.Worker{
		Name: "writer", Config: run.WorkerConfig{Schedule: "0 0 * * *"}, MaxRuntime: short, Work: work,
		Missing: func(context.Context) (string, error) { return "", nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return e, s
}

// short is the time limit of a run whose lease is soon renewed.
func short(string, map[string]bool) (time.Duration, bool) { return time.Second, false }

// permitted asks for a permit.
func permitted(ctx context.Context, x *run.Execution) (run.Permit, error) {
	return x.Permit(ctx, x.Database, repo.Table{}, repo.Limits{Statement: time.Second, Lock: time.Second})
}

// wantFailed runs the worker, which fails, and wants the lease to be free at once.
func wantFailed(e *servicetest.Estate, s *service.Service, words string) {
	e.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	r := servicetest.Must(s.RunBatch(ctx, service.RunRequest{Worker: "writer"}))(e.T)
	if r.State != repo.RunFailed || !strings.Contains(r.Error, words) {
		e.T.Errorf("%s: %q, want failed: %q", r.State, r.Error, words)
	}
	e.Want("main", `SELECT expires_at < now() FROM maintenance.leases WHERE name = 'writer'`, "true")
}

func TestPermit_ThatIsNotGivenBackFailsTheRunAndBlocksNothing(t *testing.T) {
	t.Parallel()
	e, s := writing(t, func(ctx context.Context, x *run.Execution) error {
		permit, err := permitted(ctx, x)
		if err == nil {
			_, err = x.Database.DropTokenPass(ctx, permit.Permit)
		}
		return err
	})
	wantFailed(e, s, "permit")
	wantFailed(e, s, "permit")
}

// forgetful forgets one permit and asks for more until that fails, which it does when the lease is to be renewed.
func forgetful(t *testing.T) func(context.Context, *run.Execution) error {
	t.Helper()
	return func(ctx context.Context, x *run.Execution) error {
		_, err := permitted(ctx, x)
		devdb.Eventually(t, "a permit to be refused", func() bool {
			permit, refused := permitted(ctx, x)
			if err = errors.Join(err, refused); refused == nil {
				permit.End(&err)
			}
			return err != nil
		})
		return err
	}
}

func TestPermit_ThatIsForgottenInTheMiddleOfARunEndsItBeforeItsLeaseDoes(t *testing.T) {
	t.Parallel()
	e, s := writing(t, forgetful(t))
	wantFailed(e, s, "permit")
	e.Want("main", `SELECT reason FROM maintenance.runs`, "")
}

func TestPermit_IsRefusedToADryRun(t *testing.T) {
	t.Parallel()
	e, s := writing(t, func(ctx context.Context, x *run.Execution) error {
		_, err := permitted(ctx, x)
		return err
	})
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: "writer", DryRun: true})
	if err != nil || r.State != repo.RunFailed || !strings.Contains(r.Error, "dry run") {
		e.T.Errorf("%s: %q, %v, want failed: a permit in a dry run", r.State, r.Error, err)
	}
}

func TestPermit_IsGivenBackByAPanic(t *testing.T) {
	t.Parallel()
	write := func(ctx context.Context, x *run.Execution) (err error) {
		permit, err := permitted(ctx, x)
		if err != nil {
			return err
		}
		defer permit.End(&err)
		panic("no")
	}
	e, s := writing(t, func(ctx context.Context, x *run.Execution) error {
		err := run.Guarded(func() error { return write(ctx, x) })
		// A renewal, which takes a fence elsewhere as here, does not wait for the one that panicked.
		permit, second := permitted(ctx, x)
		if second != nil {
			return second
		}
		permit.End(&second)
		permit.End(&second)
		return err
	})
	wantFailed(e, s, "internal error")
}

func TestPermit_WithoutAGuardWritesNothing(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "", "main")
	e.Exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today) VALUES (now(), now(), now())`)
	limits := repo.Limits{Statement: time.Second, Lock: time.Second}
	dropped, err := e.Open[0].DropTokenPass(context.Background(), repo.Permit{Limits: limits})
	if err == nil || dropped {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	e.Want("main", `SELECT count(*) FROM maintenance.token_passes`, "1")
}

func TestPermit_ForAnotherDatabaseWaitsForNoStatementInFlight(t *testing.T) {
	t.Parallel()
	var ci *repo.Database
	e, s := writing(t, func(ctx context.Context, x *run.Execution) (err error) {
		permit, err := permitted(ctx, x)
		if err != nil {
			return err
		}
		defer permit.End(&err)
		entered := make(chan error, 1)
		go func() {
			other, err := x.Permit(ctx, ci, repo.Table{}, repo.Limits{Statement: time.Second, Lock: time.Second})
			if err == nil {
				other.End(&err)
			}
			entered <- err
		}()
		select {
		case err = <-entered:
			return err
		case <-time.After(devdb.WaitTimeout):
			return errors.New("the fence row is not taken while another permit is out")
		}
	}, "ci")
	ci = e.Open[1]
	r := servicetest.Must(s.RunBatch(context.Background(), service.RunRequest{Worker: "writer"}))(t)
	servicetest.WantState(t, r, repo.RunSucceeded)
	e.Want("ci", `SELECT epoch::text || ' ' || (expires_at < now()) FROM maintenance.leases WHERE name = 'writer'`, "1 true")
}

func TestRun_ThatEndsEarlyFailsIfItsItemsHave(t *testing.T) {
	t.Parallel()
	const failure = "c.p_id -> p on main: P0001 raise_exception, 1 records"
	e, s := writing(t, func(_ context.Context, x *run.Execution) error {
		x.RequestStop(run.StopError{Reason: repo.Reason{Code: run.ReasonThrottled, Detail: "load"}, Early: true})
		return fmt.Errorf("%w: %w", &run.FailedError{Text: failure}, x.Stopped())
	})
	r := servicetest.Must(s.RunBatch(context.Background(), service.RunRequest{Worker: "writer"}))(t)
	servicetest.WantState(t, r, repo.RunFailed)
	e.Want("main", `SELECT state || ', ' || over_limit || ', ' || error FROM maintenance.runs`, "failed, true, "+failure)
}

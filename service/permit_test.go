package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// works are what workers do, by their names.
type works = map[string]func(context.Context, *run.Execution) error

// writing is a service with workers whose whole work this is, by their names.
func writing(t *testing.T, all works, others ...string) (*servicetest.Estate, *service.Service) {
	t.Helper()
	e := servicetest.New(t, "", append([]string{"main"}, others...)...)
	s := e.Service("")
	for name, work := range all {
		assert.NoError(t, s.AddWorker(&run.Worker{
			Name: name, Config: run.WorkerConfig{Schedule: "0 0 * * *"}, Work: work,
			// Its lease is soon renewed.
			MaxRuntime: func(string, map[string]bool) (time.Duration, bool) { return time.Second, false },
			Missing:    func(context.Context) (string, error) { return "", nil },
		}))
	}
	return e, s
}

// permitted asks for a permit.
func permitted(ctx context.Context, x *run.Execution) (run.Permit, error) {
	return x.Permit(ctx, x.Database, catalog.Table{}, fencing.Limits{Statement: time.Second, Lock: time.Second})
}

// failure is why a run has failed before it ends early.
const failure = "c.p_id -> p on main: P0001 raise_exception, 1 record"

// misuses are the works of workers that do not release their permits, or end early.
func misuses(t *testing.T) works {
	t.Helper()
	panics := func(ctx context.Context, x *run.Execution) (err error) {
		permit, err := permitted(ctx, x)
		if err != nil {
			return err
		}
		defer permit.End(&err)
		panic("no")
	}
	return works{
		"kept": func(ctx context.Context, x *run.Execution) error {
			permit, err := permitted(ctx, x)
			if err == nil {
				_, err = x.Database.Tokens.DropTokenPass(ctx, permit.Permit)
			}
			return err
		},
		// It asks for more permits until one is refused, which it is when the lease is to be renewed.
		"forgotten": func(ctx context.Context, x *run.Execution) error {
			_, err := permitted(ctx, x)
			devdb.Eventually(t, "a permit to be refused", func() bool {
				permit, refused := permitted(ctx, x)
				if err = errors.Join(err, refused); refused == nil {
					permit.End(&err)
				}
				return err != nil
			})
			return err
		},
		"panicking": func(ctx context.Context, x *run.Execution) error {
			err := fault.RecoverPanic(func() error { return panics(ctx, x) })
			// A renewal, which takes a fence elsewhere as here, does not wait for the one that panicked.
			permit, second := permitted(ctx, x)
			if second != nil {
				return second
			}
			permit.End(&second)
			permit.End(&second)
			return err
		},
		// A run that ends early fails if its items have.
		"early": func(_ context.Context, x *run.Execution) error {
			x.RequestStop(fault.StopError{Reason: reasons.Reason{Code: fault.ReasonThrottled, Detail: "load"}, Early: true})
			return fmt.Errorf("%w: %w", &fault.FailedError{Text: failure}, x.Stopped())
		},
	}
}

func TestFault_Permit_ThatIsNotReleasedFailsTheRunAndBlocksNothing(t *testing.T) {
	e, s := writing(servicetest.Parallel(t), misuses(t))
	cases := [][2]string{{"kept", "permit"}, {"kept", "permit"}, {"kept", "dry run"}, {"forgotten", "permit"}}
	cases = append(cases, [2]string{"panicking", "internal error"}, [2]string{"early", failure})
	for _, c := range cases {
		worker, words := c[0], c[1]
		ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
		r, err := s.RunBatch(ctx, run.Request{Worker: worker, DryRun: words == "dry run"})
		cancel()
		assert.That(t, err == nil && r.State == control.RunFailed && strings.Contains(r.Error, words) && r.OverLimit == (worker == "early"),
			"%s: %s, %q, over limit %t, %v, want failed: %q", worker, r.State, r.Error, r.OverLimit, err, words)
		// The lease is free at once.
		e.Want("main", `SELECT expires_at < now() FROM maintenance.leases WHERE name = '`+worker+`'`, "true")
	}
	e.Want("main", `SELECT reason FROM maintenance.runs WHERE worker = 'forgotten'`, "")

	// Without a guard a permit writes nothing.
	e.Exec("main", `INSERT INTO maintenance.token_passes (started_at, cut_off, today) VALUES (now(), now(), now())`)
	limits := fencing.Limits{Statement: time.Second, Lock: time.Second}
	dropped, err := e.Open[0].Tokens.DropTokenPass(context.Background(), fencing.Permit{Limits: limits})
	assert.That(t, err != nil && !dropped, "dropped %v, %v", dropped, err)
	e.Want("main", `SELECT count(*) FROM maintenance.token_passes`, "1")
}

func TestPermit_ForAnotherDatabaseWaitsForNoStatementInFlight(t *testing.T) {
	t.Parallel()
	var ci *repo.Database
	e, s := writing(t, works{"writer": func(ctx context.Context, x *run.Execution) (err error) {
		permit, err := permitted(ctx, x)
		if err != nil {
			return err
		}
		defer permit.End(&err)
		entered := make(chan error, 1)
		go func() {
			other, err := x.Permit(ctx, ci, catalog.Table{}, fencing.Limits{Statement: time.Second, Lock: time.Second})
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
	}}, "ci")
	ci = e.Open[1]
	r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: "writer"}))(t)
	servicetest.WantState(t, r, control.RunSucceeded)
	e.Want("ci", `SELECT epoch::text || ' ' || (expires_at < now()) FROM maintenance.leases WHERE name = 'writer'`, "1 true")
}

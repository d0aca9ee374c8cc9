package service_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) {
	servicetest.FarFromUTC()
	servicetest.Main(m)
}

// isError fails the test unless err is the target.
func isError(tb testing.TB, what string, err, target error) {
	tb.Helper()
	assert.That(tb, errors.Is(err, target), "%s: got error %v, want %v", what, err, target)
}

// wantInvalid fails the test unless err reports that this field of a request is invalid.
func wantInvalid(tb testing.TB, what string, err error, field string) {
	tb.Helper()
	if invalid, ok := errors.AsType[*fault.InvalidArgumentError](err); !ok || invalid.Field != field {
		tb.Errorf("%s: got error %v, want one about %s", what, err, field)
	}
}

// ran runs a worker as a request asks, whatever comes of the run.
func ran(t *testing.T, s *service.Service, r run.Request) run.Run {
	t.Helper()
	return assert.Must(s.RunBatch(context.Background(), r))(t)
}

// fired runs the fire of a worker at this time. The service must be the one that runs it.
func fired(t *testing.T, s *service.Service, worker string, at time.Time) run.Run {
	t.Helper()
	r, ours, err := s.RunScheduled(context.Background(), worker, at)
	assert.Require(t, err == nil && ours, "%v %v", ours, err)
	return r
}

// background does something beside the test, and returns where its error comes.
func background(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// inTurn runs tests on one main. Each has it as a migration has made it.
func inTurn(t *testing.T, schema string, tests map[string]func(*servicetest.Estate)) {
	t.Helper()
	servicetest.Cases(t, servicetest.New(servicetest.Parallel(t), schema, "main"), tests)
}

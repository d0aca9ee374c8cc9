package service_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestPlanDeletion_TwoAreMadeAtOnce(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "all", "main")
	s := e.Service("")
	for range 2 {
		done := servicetest.Must(s.PlanTurn(t.Context()))(t)
		defer done()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) //nolint:gocritic // elapses: both turns are taken
	defer cancel()
	if _, err := s.PlanDeletion(ctx, "user", 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third one: %v", err)
	}
}

func TestPlanDeletion_WaitsAFewSecondsForItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := service.NewTurns()
		first, _ := s.PlanTurn(t.Context())
		_, _ = s.PlanTurn(t.Context())
		began := time.Now()
		_, err := s.PlanTurn(t.Context())
		if busy, ok := errors.AsType[*service.PlansBusyError](err); !ok || time.Since(began) != busy.RetryAfter() ||
			busy.Error() != "2 plans are being made, as many as may be at once: try again in 3s" {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.AfterFunc(time.Second, first) //nolint:gocritic // elapses: by the clock of the bubble
		if _, err := s.PlanTurn(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

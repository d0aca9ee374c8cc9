package plan

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

func TestPlanDeletion_WaitsAFewSecondsForItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := New(&run.Runner{}, &job.Pool{})
		first, _ := p.acquire(t.Context())
		_, _ = p.acquire(t.Context())
		brief, cancel := context.WithTimeout(t.Context(), time.Second) //nolint:gocritic // elapses: by the clock of the bubble
		defer cancel()
		if _, err := p.PlanDeletion(brief, "user", 20); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a client that waits for a second: %v", err)
		}
		began := time.Now()
		_, err := p.PlanDeletion(t.Context(), "user", 20)
		if busy, ok := errors.AsType[*fault.RefusedError](err); !ok || time.Since(began) != busy.RetryAfter() ||
			busy.Error() != "2 plans are already running: try again in 3s" {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.AfterFunc(time.Second, first) //nolint:gocritic // elapses: by the clock of the bubble
		assert.Must(p.acquire(t.Context()))(t)
	})
}

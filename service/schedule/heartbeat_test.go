package schedule

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestHeartbeat_FailsSinceTheFirstFailureInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heartbeat
		h.record(nil)
		began, broken := time.Now(), errors.New("broken")
		for range 3 {
			h.record(broken)
			if !h.FailingSince.Equal(began) || !h.At.Equal(time.Now()) || !errors.Is(h.Err, broken) {
				t.Errorf("%+v, want failing since %s", h.Heartbeat, began)
			}
			time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble
		}
		if h.record(nil); !h.FailingSince.IsZero() || h.Err != nil {
			t.Errorf("%+v", h.Heartbeat)
		}
	})
}

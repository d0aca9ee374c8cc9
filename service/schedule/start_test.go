package schedule

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

func TestRound_TheDatabasesHaveOneDeadlineTogetherToSayWhatIsDue(t *testing.T) {
	var databases []*repo.Database
	for _, name := range []string{"main", "ci", "sec"} {
		d, err := repo.Open(context.Background(), name, "postgres://nowhere")
		assert.NoError(t, err)
		defer d.Close()
		databases = append(databases, d)
	}
	var deadlines []time.Time
	w := &run.Worker{Databases: databases, Due: func(ctx context.Context, _ *repo.Database) bool {
		deadline, _ := ctx.Deadline()
		deadlines = append(deadlines, deadline)
		return false
	}}
	assert.Equal(t, firstDue(context.Background(), w), "")
	if len(deadlines) != 3 || deadlines[0].IsZero() || len(slices.Compact(deadlines)) != 1 {
		t.Errorf("deadlines %v", deadlines)
	}
}

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

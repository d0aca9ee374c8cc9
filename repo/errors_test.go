package repo_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

func TestError_RedactedTextHasNoValues(t *testing.T) {
	b := newBench(t, "")
	ctx := context.Background()
	_, _, violation := b.InsertRun(ctx, repo.Run{ID: "0197c000-0000-7000-8000-000000000001", State: repo.RunRunning, Trigger: "alice@example.com"}, time.Minute, "")
	for want, err := range map[string]error{
		"forget the run on main: 22P02 invalid_text_representation":                            b.DeleteRun(ctx, "alice@example.com"),
		"record the run on main: 23514 check_violation, constraint runs_trigger_check of runs": violation,
	} {
		refused, ok := errors.AsType[*repo.Error](err)
		if !ok || refused.Redacted() != want || !strings.Contains(err.Error(), "ERROR: ") {
			t.Errorf("got %v, redacted %q", err, refused.Redacted())
		}
	}
}

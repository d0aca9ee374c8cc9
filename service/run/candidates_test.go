package run

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
)

func TestExpected_TheFirstHundredThatArePassedOverAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	x := &Execution{
		Log:  slog.New(slog.NewTextHandler(&log, nil)),
		only: map[target]string{{repo.KindUser, 7}: ActionDelete},
	}
	for id := range int64(150) {
		if got := x.Expected(repo.KindUser, id, ActionDelete); got != (id == 7) {
			t.Errorf("user %d: %t", id, got)
		}
	}
	if lines := strings.Count(log.String(), "passed over, not in the plan"); lines != 100 {
		t.Errorf("%d lines", lines)
	}
	if !strings.Contains(log.String(), "kind=user id=0\n") {
		t.Error(log.String())
	}
}

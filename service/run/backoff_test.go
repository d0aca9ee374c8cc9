package run_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service"
)

func TestBackoff_WaitsLongerWithEveryFailureUpToItsMost(t *testing.T) {
	t.Parallel()
	b := service.Backoff{First: time.Second, Most: 5 * time.Second}
	for round := range 2 {
		for n, seconds := range []int{1, 2, 4, 5, 5, 5} {
			wait, news := b.After(errors.New("down"))
			if most := time.Duration(seconds) * time.Second; wait < most/2 || wait > most {
				t.Errorf("failure %d: waits %s, want %s at most and half of it at least", n+1, wait, most)
			}
			if news != (n == 0) {
				t.Errorf("failure %d: news %t", n+1, news)
			}
		}
		if wait, news := b.After(nil); wait != 0 || !news {
			t.Errorf("round %d: waits %s after the first success, news %t", round, wait, news)
		}
		if _, news := b.After(nil); news {
			t.Error("a further success is no news")
		}
	}
}

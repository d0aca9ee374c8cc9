package load

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// minPause and maxPause bound the pause before a statement.
	minPause, maxPause = 100 * time.Millisecond, 2 * time.Second
)

// Throttle tracks how far the load slows a run down.
type Throttle struct {
	// StopRequested closes when the run must stop.
	StopRequested <-chan struct{}

	mu sync.Mutex
	// paused is the total time in which the run, or a part of it, pauses, up to until. released is
	// when a statement was last allowed.
	paused          time.Duration
	until, released time.Time
	// excess is why the run pauses, or paused before its last statement. nil means it does not.
	excess *Excess
}

// PauseAfter returns how long to pause after some work: its duration times the ratio.
func (e *Excess) PauseAfter(worked time.Duration) time.Duration {
	return min(max(time.Duration(float64(worked)*e.ratio), minPause), maxPause)
}

// Worked returns the time since a statement was last allowed.
func (t *Throttle) Worked() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.released.IsZero() {
		return 0
	}
	return time.Since(t.released)
}

// Release records that a statement is allowed.
func (t *Throttle) Release(e *Excess) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released, t.excess = time.Now(), e
}

// Pause pauses until wanted is over or the run must stop. It returns the duration, and how much
// that adds to the pause of the run, whose batches may pause in parallel. first reports that the
// run had not paused before.
func (t *Throttle) Pause(ctx context.Context, e *Excess, wanted time.Duration) (paused, ofRun time.Duration, first bool) {
	began := time.Now()
	t.mu.Lock()
	t.excess, first = e, t.paused == 0
	if end := began.Add(wanted); end.After(t.until) {
		ofRun = min(wanted, end.Sub(t.until))
		t.paused, t.until = t.paused+ofRun, end
	}
	t.mu.Unlock()
	timer := time.NewTimer(wanted)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.StopRequested:
	case <-ctx.Done():
	}
	return time.Since(began), ofRun, first
}

// Reason returns what slows the run down now, "" if nothing does.
func (t *Throttle) Reason() string {
	e, paused := t.State()
	if e == nil {
		return ""
	}
	return fmt.Sprintf("%s (the run has paused for %s)", e, paused.Round(time.Second))
}

// State returns what slows the run down now, or nil, and its total pause.
func (t *Throttle) State() (*Excess, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.excess, t.paused
}

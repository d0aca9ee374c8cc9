package scheduler

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// looks is a runner that remembers when it was asked, by the bubble's clock.
type looks struct {
	// due is the result of a check of the fires. refused is that of a search for dead runs.
	due     func(ctx context.Context) error
	refused error

	mu           sync.Mutex
	atWork, most int
	begun        []time.Time
	resumed      []time.Time
}

func (l *looks) RunDue(ctx context.Context) error {
	l.mu.Lock()
	l.begun = append(l.begun, time.Now())
	l.atWork++
	l.most = max(l.most, l.atWork)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.atWork--
		l.mu.Unlock()
	}()
	if l.due == nil {
		return nil
	}
	return l.due(ctx)
}

func (l *looks) ResumeRuns(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumed = append(l.resumed, time.Now())
	return l.refused
}

// wrong is a clock that goes wrong by what its test reports. Its timers are right, as those of a
// real clock are.
type wrong struct {
	clockwork.Clock
	by func() time.Duration
}

func (w wrong) Now() time.Time { return w.Clock.Now().Add(w.by()) }

// runFor runs a scheduler for some time, in a bubble, by a clock that goes wrong by what by
// reports.
func runFor(t *testing.T, l *looks, lasting time.Duration, log *bytes.Buffer, by func() time.Duration) {
	t.Helper()
	s := assert.Must(newScheduler(l, slog.New(slog.NewTextHandler(log, nil)), wrong{clockwork.NewRealClock(), by}))(t)
	s.Start()
	time.Sleep(lasting) //nolint:forbidigo // in a synctest bubble
	assert.NoError(t, s.Stop())
	synctest.Wait()
}

func right() time.Duration { return 0 }

// wantEvery fails the test unless there were so many looks, the first at once, the others every so often.
func wantEvery(t *testing.T, interval time.Duration, looks []time.Time, n int) {
	t.Helper()
	if len(looks) != n {
		t.Errorf("%d looks, want %d: %v", len(looks), n, looks)
		return
	}
	for i := range n - 1 {
		assert.Equal(t, looks[i+1].Sub(looks[i]), interval, "time between two looks")
	}
}

func TestScheduler_LooksForDeadRunsEveryHalfMinuteWhateverComesOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, log := &looks{refused: errors.New("not now")}, new(bytes.Buffer)
		runFor(t, l, 95*time.Second, log, right)
		wantEvery(t, 30*time.Second, l.resumed, 3)
		assert.Equal(t, strings.Count(log.String(), "not now"), 1, "warnings")
	})
}

func TestScheduler_LooksAtOnceAndEveryFewSecondsByWhateverClock(t *testing.T) {
	for name, by := range map[string]func(since time.Duration) time.Duration{
		"right":               func(time.Duration) time.Duration { return 0 },
		"an hour fast":        func(time.Duration) time.Duration { return time.Hour },
		"a year slow":         func(time.Duration) time.Duration { return -365 * 24 * time.Hour },
		"set back by an hour": func(since time.Duration) time.Duration { return -since.Truncate(32*time.Second) / 32 * 3600 },
		"set forward a day":   func(since time.Duration) time.Duration { return since.Truncate(32*time.Second) / 32 * 86400 },
		"jumping":             func(since time.Duration) time.Duration { return since % (7 * time.Second) * 1000 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, start := &looks{}, time.Now()
				runFor(t, l, 61*time.Second, new(bytes.Buffer), func() time.Duration { return by(time.Since(start)) })
				wantEvery(t, 5*time.Second, l.begun, 13)
				wantEvery(t, 30*time.Second, l.resumed, 2)
				assert.That(t, l.begun[0].Equal(start), "first look %s after the start", l.begun[0].Sub(start))
			})
		})
	}
}

func TestScheduler_LooksNeverPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &looks{due: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-time.After(25 * time.Second): //nolint:gocritic // elapses: by the clock of the bubble
			}
			return errors.New("database unreachable")
		}}
		runFor(t, l, 91*time.Second, new(bytes.Buffer), right)
		wantEvery(t, 30*time.Second, l.begun, 4)
		assert.Equal(t, l.most, 1, "looks at once")
	})
}

func TestScheduler_GoesOnAfterErrorsAndPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &looks{}
		l.due = func(context.Context) error {
			switch n := len(l.begun); {
			case n == 2:
				panic("broken")
			case n < 6:
				return errors.New("database unreachable")
			}
			return nil
		}
		var log bytes.Buffer
		runFor(t, l, 41*time.Second, &log, right)
		wantEvery(t, 5*time.Second, l.begun, 9)
		for said, want := range map[string]int{"database unreachable": 1, "panicked": 1, "check for due runs recovered": 1} {
			n := strings.Count(log.String(), said)
			assert.That(t, n == want, "%q was said %d times, want %d: %s", said, n, want, log.String())
		}
	})
}

func TestStop_EndsTheLookAtWorkAndLeavesNothingBeforeTheStart(t *testing.T) {
	assert.NoError(t, assert.Must(newScheduler(&looks{}, slog.New(slog.DiscardHandler), clockwork.NewRealClock()))(t).Stop())
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		l := &looks{due: func(ctx context.Context) error {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		}}
		var log bytes.Buffer
		runFor(t, l, 90*time.Second, &log, right)
		err := <-ended
		assert.That(t, errors.Is(err, errStopped), "got %v", err)
		assert.That(t, log.Len() == 0, "got the log %s", log.String())
	})
}

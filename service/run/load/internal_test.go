package load

import (
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
)

func TestRestOf_IsInProportionToTheWorkAndToTheExcess(t *testing.T) {
	for _, c := range []struct {
		worked time.Duration
		ratio  float64
		want   time.Duration
	}{
		{0, 3, minPause},
		{20 * time.Millisecond, 2, minPause},
		{250 * time.Millisecond, 1.2, 300 * time.Millisecond},
		{250 * time.Millisecond, 3, 750 * time.Millisecond},
		{time.Hour, 1.01, maxPause},
	} {
		if got := (&Excess{ratio: c.ratio}).PauseAfter(c.worked); got != c.want {
			t.Errorf("after %s at %v times the limit: %s, want %s", c.worked, c.ratio, got, c.want)
		}
	}
}

func TestExcess_LastsAsLongAsOneLookAfterTheOtherSeesIt(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	seen := func(measure string) []Excess { return []Excess{{measure: measure, ratio: 2}} }
	first := since(seen("a"), nil, at(1), true)
	for what, c := range map[string]struct {
		excess Excess
		began  time.Time
	}{
		"first seen":                       {first[0], at(1)},
		"seen again":                       {since(seen("a"), first, at(2), true)[0], at(1)},
		"after a long time without a look": {since(seen("a"), first, at(99), false)[0], at(99)},
		"another one":                      {since(seen("b"), first, at(3), true)[0], at(3)},
	} {
		assert.Equal(t, c.excess.began, c.began, what, "since when")
	}
}

func TestExcess_OfBeforeTheRunCountsFromItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started, l := time.Now(), &Loads{config: Config{Timeout: 20 * time.Second}}
		e := &Excess{began: time.Now().Add(-time.Hour)}
		assert.That(t, !l.TimedOut(e, started), "timed out at the start of the run")
		time.Sleep(20 * time.Second) //nolint:forbidigo // in a synctest bubble
		assert.That(t, l.TimedOut(e, started), "not timed out after 20 s")
	})
}

func TestExcess_IsNamedWithItsValueItsLimitAndItsKey(t *testing.T) {
	c := Config{MaxReplicaLag: 30 * time.Second, MaxWALRate: 64 << 20, MaxLockWait: 5 * time.Second}
	load := control.Load{Replica: "r1", Lag: 72500 * time.Millisecond, WALRate: 100 << 20, Queues: []control.LockQueue{
		{Table: "public.notes", Root: "public.notes", Seconds: 7},
		{Table: "public.issues", Root: "public.issues", Seconds: 5},
	}}
	var got []string
	for _, e := range c.excesses("ci", load) {
		got = append(got, e.String())
	}
	want := []string{
		"lag of replica r1 of ci: 1m12.5s, over load.max_replica_lag = 30s",
		"WAL rate of ci: 100MB, over load.max_wal_rate = 64MB",
		"lock wait on public.notes in ci: 7s, over load.max_lock_wait = 5s",
	}
	assert.That(t, slices.Equal(got, want), "got %q", got)
}

func TestMeasures_HaveEachLimitThatIsSetWithTheNewestValue(t *testing.T) {
	t.Parallel()
	d := &repo.Database{}
	l := New(Config{MaxReplicaLag: 30 * time.Second, MaxLockWait: 5 * time.Second}, slog.New(slog.DiscardHandler))
	l.databases[d] = &databaseLoad{probed: time.Now(), seen: time.Now(), load: control.Load{
		Lag: 15 * time.Second, WALRate: 1 << 20, Queues: []control.LockQueue{{Seconds: 7}, {Seconds: 10}},
	}}
	got, known := l.Measures(t.Context(), d)
	want := []Measure{
		{"replica lag", "load.max_replica_lag", "15s", "30s", 0.5},
		{"longest lock wait", "load.max_lock_wait", "10s", "5s", 2},
	}
	assert.That(t, known && slices.Equal(got, want), "got %v, %t", got, known)
	l.databases[d].seen = time.Now().Add(-time.Hour)
	_, known = l.Measures(t.Context(), d)
	assert.That(t, !known, "a load of an hour ago is known")
	none, known := New(Config{}, nil).Measures(t.Context(), d)
	assert.That(t, known && none == nil, "without limits: got %v, %t", none, known)
}

func TestThrottle_PartsOfARunThatRestSideBySideAreCountedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		throttle, e := Throttle{StopRequested: make(chan struct{})}, &Excess{}
		var wait sync.WaitGroup
		var mu sync.Mutex
		var counted time.Duration
		firsts := 0
		for i := range 2 {
			wait.Go(func() {
				time.Sleep(time.Duration(i) * time.Second) //nolint:forbidigo // in a synctest bubble
				rested, ofRun, first := throttle.Pause(t.Context(), e, 3*time.Second)
				assert.That(t, rested == 3*time.Second, "rested for %s", rested)
				mu.Lock()
				defer mu.Unlock()
				counted += ofRun
				if first {
					firsts++
				}
			})
		}
		wait.Wait()
		time.Sleep(time.Minute) //nolint:forbidigo // in a synctest bubble
		_, last, _ := throttle.Pause(t.Context(), e, time.Second)
		if _, rested := throttle.State(); rested != 5*time.Second || counted+last != rested || firsts != 1 {
			t.Errorf("the run has rested for %s, counted as %s, begun %d times; want 5s, once", rested, counted+last, firsts)
		}
	})
}

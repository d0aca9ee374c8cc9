package run

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
)

func TestRestOf_IsInProportionToTheWorkAndToTheExcess(t *testing.T) {
	for _, c := range []struct {
		worked time.Duration
		ratio  float64
		want   time.Duration
	}{
		{0, 3, minRest},
		{20 * time.Millisecond, 2, minRest},
		{250 * time.Millisecond, 1.2, 300 * time.Millisecond},
		{250 * time.Millisecond, 3, 750 * time.Millisecond},
		{time.Hour, 1.01, maxRest},
	} {
		if got := restOf(c.worked, c.ratio); got != c.want {
			t.Errorf("after %s at %v times the limit: %s, want %s", c.worked, c.ratio, got, c.want)
		}
	}
}

func TestRates_AreThoseOfTheLastSeconds(t *testing.T) {
	var r rates
	start := time.Now()
	for _, c := range []struct {
		after    time.Duration
		position int64
		want     int64
	}{
		{0, 1000, 0},
		{time.Second, 2000, 0}, // too soon to tell
		{2 * time.Second, 5000, 2000},
		{4 * time.Second, 5000, 0},
		{5 * time.Second, 8000, 1000},
		{5*time.Second + maxRateTime + 1, 1 << 40, 0}, // nobody looked for long
		{20 * time.Second, 7000, 0},                   // another server
		{25 * time.Second, 12000, 1000},
	} {
		if got := r.observe(c.position, start.Add(c.after)); got != c.want {
			t.Errorf("after %s: %d, want %d", c.after, got, c.want)
		}
	}
}

func TestExcess_LastsAsLongAsOneLookAfterTheOtherSeesIt(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	seen := func(ratio float64) []Excess { return []Excess{{measure: "a", ratio: ratio}} }
	first := since(seen(2), nil, at(1), true)
	second := since(seen(farOver), first, at(2), true)
	for what, c := range map[string]struct {
		excess     Excess
		began, far time.Time
	}{
		"first seen":                       {first[0], at(1), time.Time{}},
		"far over":                         {second[0], at(1), at(2)},
		"still far over":                   {since(seen(farOver+1), second, at(3), true)[0], at(1), at(2)},
		"no longer far over":               {since(seen(2), second, at(3), true)[0], at(1), time.Time{}},
		"after a long time without a look": {since(seen(farOver), second, at(99), false)[0], at(99), at(99)},
		"another one":                      {since([]Excess{{measure: "b", ratio: 2}}, second, at(3), true)[0], at(3), time.Time{}},
	} {
		if c.excess.began != c.began || c.excess.Far != c.far {
			t.Errorf("%s: %+v, want since %s, far since %s", what, c.excess, c.began, c.far)
		}
	}
}

func TestExcess_IsNamedWithItsValueItsLimitAndItsKey(t *testing.T) {
	c := LoadConfig{MaxReplicaLag: 30 * time.Second, MaxWALRate: 64 << 20, MaxArchiveBacklog: 4 << 30, MaxLockWait: 5 * time.Second, MaxAutovacuum: time.Hour}
	load := repo.Load{Replica: "r1", Lag: 72500 * time.Millisecond, Unarchived: 5 << 30, Tables: []repo.TableLoad{
		{Table: "public.notes", Root: "public.notes", Locked: 7 * time.Second, Vacuumed: 2 * time.Hour},
		{Table: "public.issues", Root: "public.issues", Locked: 5 * time.Second},
	}}
	var got []string
	for _, e := range c.excesses(&databaseLoad{name: "ci"}, load, 100<<20) {
		got = append(got, e.String())
	}
	want := []string{
		"replica r1 of ci is late: 1m12.5s, over load.max_replica_lag = 30s",
		"write-ahead log of ci a second: 100MB, over load.max_wal_rate = 64MB",
		"write-ahead log of ci that waits to be archived: 5GB, over load.max_wal_archive_backlog = 4GB",
		"somebody waits for a lock on public.notes of ci: 7s, over load.max_lock_wait = 5s",
		"autovacuum of public.notes of ci: 2h0m0s, over load.max_autovacuum = 1h0m0s",
	}
	assert.That(t, slices.Equal(got, want), "got %q", got)
}

func TestThrottle_PartsOfARunThatRestSideBySideAreCountedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		throttle, e := throttle{stopRequested: make(chan struct{})}, &Excess{}
		var wait sync.WaitGroup
		var mu sync.Mutex
		var counted time.Duration
		firsts := 0
		for i := range 2 {
			wait.Go(func() {
				time.Sleep(time.Duration(i) * time.Second) //nolint:forbidigo // in a synctest bubble
				rested, ofRun, first := throttle.rest(t.Context(), e, 3*time.Second)
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
		_, last, _ := throttle.rest(t.Context(), e, time.Second)
		if _, rested := throttle.state(); rested != 5*time.Second || counted+last != rested || firsts != 1 {
			t.Errorf("the run has rested for %s, counted as %s, begun %d times; want 5s, once", rested, counted+last, firsts)
		}
	})
}

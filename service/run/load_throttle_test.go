package run

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

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
				if rested != 3*time.Second {
					t.Errorf("rested for %s", rested)
				}
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

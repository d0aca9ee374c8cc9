package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/sync/semaphore"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
)

func TestExpected_TheFirstHundredThatArePassedOverAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	x := &Execution{
		Log:     slog.New(slog.NewTextHandler(&log, nil)),
		allowed: map[target]string{{repo.KindUser, 7}: ActionDelete},
	}
	for id := range int64(150) {
		got := x.MayTouch(repo.KindUser, id, ActionDelete)
		assert.That(t, got == (id == 7), "user %d: %t", id, got)
	}
	assert.Equal(t, strings.Count(log.String(), "passed over, not in the plan"), 100, "lines")
	assert.That(t, strings.Contains(log.String(), "kind=user id=0\n"), "%v", log.String())
}

// digestOf is that of a dry run that finds these.
func digestOf(found ...repo.Candidate) string {
	x := &Execution{DryRun: true, found: candidates{digest: sha256.New()}}
	for _, c := range found {
		x.Candidate(c)
	}
	return hex.EncodeToString(x.found.digest.Sum(nil))
}

// A digest says who is worked on, in which order, what is done and why, and nothing else: no text of one
// candidate can be taken for another one.
func FuzzCandidatesDigest(f *testing.F) {
	f.Add("user", int64(1), "queue", "", "user", int64(2), "queue", "")
	f.Add("user", int64(1), "queue", "a\n", "group", int64(1), "hold", "\"b\"")
	f.Add("user", int64(1), "queue", "x\"\nuser 2 queue \"", "user", int64(2), "queue", "")
	f.Fuzz(func(t *testing.T, kind string, id int64, action, reason, kind2 string, id2 int64, action2, reason2 string) {
		// Kinds and actions are words of ours.
		kinds, actions := []string{"user", "group", "placeholder"}, []string{ActionDelete, ActionQueue, ActionHold}
		one := repo.Candidate{Kind: kinds[len(kind)%3], ID: id, Action: actions[len(action)%3], Reason: reason}
		two := repo.Candidate{Kind: kinds[len(kind2)%3], ID: id2, Action: actions[len(action2)%3], Reason: reason2}
		renamed := one
		renamed.Name = reason2
		same := one == two
		switch {
		case digestOf(one) != digestOf(renamed):
			t.Error("the name is in the digest")
		case (digestOf(one) == digestOf(two)) != same:
			t.Errorf("%+v and %+v are alike: %t", one, two, !same)
		case (digestOf(one, two) == digestOf(two, one)) != same:
			t.Error("the order is not in the digest")
		case digestOf(one) == digestOf(one, two) || digestOf(one) == digestOf():
			t.Error("one more makes no difference")
		}
	})
}

// A plan's digest does not depend on the order in which its tables and jobs were counted.
func FuzzPlanDigest(f *testing.F) {
	f.Add("issues", int64(3), "notes", int64(4), "delete_user")
	f.Add("a", int64(0), "a", int64(-1), "")
	f.Fuzz(func(t *testing.T, table string, n int64, other string, m int64, job string) {
		digest := func(first, second string, a, b int64) string {
			p := &Plan{Kind: "user", ID: 1, Exact: true, tables: map[string]*PlannedTable{}}
			p.tables[first] = &PlannedTable{Table: first, Deleted: a}
			if first != second {
				p.tables[second] = &PlannedTable{Table: second, Deleted: b}
			}
			p.Jobs = append(p.Jobs, "destroy_group", job)
			assert.NoError(t, p.Finish())
			return p.Digest
		}
		assert.That(t, table == other || digest(table, other, n, m) == digest(other, table, m, n),
			"the order of tables is in the digest")
		if n != 0 && table != other && digest(table, other, n, m) == digest(table, other, n+1, m) {
			t.Error("the number of rows is not in the digest")
		}
	})
}

func TestPlan_ThatTakesTooLongHasCountedAtLeastWhatItHas(t *testing.T) {
	t.Parallel()
	p := &Plan{Exact: true, ends: time.Now().Add(-time.Second), tables: map[string]*PlannedTable{"issues": {Table: "issues", Deleted: 7}}}
	err := p.CheckStop()
	assert.Require(t, errors.Is(err, ErrPlanTime), "%v", err)
	if err := p.AddRefusal(t.Context(), err); err != nil || p.Exact || !p.tables["issues"].AtLeast || p.tables["issues"].Deleted != 7 {
		t.Errorf("%v, %+v", err, p)
	}
}

// renewing is a run whose lease is being renewed.
func renewing(t *testing.T) *Execution {
	t.Helper()
	x := &Execution{leases: &leaseSet{permits: semaphore.NewWeighted(allPermits)}}
	x.stopRequested, x.requestStop = context.WithCancelCause(t.Context())
	assert.NoError(t, x.leases.permits.Acquire(t.Context(), allPermits))
	return x
}

func TestPermit_WaitForARenewalEndsWhenTheRunIsToStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := renewing(t)
		time.AfterFunc(time.Second, func() { x.RequestStop(ErrShutdown) }) //nolint:gocritic // elapses: by the clock of the bubble
		if err := x.waitForRenewal(t.Context()); !errors.Is(err, ErrShutdown) {
			t.Errorf("%v, want %v", err, ErrShutdown)
		}
	})
}

func TestPermit_WaitForARenewalIsInTheTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		x := renewing(t)
		x.Tracer = traces.Tracer("")
		time.AfterFunc(2*time.Second, func() { x.leases.permits.Release(allPermits) }) //nolint:gocritic // elapses: by the clock of the bubble
		ctx := repo.WithSpans(t.Context())
		assert.NoError(t, x.Batch(ctx, x.waitForRenewal))
		two := attribute.Float64("maintenance.waited_seconds", 2)
		ofBatch, ofRun := spans.Ended()[0].Attributes(), repo.SpansAttributes(ctx)
		assert.That(t, slices.Contains(ofBatch, two) && slices.Contains(ofRun, two), "%v and %v, want two seconds of both", ofBatch, ofRun)
	})
}

// Whatever the expression: it is refused, or each fire is a whole minute behind the time that was asked
// about, and nothing fires in between.
func FuzzParseSchedule(f *testing.F) {
	for _, expression := range []string{
		"* * * * *", "*/2 * * * *", "0 0 * * *", "0 2 * * 1-5", "15,45 3 1 */3 *", "0 0 29 2 *", "59 23 31 12 7", "0 0 30 2 *",
		"@daily", "@every 1s", "TZ=Asia/Tokyo 0 0 * * *", "CRON_TZ=X * * * * *", "0 0 ? * MON", "60 * * * *", "", "* * * * * *", "*/0 * * * *",
	} {
		f.Add(expression, int64(1_790_000_000))
	}
	f.Fuzz(func(t *testing.T, expression string, seconds int64) {
		schedule, err := ParseSchedule(expression)
		if err != nil {
			return
		}
		// Years 1970 to 2106.
		from := time.Unix(seconds&(1<<32-1), 0).UTC()
		fire := schedule.Next(from)
		if fire.IsZero() {
			return
		}
		assert.Require(t, fire.After(from) && fire.Second() == 0 && fire.Nanosecond() == 0 &&
			fire.Location() == time.UTC, "%q fires at %s after %s", expression, fire, from)
		if again := schedule.Next(fire.Add(-time.Second)); !again.Equal(fire) {
			t.Errorf("%q fires at %s, and at %s if one asks a second before", expression, fire, again)
		}
		minute := from.Truncate(time.Minute)
		for range 24 * 60 {
			if minute = minute.Add(time.Minute); !minute.Before(fire) {
				return
			}
			if next := schedule.Next(minute.Add(-time.Second)); !next.Equal(fire) {
				t.Fatalf("%q fires at %s, which is between %s and %s", expression, next, from, fire)
			}
		}
	})
}

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
		if got := pauseFor(c.worked, c.ratio); got != c.want {
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
		x := &Execution{started: time.Now(), loads: &Loads{config: LoadConfig{Patience: 20 * time.Second}}}
		e := &Excess{began: time.Now().Add(-time.Hour)}
		assert.That(t, !x.timedOut(e), "timed out at the start of the run")
		time.Sleep(20 * time.Second) //nolint:forbidigo // in a synctest bubble
		assert.That(t, x.timedOut(e), "not timed out after 20 s")
	})
}

func TestExcess_IsNamedWithItsValueItsLimitAndItsKey(t *testing.T) {
	c := LoadConfig{MaxReplicaLag: 30 * time.Second, MaxWALRate: 64 << 20, MaxLockWait: 5 * time.Second}
	load := repo.Load{Replica: "r1", Lag: 72500 * time.Millisecond, WALRate: 100 << 20, Queues: []repo.LockQueue{
		{Table: "public.notes", Root: "public.notes", Seconds: 7},
		{Table: "public.issues", Root: "public.issues", Seconds: 5},
	}}
	var got []string
	for _, e := range c.excesses("ci", load) {
		got = append(got, e.String())
	}
	want := []string{
		"replica r1 of ci is late: 1m12.5s, over load.max_replica_lag = 30s",
		"write-ahead log of ci a second: 100MB, over load.max_wal_rate = 64MB",
		"somebody waits for a lock on public.notes of ci: 7s, over load.max_lock_wait = 5s",
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
				rested, ofRun, first := throttle.pause(t.Context(), e, 3*time.Second)
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
		_, last, _ := throttle.pause(t.Context(), e, time.Second)
		if _, rested := throttle.state(); rested != 5*time.Second || counted+last != rested || firsts != 1 {
			t.Errorf("the run has rested for %s, counted as %s, begun %d times; want 5s, once", rested, counted+last, firsts)
		}
	})
}

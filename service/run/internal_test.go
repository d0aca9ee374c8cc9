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
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"golang.org/x/sync/semaphore"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

func TestExpected_TheFirstHundredThatArePassedOverAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	x := &Execution{
		Log:     slog.New(slog.NewTextHandler(&log, nil)),
		allowed: map[target]string{{control.KindUser, 7}: ActionDelete},
	}
	for id := range int64(150) {
		got := x.MayTouch(control.KindUser, id, ActionDelete)
		assert.That(t, got == (id == 7), "user %d: %t", id, got)
	}
	assert.Equal(t, strings.Count(log.String(), "candidate not in approved list, skipped"), 100, "lines")
	assert.That(t, strings.Contains(log.String(), "kind=user id=0\n"), "%v", log.String())
}

// digestOf is that of a dry run that finds these.
func digestOf(found ...control.Candidate) string {
	x := &Execution{DryRun: true, found: candidates{digest: sha256.New()}}
	for _, c := range found {
		x.Candidate(c)
	}
	return hex.EncodeToString(x.found.digest.Sum(nil))
}

// A digest covers the targets, their order, the actions and their reasons, and nothing else. No
// text of one candidate can be taken for another one.
func FuzzCandidatesDigest(f *testing.F) {
	f.Add("user", int64(1), "queue", "", "user", int64(2), "queue", "")
	f.Add("user", int64(1), "queue", "a\n", "group", int64(1), "hold", "\"b\"")
	f.Add("user", int64(1), "queue", "x\"\nuser 2 queue \"", "user", int64(2), "queue", "")
	f.Fuzz(func(t *testing.T, kind string, id int64, action, reason, kind2 string, id2 int64, action2, reason2 string) {
		// Kinds and actions are words of ours.
		kinds, actions := []string{"user", "group", "placeholder"}, []string{ActionDelete, ActionQueue, ActionHold}
		one := control.Candidate{Kind: kinds[len(kind)%3], ID: id, Action: actions[len(action)%3], Reason: reason}
		two := control.Candidate{Kind: kinds[len(kind2)%3], ID: id2, Action: actions[len(action2)%3], Reason: reason2}
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
		time.AfterFunc(time.Second, func() { x.RequestStop(fault.ErrShutdown) }) //nolint:gocritic // elapses: by the clock of the bubble
		if err := x.waitForRenewal(t.Context()); !errors.Is(err, fault.ErrShutdown) {
			t.Errorf("%v, want %v", err, fault.ErrShutdown)
		}
	})
}

func TestPermit_WaitForARenewalIsInTheTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		recorder := tracetest.NewSpanRecorder()
		traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
		x := renewing(t)
		x.Tracer = traces.Tracer("")
		time.AfterFunc(2*time.Second, func() { x.leases.permits.Release(allPermits) }) //nolint:gocritic // elapses: by the clock of the bubble
		ctx := spans.WithSpans(t.Context())
		assert.NoError(t, x.Batch(ctx, x.waitForRenewal))
		two := attribute.Float64("maintenance.waited_seconds", 2)
		ofBatch, ofRun := recorder.Ended()[0].Attributes(), spans.Attributes(ctx)
		assert.That(t, slices.Contains(ofBatch, two) && slices.Contains(ofRun, two), "%v and %v, want two seconds of both", ofBatch, ofRun)
	})
}

// Any expression is refused, or each fire is a whole minute after the requested time, and nothing
// fires in between.
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

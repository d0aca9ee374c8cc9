package web

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestManyBrowsers_CostOneReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recent{known: map[string]*reading{}}
		var loads atomic.Int64
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				got := read(t.Context(), r, "x", readEvery, func(context.Context) (int64, error) {
					time.Sleep(time.Second) //nolint:forbidigo // in a synctest bubble
					return loads.Add(1), nil
				})
				assert.That(t, got.Value == 1 && !got.Stale(), "got %+v", got)
			})
		}
		wait.Wait()
		time.Sleep(readEvery) //nolint:forbidigo // in a synctest bubble
		if got := read(t.Context(), r, "x", readEvery, func(context.Context) (int64, error) { return loads.Add(1), nil }); got.Value != 2 {
			t.Errorf("later: got %+v", got)
		}
	})
}

func TestFailedReading_KeepsWhatWasKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recent{known: map[string]*reading{}}
		load := func(value int, err error) part[int] {
			defer time.Sleep(readEvery) //nolint:forbidigo // in a synctest bubble
			return read(t.Context(), r, "x", readEvery, func(context.Context) (int, error) { return value, err })
		}
		if got := load(0, errors.New("down")); !got.Stale() || !got.At.IsZero() {
			t.Errorf("never read: got %+v", got)
		}
		first := load(7, nil)
		if got := load(0, errors.New("down")); !got.Stale() || got.Value != 7 || !got.At.Equal(first.At) {
			t.Errorf("got %+v", got)
		}
		if got := load(8, nil); got.Stale() || got.Value != 8 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestReadings_AreForgottenWhenThereAreTooMany(t *testing.T) {
	t.Parallel()
	r := &recent{known: map[string]*reading{}}
	for i := range 10 * maxReadings {
		read(t.Context(), r, fmt.Sprint(i), readEvery, func(context.Context) (int, error) { return i, nil })
	}
	assert.That(t, len(r.known) <= maxReadings, "%d are maxReadings", len(r.known))
}

package web

import (
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
)

func samples(at time.Time, values map[time.Duration]int64, order ...time.Duration) (out []service.BacklogSample) {
	for _, d := range order {
		out = append(out, service.BacklogSample{At: at.Add(-d), Pending: values[d]})
	}
	return out
}

func TestCurve_EndsWithThePresentValueAndHasGaps(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	kept := samples(at, map[time.Duration]int64{3 * time.Hour: 50, 3*time.Hour - 4*time.Minute: 100, 4 * time.Minute: 20},
		3*time.Hour, 3*time.Hour-4*time.Minute, 4*time.Minute)
	c := newCurve(kept, 0, at, overviewSpan)
	assert.That(t, c.Peak == 100 && c.Least == 0 && c.Last == 0 && c.Span == overviewSpan, "got %+v", c)
	if want := "M300.0 50.0L306.7 0.0M593.3 80.0L600.0 100.0"; c.Line != want {
		t.Errorf("got %s, want %s", c.Line, want)
	}
	assert.Equal(t, strings.Count(c.Area, "Z"), 2, "areas in", c.Area)
}

func TestCurve_OfAYoungServerBeginsAnHourAgo(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	c := newCurve(samples(at, map[time.Duration]int64{2 * time.Minute: 7}, 2*time.Minute), 7, at, overviewSpan)
	assert.That(t, c.Span == time.Hour && c.Line == "M580.0 0.0L600.0 0.0", "got %+v", c)
}

func TestCurve_OfNothingIsNone(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	if c := newCurve(samples(at, nil, 7*time.Hour), 7, at, overviewSpan); c != nil {
		t.Errorf("got %+v", c)
	}
}

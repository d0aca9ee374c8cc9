package pg

import (
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestLogMeter_RatesAreThoseOfTheLastSeconds(t *testing.T) {
	t.Parallel()
	var m logMeter
	start := time.Now()
	for _, c := range []struct {
		after    time.Duration
		position int64
		want     int64
	}{
		{0, 1000, 0},
		{time.Second, 2000, 0}, // too soon to tell
		{2 * time.Second, 5000, 2000},
		{3 * time.Second, 5000, 2000},
		{4 * time.Second, 5000, 0},
		{7 * time.Second, 8000, 1000},
		{7*time.Second + maxRateTime + 1, 1 << 40, 0}, // no search for long
		{20 * time.Second, 7000, 0},                   // another server
		{25 * time.Second, 12000, 1000},
	} {
		_, rate := m.Observe(c.position, c.position, start.Add(c.after))
		assert.Equal(t, rate, c.want, "after", c.after)
	}
}

func TestLogMeter_LagIsForHowLongSomethingHasNotBeenReplayed(t *testing.T) {
	t.Parallel()
	var m logMeter
	start := time.Now()
	for _, c := range []struct {
		after             time.Duration
		written, replayed int64
		want              time.Duration
	}{
		{0, 1000, 1000, 0},
		{time.Second, 2000, 1000, 0}, // written since the last probe
		{5 * time.Second, 3000, 1500, 4 * time.Second},
		{6 * time.Second, 3000, 2500, time.Second},
		{9 * time.Second, 4000, 2999, 4 * time.Second},
		{10 * time.Second, 4000, 4000, 0},
		{11 * time.Second, 5000, 4000, 0},
		{12 * time.Second, 500, 400, 0}, // another server
		{15 * time.Second, 500, 400, 3 * time.Second},
	} {
		lag, _ := m.Observe(c.written, c.replayed, start.Add(c.after))
		assert.Equal(t, lag, c.want, "after", c.after)
	}
}

func TestLogMeter_AConstantLagStaysOverItsLimit(t *testing.T) {
	t.Parallel()
	var m logMeter
	start := time.Now()
	for s := range int64(600) {
		lag, _ := m.Observe(1000*s, 1000*max(s-40, 0), start.Add(time.Duration(s)*time.Second))
		assert.That(t, s < 40 || lag >= 37*time.Second && lag <= 40*time.Second, "%s after %d s", lag, s)
		assert.That(t, len(m.unreplayed) <= 40, "%d positions after %d s", len(m.unreplayed), s)
	}
	for s := int64(600); s < 100_000; s++ {
		m.Observe(1000*s, 600_000, start.Add(time.Duration(s)*time.Second))
	}
	assert.That(t, len(m.unreplayed) <= 200, "%d positions after a day", len(m.unreplayed))
}

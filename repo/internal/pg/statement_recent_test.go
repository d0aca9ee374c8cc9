package pg

import (
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestRecentTimes_ArePercentilesSinceTheLastCall(t *testing.T) {
	t.Parallel()
	var r recentTimes
	assert.Equal(t, r.take(), RecentTimes{}, "without a statement")
	for range 98 {
		r.add(10 * time.Millisecond)
	}
	r.add(time.Second)
	r.add(time.Hour)
	got := r.take()
	atMost := func(d, exact time.Duration) bool { return d >= exact && d <= exact*5/4+time.Microsecond }
	assert.That(t, got.Statements == 100 && atMost(got.P50, 10*time.Millisecond) && atMost(got.P99, time.Second), "got %+v", got)
	assert.Equal(t, r.take(), RecentTimes{}, "afterwards")
}

package pg

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// firstStep is the upper limit of the first step. Each other one is stepFactor times as high.
	firstStep  = 100 * time.Microsecond
	stepFactor = 1.25
	// timeSteps is the number of steps, up to two minutes.
	timeSteps = 64
)

// recentTimes counts the durations of statements since the last call of take.
type recentTimes [timeSteps]atomic.Int64

func (r *recentTimes) add(d time.Duration) {
	step := math.Ceil(math.Log(float64(max(d, firstStep))/float64(firstStep)) / math.Log(stepFactor))
	r[min(int(step), timeSteps-1)].Add(1)
}

// RecentTimes are percentiles of durations, each at most a quarter too high. Without any statement
// they are zero.
type RecentTimes struct {
	Statements int64
	P50, P99   time.Duration
}

// take returns the percentiles, and starts again.
func (r *recentTimes) take() (t RecentTimes) {
	var counts [timeSteps]int64
	for i := range r {
		counts[i] = r[i].Swap(0)
		t.Statements += counts[i]
	}
	below := int64(0)
	for i, n := range counts[:] {
		if below += n; n == 0 {
			continue
		}
		limit := time.Duration(float64(firstStep) * math.Pow(stepFactor, float64(i)))
		if t.P50 == 0 && below*2 >= t.Statements {
			t.P50 = limit
		}
		if t.P99 == 0 && below*100 >= t.Statements*99 {
			t.P99 = limit
		}
	}
	return t
}

// TakeTimes returns how long statements on this database took since the last call. Overhead does
// not count.
func (d *Database) TakeTimes() RecentTimes {
	if d.times == nil {
		return RecentTimes{}
	}
	return d.times.recent.take()
}

package run

import (
	"fmt"
	"time"
)

// Progress is how far a running run is through the items that were due. Clients compute it.
type Progress struct {
	// Done are the handled items, Total those and the ones still due. A Total of 0 means unknown.
	Done, Total int64
	// Elapsed is the time since the start of the run.
	Elapsed time.Duration
}

// Percent returns the handled percentage, at most 99, 0 if unknown.
func (p Progress) Percent() int64 {
	if p.Done > p.Total || p.Total <= 0 {
		return 0
	}
	return min(p.Done*100/p.Total, 99)
}

// steady is the running time from which a run's speed is meaningful.
const steady = 3 * time.Second

// Left estimates the remaining time from the speed so far. It returns "" if it is unknown or too early.
func (p Progress) Left() string {
	if p.Elapsed < steady || p.Percent() == 0 {
		return ""
	}
	left := time.Duration(float64(p.Elapsed) * float64(p.Total-p.Done) / float64(p.Done))
	switch {
	case left < 10*time.Second:
		return "a few seconds left"
	case left < 90*time.Second:
		return fmt.Sprintf("about %d s left", left.Round(10*time.Second)/time.Second)
	case left < 90*time.Minute:
		return fmt.Sprintf("about %d min left", left.Round(time.Minute)/time.Minute)
	}
	return fmt.Sprintf("about %d h left", left.Round(time.Hour)/time.Hour)
}

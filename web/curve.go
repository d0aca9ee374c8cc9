package web

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/status"
)

const (
	// overviewSpan and workerSpan limit the time span of curves. shortest is the minimum span.
	overviewSpan, workerSpan = 6 * time.Hour, 24 * time.Hour
	shortest                 = time.Hour
	// maxGap is the time between two samples from which on the curve has a gap.
	maxGap = 10 * time.Minute
	// The size of the drawing, in its own units.
	curveWidth, curveHeight = 600, 100
)

// curve is a backlog over time, as an SVG path in a box of curveWidth x curveHeight.
type curve struct {
	// Line is the curve. Area is the area below it.
	Line, Area string
	// Dead is the curve of dead items, "" if there were none.
	Dead string
	// Peak is the highest value, Least the lowest, and Last the current one.
	Peak, Least, Last int64
	Span              time.Duration
	From, To          time.Time
}

// Description describes the curve for screen readers.
func (c *curve) Description() string {
	return fmt.Sprintf("Backlog over the last %s: between %s and %s, now %s.",
		span(c.Span), format.Number(c.Least), format.Number(c.Peak), format.Number(c.Last))
}

// curveOf returns the curve of a worker. It ends with the last sample if the current backlog is
// unknown.
func curveOf(
	samples []status.BacklogSample, w status.Worker, at time.Time, most time.Duration,
) *curve {
	if !w.BacklogUnknown {
		return newCurve(samples, w.Backlog.Pending, at, most)
	}
	if len(samples) == 0 {
		return nil
	}
	last := samples[len(samples)-1]
	return newCurve(samples, last.Pending, last.At, most)
}

// newCurve returns a curve that ends with the current value, nil without samples in the span.
func newCurve(
	samples []status.BacklogSample, now int64, at time.Time, most time.Duration,
) *curve {
	c := &curve{To: at, Span: most, Last: now, Peak: now, Least: now}
	for len(samples) > 0 && at.Sub(samples[0].At) > most {
		samples = samples[1:]
	}
	if len(samples) == 0 {
		return nil
	}
	if at.Sub(samples[0].At) < shortest {
		c.Span = shortest
	}
	c.From = at.Add(-c.Span)
	var dead int64
	for _, s := range samples {
		c.Peak, c.Least = max(c.Peak, s.Pending), min(c.Least, s.Pending)
		dead = max(dead, s.Dead)
	}
	present := status.BacklogSample{At: at, Pending: now, Dead: samples[len(samples)-1].Dead}
	points := slices.Concat(samples, []status.BacklogSample{present})
	c.Line, c.Area = c.path(points, c.Peak,
		func(s status.BacklogSample) int64 { return s.Pending })
	if dead > 0 {
		c.Dead, _ = c.path(points, max(c.Peak, dead),
			func(s status.BacklogSample) int64 { return s.Dead })
	}
	return c
}

// path draws a value, with gaps where samples are missing.
func (c *curve) path(
	points []status.BacklogSample, peak int64, value func(status.BacklogSample) int64,
) (line, area string) {
	var lines, areas strings.Builder
	first := 0.0
	for i, s := range points {
		x := curveWidth * (1 - float64(c.To.Sub(s.At))/float64(c.Span))
		x = min(max(x, 0), curveWidth)
		y := curveHeight * (1 - float64(value(s))/float64(max(peak, 1)))
		if i == 0 || s.At.Sub(points[i-1].At) > maxGap {
			first = x
			fmt.Fprintf(&lines, "M%.1f %.1f", x, y)
			fmt.Fprintf(&areas, "M%.1f %dL%.1f %.1f", x, curveHeight, x, y)
		} else {
			fmt.Fprintf(&lines, "L%.1f %.1f", x, y)
			fmt.Fprintf(&areas, "L%.1f %.1f", x, y)
		}
		if i == len(points)-1 || points[i+1].At.Sub(s.At) > maxGap {
			fmt.Fprintf(&areas, "L%.1f %dL%.1f %dZ", x, curveHeight, first, curveHeight)
		}
	}
	return lines.String(), areas.String()
}

package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// samples are what was measured: by series, in the order of time. A series has no point where there was nothing to measure.
type samples struct {
	points map[string][]point
	// floors are the slopes an hour below which a series is not worth a look, whatever its mean.
	floors map[string]float64
}

type point struct{ hours, value float64 }

func (s *samples) add(name string, floor float64, at time.Duration, value float64) {
	if s.points == nil {
		s.points, s.floors = map[string][]point{}, map[string]float64{}
	}
	s.points[name] = append(s.points[name], point{at.Hours(), value})
	s.floors[name] = floor
}

// trend is where a series goes.
type trend struct {
	name string
	// n points were fitted. mean is theirs, slope and its standard error are an hour's.
	n                   int
	mean, slope, stdErr float64
	// bound is the slope that is too much.
	bound float64
}

// significance is how many standard errors a slope must be above 0 to count as one. smallRise is
// the part of the mean an hour that it must exceed, fewest the number of points.
const (
	significance = 2
	smallRise    = 0.01
	fewest       = 5
)

// rises reports whether the series goes up, and not by chance.
func (t trend) rises() bool {
	return t.n >= fewest && t.slope > significance*t.stdErr && t.slope > smallRise*math.Abs(t.mean)
}

// tooMuch reports whether it rises so much that the soak fails.
func (t trend) tooMuch() bool { return t.rises() && t.slope > t.bound }

// cannotTell reports whether it may rise too much for all one knows: the slope is no more certain than that.
func (t trend) cannotTell() bool {
	return t.n < fewest || !t.rises() && t.slope+significance*t.stdErr > max(t.bound, smallRise*math.Abs(t.mean))
}

// verdict reports whether it rises, as the report does.
func (t trend) verdict() string {
	switch {
	case t.cannotTell():
		return "cannot tell"
	case t.tooMuch():
		return "**yes, too much**"
	case t.rises():
		return "yes, within the bound"
	default:
		return "no"
	}
}

// trends fits a line to each series, after the warm-up: the first quarter.
func (s *samples) trends(o options) []trend {
	width := max(o.day, (o.time / 40).Truncate(o.day))
	var all []trend
	for _, name := range slices.Sorted(maps.Keys(s.points)) {
		t := fit(means(s.points[name], (o.time / 4).Hours(), width.Hours()))
		t.name, t.bound = name, max(o.bound/100*math.Abs(t.mean), s.floors[name])
		all = append(all, t)
	}
	return all
}

// means are those of the points from a time on, by whole days: within one, what the schedules do goes up and down.
func means(points []point, from, width float64) (of []point) {
	sums, counts := map[int]point{}, map[int]float64{}
	for _, p := range points {
		if p.hours >= from {
			k := int((p.hours - from) / width)
			sums[k] = point{sums[k].hours + p.hours, sums[k].value + p.value}
			counts[k]++
		}
	}
	for _, k := range slices.Sorted(maps.Keys(sums)) {
		of = append(of, point{sums[k].hours / counts[k], sums[k].value / counts[k]})
	}
	return of
}

// fit is the ordinary linear regression. Its standard error is that of points that depend on the
// previous one. Points on the same side of the line count less than as many on both sides.
func fit(points []point) (t trend) {
	t.n = len(points)
	if t.n == 0 {
		return t
	}
	var hours, sxx, sxy float64
	for _, p := range points {
		hours += p.hours / float64(t.n)
		t.mean += p.value / float64(t.n)
	}
	for _, p := range points {
		sxx += (p.hours - hours) * (p.hours - hours)
		sxy += (p.hours - hours) * (p.value - t.mean)
	}
	if t.n < 3 || sxx == 0 {
		return t
	}
	t.slope = sxy / sxx
	var squares, products, before float64
	for i, p := range points {
		off := p.value - t.mean - t.slope*(p.hours-hours)
		squares += off * off
		if i > 0 {
			products += off * before
		}
		before = off
	}
	t.stdErr = math.Sqrt(squares / float64(t.n-2) / sxx)
	if squares > 0 {
		r := min(max(products/squares, 0), 0.9)
		t.stdErr *= math.Sqrt((1 + r) / (1 - r))
	}
	return t
}

// failure is an error that names what went wrong and how to look further.
func failure(trends []trend, left []leftover, o options, dir string) error {
	var errs []error
	for _, t := range trends {
		if t.tooMuch() && !o.quick {
			errs = append(errs, fmt.Errorf("%s rises by %s an hour, %s are allowed: look at the series in %s, and run it for "+
				"longer, as a short run extrapolates (-time 4h)", t.name, figure(t.slope), figure(t.bound), filepath.Join(dir, samplesFile)))
		}
	}
	for _, l := range left {
		errs = append(errs, fmt.Errorf("%d %s in %s are left over: look for them in the servers' logs in %s, and keep the "+
			"database longer with -drain", l.rows, l.what, l.database, dir))
	}
	return errors.Join(errs...)
}

// samplesFile has all samples.
const samplesFile = "samples.csv"

func (s *samples) write(dir string) (err error) {
	file, err := os.Create(filepath.Join(dir, samplesFile))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := csv.NewWriter(file)
	rows := [][]string{{"series", "hours", "value"}}
	for _, name := range slices.Sorted(maps.Keys(s.points)) {
		for _, p := range s.points[name] {
			rows = append(rows, []string{name, strconv.FormatFloat(p.hours, 'f', 5, 64), strconv.FormatFloat(p.value, 'g', -1, 64)})
		}
	}
	return w.WriteAll(rows)
}

// figure writes a number with three digits that count.
func figure(f float64) string {
	switch a := math.Abs(f); {
	case a < 1e-9:
		return "0"
	case a >= 100:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case a < 0.01:
		return strconv.FormatFloat(f, 'g', 2, 64)
	default:
		return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(f, 'f', 2, 64), "0"), ".")
	}
}

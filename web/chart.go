package web

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/status"
)

const (
	// backlogStep is the time of a bar in the chart of a worker's backlog.
	backlogStep = 30 * time.Minute
	// barWidth and chartHeight are sizes of the drawing, in its own units.
	barWidth, chartHeight = 10, 40
	// databasesShown is the number of databases with charts.
	databasesShown = 4
)

// chart is a bar chart of the last day. A time without a sample has no bar.
type chart struct {
	Label string
	Width int
	Bars  []bar
}

// bar is one bar. Path draws its value, Part the part of it that has another color.
type bar struct{ Path, Part, Title string }

// bins are the values of the bars of a chart, each of a step.
type bins struct {
	from time.Time
	step time.Duration
	all  []bin
}

// bin has the values of a bar: all, a part of it, and both as text, "" for no sample.
type bin struct {
	all, part float64
	text      string
}

// lastDay returns the bins of a chart that ends now.
func lastDay(now time.Time, step time.Duration) bins {
	n := int(24 * time.Hour / step)
	from := now.UTC().Truncate(step).Add(-time.Duration(n-1) * step)
	return bins{from: from, step: step, all: make([]bin, n)}
}

// set sets the bin of a time, unless that is outside the chart.
func (b bins) set(t time.Time, value bin) {
	if i := int(t.Sub(b.from) / b.step); !t.Before(b.from) && i < len(b.all) {
		b.all[i] = value
	}
}

// chart draws the bins.
func (b bins) chart(label string) chart {
	c, peak := chart{Label: label, Width: len(b.all)*barWidth - 2}, 0.0
	for _, one := range b.all {
		peak = max(peak, one.all)
	}
	path := func(i int, value float64) string {
		if value <= 0 {
			return ""
		}
		height := max(chartHeight*value/peak, 1)
		return fmt.Sprintf("M%d %.3gh8V%dh-8z", i*barWidth, chartHeight-height, chartHeight)
	}
	for i, one := range b.all {
		if one.text != "" {
			begin := b.from.Add(time.Duration(i) * b.step)
			text := begin.Format("15:04") + " to " + begin.Add(b.step).Format("15:04") + ": " + one.text
			c.Bars = append(c.Bars, bar{path(i, one.all), path(i, one.part), text})
		}
	}
	return c
}

// backlogChart returns the chart of a worker's backlog. Each bar has the highest sample of its time.
func backlogChart(samples []status.BacklogSample, now time.Time) chart {
	b := lastDay(now, backlogStep)
	highest := map[time.Time]int64{}
	for _, s := range samples {
		at := s.At.Truncate(backlogStep)
		if most, known := highest[at]; known && s.Pending <= most {
			continue
		}
		highest[at] = s.Pending
		text := format.Number(s.Pending) + " pending, " + format.Number(s.Dead) + " dead"
		b.set(s.At, bin{float64(s.Pending), float64(s.Dead), text})
	}
	return b.chart("Backlog")
}

// Values returns the values of all bars as text.
func (c chart) Values() string {
	texts := make([]string, len(c.Bars))
	for i, b := range c.Bars {
		texts[i] = b.Title
	}
	return cmp.Or(strings.Join(texts, " · "), "no sample")
}

// workerRows are the rows that a worker's runs changed in the last day.
type workerRows struct {
	Worker           string
	Deleted, Updated int64
	Chart            chart
}

// Rows returns the changed rows by worker.
func (b *board) Rows() (all []workerRows) {
	for _, w := range b.Used() {
		rows, bins := workerRows{Worker: w.Worker}, lastDay(b.Changed.At, status.SampleStep)
		for _, c := range b.Changed.Value[w.Worker] {
			rows.Deleted, rows.Updated = rows.Deleted+c.Deleted, rows.Updated+c.Updated
			text := format.Number(c.Deleted) + " deleted, " + format.Number(c.Updated) + " updated"
			bins.set(c.At, bin{float64(c.Deleted + c.Updated), float64(c.Deleted), text})
		}
		rows.Chart = bins.chart("Rows changed by " + w.Worker)
		all = append(all, rows)
	}
	return all
}

// databaseRow has the figures of a database. A figure that is not known is "".
type databaseRow struct {
	Name, Pending, Oldest, P50, P99, Load string
	// Over reports that a limit of the load is exceeded.
	Over                   bool
	Backlog, Times, Limits chart
}

// Charts returns the charts of the database.
func (d databaseRow) Charts() []chart { return []chart{d.Backlog, d.Times, d.Limits} }

// Databases returns the figures of the databases with the largest backlogs.
func (b *board) Databases() (all []databaseRow) {
	found := slices.Clone(b.Figures.Value)
	slices.SortStableFunc(found, func(x, y status.DatabaseFigures) int {
		return cmp.Compare(y.Backlog.Pending, x.Backlog.Pending)
	})
	for _, f := range found[:min(len(found), databasesShown)] {
		all = append(all, newDatabaseRow(f, b.Samples.Value[f.Name], b.Samples.At))
	}
	return all
}

// MoreDatabases returns the number of databases without charts.
func (b *board) MoreDatabases() int64 {
	return int64(max(len(b.Figures.Value)-databasesShown, 0))
}

// newDatabaseRow returns the current figures of a database and their charts.
func newDatabaseRow(
	f status.DatabaseFigures, samples []status.DatabaseSample, now time.Time,
) databaseRow {
	row := databaseRow{Name: f.Name}
	if f.Known {
		row.Pending = format.Number(f.Backlog.Pending)
		if f.Backlog.AtLeast {
			row.Pending = "at least " + row.Pending
		}
		row.Oldest = "–"
		if !f.Backlog.OldestAt.IsZero() {
			row.Oldest = span(time.Since(f.Backlog.OldestAt))
		}
	}
	worst := -1.0
	if f.LoadKnown {
		row.Load = "no limit is set"
	}
	for _, m := range f.Load {
		if m.Ratio > worst {
			worst = m.Ratio
			row.Load, row.Over = fmt.Sprintf("%s %s of %s", m.Name, m.Value, m.Limit), m.Ratio > 1
		}
	}
	backlog := lastDay(now, status.SampleStep)
	times, limits := lastDay(now, status.SampleStep), lastDay(now, status.SampleStep)
	for _, s := range samples {
		if s.Pending != nil {
			text := format.Number(*s.Pending) + " pending, oldest " + span(seconds(s.Oldest))
			backlog.set(s.At, bin{all: float64(*s.Pending), text: text})
		}
		if s.P50 != nil && s.P99 != nil {
			p50, p99 := lasted(seconds(s.P50)), lasted(seconds(s.P99))
			if now.Sub(s.At) < status.SampleStep {
				row.P50, row.P99 = p50, p99
			}
			times.set(s.At, bin{*s.P99, *s.P50, "p50 " + p50 + ", p99 " + p99})
		}
		if s.Load != nil {
			text := fmt.Sprintf("%.0f%% of the limit", 100**s.Load)
			limits.set(s.At, bin{all: *s.Load, text: text})
		}
	}
	row.Backlog = backlog.chart("Backlog of " + f.Name)
	row.Times = times.chart("Duration of statements on " + f.Name)
	row.Limits = limits.chart("Load of " + f.Name)
	return row
}

// seconds returns a number of seconds as a duration, 0 for nil.
func seconds(s *float64) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}

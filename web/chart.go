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
	// chartBars is the number of bars, each of status.SampleStep: together a day.
	chartBars = 12
	// barWidth and chartHeight are sizes of the drawing, in its own units.
	barWidth, chartHeight = 10, 40
	// databasesShown is the number of databases with charts.
	databasesShown = 4
)

// chart is a bar chart of the last day. A time without a sample has no bar.
type chart struct {
	Label string
	Bars  []bar
}

// bar is one bar. Path draws its value, Part the part of it that has another color.
type bar struct{ Path, Part, Title string }

// bin has the values of a bar: all, a part of it, and both as text, "" for no sample.
type bin struct {
	all, part float64
	text      string
}

// chartFrom returns the beginning of a chart that ends now.
func chartFrom(now time.Time) time.Time {
	return now.UTC().Truncate(status.SampleStep).Add(-(chartBars - 1) * status.SampleStep)
}

// set sets the bin of a time, unless that is outside the chart.
func set(bins *[chartBars]bin, from, t time.Time, b bin) {
	if i := int(t.Sub(from) / status.SampleStep); !t.Before(from) && i < chartBars {
		bins[i] = b
	}
}

// newChart draws bins.
func newChart(label string, from time.Time, bins [chartBars]bin) (c chart) {
	c.Label = label
	peak := 0.0
	for _, b := range bins {
		peak = max(peak, b.all)
	}
	path := func(i int, value float64) string {
		if value <= 0 {
			return ""
		}
		height := max(chartHeight*value/peak, 1)
		return fmt.Sprintf("M%d %.3gh8V%dh-8z", i*barWidth, chartHeight-height, chartHeight)
	}
	for i, b := range bins {
		if b.text != "" {
			begin := from.Add(time.Duration(i) * status.SampleStep)
			text := begin.Format("15:04") + " to " + begin.Add(status.SampleStep).Format("15:04") + ": " + b.text
			c.Bars = append(c.Bars, bar{path(i, b.all), path(i, b.part), text})
		}
	}
	return c
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
	from := chartFrom(b.Changed.At)
	for _, w := range b.Used() {
		rows := workerRows{Worker: w.Worker}
		var bins [chartBars]bin
		for _, c := range b.Changed.Value[w.Worker] {
			rows.Deleted, rows.Updated = rows.Deleted+c.Deleted, rows.Updated+c.Updated
			text := format.Number(c.Deleted) + " deleted, " + format.Number(c.Updated) + " updated"
			set(&bins, from, c.At, bin{float64(c.Deleted + c.Updated), float64(c.Deleted), text})
		}
		rows.Chart = newChart("Rows changed by "+w.Worker, from, bins)
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
	row, from := databaseRow{Name: f.Name}, chartFrom(now)
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
	var backlog, times, limits [chartBars]bin
	for _, s := range samples {
		if s.Pending != nil {
			text := format.Number(*s.Pending) + " pending, oldest " + span(seconds(s.Oldest))
			set(&backlog, from, s.At, bin{all: float64(*s.Pending), text: text})
		}
		if s.P50 != nil && s.P99 != nil {
			row.P50, row.P99 = lasted(seconds(s.P50)), lasted(seconds(s.P99))
			set(&times, from, s.At, bin{*s.P99, *s.P50, "p50 " + row.P50 + ", p99 " + row.P99})
		}
		if s.Load != nil {
			text := fmt.Sprintf("%.0f%% of the limit", 100**s.Load)
			set(&limits, from, s.At, bin{all: *s.Load, text: text})
		}
	}
	row.Backlog = newChart("Backlog of "+f.Name, from, backlog)
	row.Times = newChart("Duration of statements on "+f.Name, from, times)
	row.Limits = newChart("Load of "+f.Name, from, limits)
	return row
}

// seconds returns a number of seconds as a duration, 0 for nil.
func seconds(s *float64) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}

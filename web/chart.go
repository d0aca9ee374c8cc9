package web

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/status"
)

const (
	// chartBars is the number of bars, each of chartStep: together a day.
	chartBars, chartStep = 12, 2 * time.Hour
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

// bin has the values of a bar: all, a part of it, and both as text.
type bin struct {
	known     bool
	all, part float64
	text      string
}

// chartFrom returns the beginning of a chart that ends now.
func chartFrom(now time.Time) time.Time {
	return now.UTC().Truncate(chartStep).Add(-(chartBars - 1) * chartStep)
}

// at returns the bin of a time, nil outside the chart.
func at(bins *[chartBars]bin, from, t time.Time) *bin {
	i := int(t.Sub(from) / chartStep)
	if t.Before(from) || i >= chartBars {
		return nil
	}
	bins[i].known = true
	return &bins[i]
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
		if b.known {
			begin := from.Add(time.Duration(i) * chartStep)
			text := begin.Format("15:04") + " to " + begin.Add(chartStep).Format("15:04") + ": " + b.text
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
		var sums [chartBars]status.ChangedRows
		for _, c := range b.Changed.Value[w.Worker] {
			rows.Deleted, rows.Updated = rows.Deleted+c.Deleted, rows.Updated+c.Updated
			if bin := at(&bins, from, c.Hour); bin != nil {
				sum := &sums[int(c.Hour.Sub(from)/chartStep)]
				sum.Deleted, sum.Updated = sum.Deleted+c.Deleted, sum.Updated+c.Updated
				bin.all, bin.part = float64(sum.Deleted+sum.Updated), float64(sum.Deleted)
				bin.text = format.Number(sum.Deleted) + " deleted, " + format.Number(sum.Updated) + " updated"
			}
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
		if b := at(&backlog, from, s.At); b != nil {
			b.known = s.Pending != nil || b.text != ""
			if s.Pending != nil && (b.text == "" || float64(*s.Pending) > b.all) {
				b.all, b.text = float64(*s.Pending), format.Number(*s.Pending)+" pending, oldest "+span(seconds(s.Oldest))
			}
		}
		if b := at(&times, from, s.At); b != nil {
			b.known = s.P99 != nil || b.text != ""
			if s.P99 != nil {
				row.P50, row.P99 = lasted(seconds(s.P50)), lasted(seconds(s.P99))
				b.all, b.part = max(b.all, *s.P99), max(b.part, *s.P50)
				b.text = "p50 " + lasted(seconds(&b.part)) + ", p99 " + lasted(seconds(&b.all))
			}
		}
		if b := at(&limits, from, s.At); b != nil {
			b.known = s.Load != nil || b.text != ""
			if s.Load != nil {
				b.all = max(b.all, *s.Load)
				b.text = fmt.Sprintf("%.0f%% of the limit", math.Round(100*b.all))
			}
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

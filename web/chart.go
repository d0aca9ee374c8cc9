package web

import (
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/status"
)

// barWidth and chartHeight are sizes of the drawing, in its own units.
const barWidth, chartHeight = 10, 40

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
	b := lastDay(now, status.BacklogStep)
	for _, s := range samples {
		text := format.Number(s.Pending) + " pending, " + format.Number(s.Dead) + " dead"
		b.set(s.At, bin{float64(s.Pending + s.Dead), float64(s.Dead), text})
	}
	return b.chart("Backlog")
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

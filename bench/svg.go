package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// chart is a picture of figures over a size: panels one above the other with one x axis. It is drawn for a page of any
// colour: lines and letters change with the reader's preference for dark.
type chart struct {
	title, x string
	panels   []panel
}

// panel has its title, which names the unit, and lines on one y axis.
type panel struct {
	title string
	lines []line
}

type line struct {
	name   string
	points []point
}

// point is the median of several rounds at a size, with the least and the greatest.
type point struct{ x, low, mid, high float64 }

// over is the point of what the rounds measured.
func over(x int, measured []float64) point {
	return point{float64(x), slices.Min(measured), median(measured), slices.Max(measured)}
}

// Where things are, in pixels.
const (
	chartWidth, chartLeft, chartRight = 720, 70, 690
	chartTop, panelStep, panelHeight  = 76, 190, 130
	chartBottom                       = 40
	// chartInset keeps the outermost points off the frame.
	chartInset = 20
	// wide is the quotient of the greatest and the least value from which on an axis is logarithmic.
	wide = 30
)

const chartStyle = `<style>
text{font:12px sans-serif;fill:#333}.title{font-size:15px;font-weight:bold}.name{font-weight:bold}
.grid{stroke:#ccc;fill:none}.l0{--c:#1b6ac9}.l1{--c:#c8431d}.l2{--c:#2a7d2e}.l3{--c:#8a45b5}
.line{stroke:var(--c);fill:none;stroke-width:2}.bar{stroke:var(--c)}.dot,.key{fill:var(--c)}
.l1.line{stroke-dasharray:7 3}.l2.line{stroke-dasharray:2 3}.l3.line{stroke-dasharray:9 3 2 3}
@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#555}
.l0{--c:#6cb0ff}.l1{--c:#ff8f6b}.l2{--c:#74cf78}.l3{--c:#cf9bf0}}
</style>
`

// String is the chart in SVG.
func (c chart) String() string {
	var out strings.Builder
	height := chartTop + len(c.panels)*panelStep + chartBottom - (panelStep - panelHeight)
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%d" role="img">`+"\n",
		chartWidth, height, height)
	title := html.EscapeString(c.title)
	fmt.Fprintf(&out, "<title>%s</title>\n%s<text class=\"title\" x=\"10\" y=\"22\">%[1]s</text>\n", title, chartStyle)
	var sizes []float64
	for _, p := range c.panels {
		for _, l := range p.lines {
			for _, at := range l.points {
				sizes = append(sizes, at.x)
			}
		}
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	x := axisOf(sizes, chartLeft+chartInset, chartRight-chartInset)
	for i, p := range c.panels {
		p.draw(&out, x, sizes, float64(chartTop+i*panelStep))
	}
	fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="middle">%s%s</text>`+"\n</svg>\n",
		(chartLeft+chartRight)/2, height-8, html.EscapeString(c.x), x.remark())
	return out.String()
}

func (p panel) draw(out *strings.Builder, x axis, sizes []float64, top float64) {
	bottom := top + panelHeight
	var values []float64
	for _, l := range p.lines {
		for _, at := range l.points {
			values = append(values, at.low, at.high)
		}
	}
	y, ticks := axisOf(values, bottom, top).rounded()
	fmt.Fprintf(out, `<text x="%d" y="%.0f">%s%s</text>`+"\n", chartLeft, top-8, html.EscapeString(p.title), y.remark())
	for _, tick := range ticks {
		fmt.Fprintf(out, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			chartLeft, y.at(tick), chartRight, chartLeft-6, y.at(tick)+4, short(tick))
	}
	for _, size := range sizes {
		fmt.Fprintf(out, `<path class="grid" d="M%.1f %.1fv5"/><text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n",
			x.at(size), bottom, x.at(size), bottom+18, short(size))
	}
	right := float64(chartRight)
	for i, l := range slices.Backward(p.lines) {
		if len(p.lines) > 1 {
			fmt.Fprintf(out, `<text class="name key l%d" x="%.0f" y="%.0f" text-anchor="end">%s</text>`+"\n",
				i, right, top-8, html.EscapeString(l.name))
			right -= float64(7*len(l.name) + 18)
		}
		l.draw(out, fmt.Sprintf("l%d", i), x, y)
	}
}

func (l line) draw(out *strings.Builder, class string, x, y axis) {
	path := make([]string, len(l.points))
	for i, p := range l.points {
		path[i] = fmt.Sprintf("%.1f %.1f", x.at(p.x), y.at(p.mid))
	}
	fmt.Fprintf(out, `<path class="%s line" d="M%s"/>`+"\n", class, strings.Join(path, "L"))
	for _, p := range l.points {
		fmt.Fprintf(out, `<path class="%s bar" d="M%.1f %.1fV%.1f"/><circle class="%[1]s dot" cx="%.1[2]f" cy="%.1[5]f" r="3.5"/>`+"\n",
			class, x.at(p.x), y.at(p.low), y.at(p.high), y.at(p.mid))
	}
}

// axis maps values from low to high to pixels.
type axis struct {
	low, high, from, to float64
	log                 bool
}

// axisOf is an axis that has just room for the values.
func axisOf(values []float64, from, to float64) axis {
	if len(values) == 0 {
		values = []float64{0}
	}
	a := axis{low: slices.Min(values), high: slices.Max(values), from: from, to: to}
	a.log = a.low > 0 && a.high/a.low >= wide
	return a
}

func (a axis) at(value float64) float64 {
	low, high := a.low, a.high
	if a.log {
		low, high, value = math.Log10(low), math.Log10(high), math.Log10(value)
	}
	if high == low {
		return (a.from + a.to) / 2
	}
	return a.from + (value-low)/(high-low)*(a.to-a.from)
}

// rounded widens the axis to round numbers, from zero on if it is linear, and returns them.
func (a axis) rounded() (axis, []float64) {
	var ticks []float64
	if a.log {
		low, high := int(math.Floor(math.Log10(a.low))), int(math.Ceil(math.Log10(a.high)))
		for exponent := low; exponent <= high; exponent++ {
			ticks = append(ticks, math.Pow10(exponent))
		}
	} else {
		step := roundStep(max(a.high, 1e-9) / 4)
		for i := range int(math.Ceil(max(a.high, 1e-9)/step)) + 1 {
			ticks = append(ticks, float64(i)*step)
		}
	}
	a.low, a.high = ticks[0], ticks[len(ticks)-1]
	return a, ticks
}

// roundStep is the least of 1, 2 and 5 times a power of ten that is no less.
func roundStep(least float64) float64 {
	power := math.Pow10(int(math.Floor(math.Log10(least))))
	for _, times := range []float64{1, 2, 5} {
		if times*power >= least {
			return times * power
		}
	}
	return 10 * power
}

func (a axis) remark() string {
	if a.log {
		return " (log scale)"
	}
	return ""
}

// short writes a number as a label: 20k, 1M.
func short(value float64) string {
	unit := ""
	switch {
	case value >= 1e6:
		value, unit = value/1e6, "M"
	case value >= 1e3:
		value, unit = value/1e3, "k"
	}
	return strconv.FormatFloat(value, 'g', 4, 64) + unit
}

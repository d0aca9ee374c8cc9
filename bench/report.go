package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// report is a table in Markdown with what follows from it.
type report struct {
	header []string
	rows   [][]string
	notes  []string
}

func (r *report) row(cells ...string) { r.rows = append(r.rows, cells) }

func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// target notes a figure beside what it is to be. Sizes for a quick look decide nothing.
func (l *lab) target(r *report, what, wanted, is string, met bool) {
	verdict := "missed"
	switch {
	case l.quick:
		verdict = "which at this size means nothing"
	case met:
		verdict = "met"
	}
	r.note("Target: %s %s. Measured: %s, %s.", what, wanted, is, verdict)
}

// String is the report in Markdown, its columns aligned for reading as it is.
func (r *report) String() string {
	var out strings.Builder
	widths := make([]int, len(r.header))
	for _, row := range append([][]string{r.header}, r.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	line := func(cells []string, fill string) {
		for i, width := range widths {
			fmt.Fprintf(&out, "| %s%s ", cells[i], strings.Repeat(fill, width-utf8.RuneCountInString(cells[i])))
		}
		out.WriteString("|\n")
	}
	line(r.header, " ")
	line(make([]string, len(r.header)), "-")
	for _, row := range r.rows {
		line(row, " ")
	}
	for _, note := range r.notes {
		out.WriteString("\n" + note + "\n")
	}
	return out.String()
}

// median of what was measured. Of an even number the upper one.
func median[T cmp.Ordered](of []T) T { return percentile(of, 50) }

// percentile is the smallest value that so many in a hundred do not exceed. Of nothing it is zero.
func percentile[T cmp.Ordered](of []T, percent int) (zero T) {
	if len(of) == 0 {
		return zero
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

// ratios compares what was measured in the same round.
func ratios(of, to []time.Duration) []float64 {
	out := make([]float64, len(of))
	for i := range of {
		out[i] = of[i].Seconds() / to[i].Seconds()
	}
	return out
}

func quotients(of, to []float64) []float64 {
	out := make([]float64, len(of))
	for i := range of {
		out[i] = of[i] / max(to[i], clockTick)
	}
	return out
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func spread(of []time.Duration) string {
	return fmt.Sprintf("%.3f to %.3f s", slices.Min(of).Seconds(), slices.Max(of).Seconds())
}

func times(ratio float64) string { return fmt.Sprintf("%.2f ×", ratio) }

func perSecond(n int64, d time.Duration) string { return grouped(int64(float64(n) / d.Seconds())) }

// grouped writes a number with its thousands apart.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// columnOption is how a column is shown. Without options, cells are never cut, because users copy
// IDs and names.
type columnOption int

const (
	// cut columns are shortened if the terminal is too narrow. cutLast columns distinguish the rows,
	// and are shortened only after all others.
	cut columnOption = 1 << iota
	cutLast
	// dropFirst columns are omitted first on a narrow terminal, dropSecond columns after them.
	dropSecond
	dropFirst
	// timestamp columns are in UTC by their heading, and brief if the terminal is too narrow.
	timestamp
	// colored columns have a state in its color.
	colored
)

// column is a column of a table.
type column struct {
	name  string
	trait columnOption
}

// col returns a column with this heading and all the traits.
func col(name string, traits ...columnOption) (c column) {
	c.name = name
	for _, t := range traits {
		c.trait |= t
	}
	return c
}

// leastWidth is the smallest width of a cut column. leastMoment is the smallest width of a column
// with a state and a time.
// Columns that are dropped first do not make a cut column narrower than readableWidth.
const leastWidth, leastMoment, readableWidth = 8, len("succeeded 11-22 18:30"), 20

// printTable writes a row for each item, in aligned columns under a heading. On a terminal the rows
// fit its width. Times are brief, and columns are cut or omitted, which a line on the standard
// error reports. Elsewhere, and with --output wide, nothing is cut.
func printTable[T any](out *terminal, columns []column, items []T, row func(T) []any) error {
	rows, widths := layOut(out, columns, items, row)
	width := out.width()
	if width > 0 && total(widths) > width {
		out.shortTime = true
		rows, widths = layOut(out, columns, items, row)
		out.shortTime = false
		isMoment := func(c column) bool { return c.trait&timestamp != 0 }
		if !out.local && slices.ContainsFunc(columns, isMoment) {
			out.note("times are UTC")
		}
		if missing := fit(columns, widths, width); len(missing) > 0 {
			defer out.note("hidden to fit the terminal: %s (to show all columns, use --output wide)",
				strings.Join(missing, ", "))
		}
	}
	for n, cells := range rows {
		var line strings.Builder
		for i, text := range cells {
			if widths[i] < 0 {
				continue
			}
			text = shorten(text, widths[i])
			pad := strings.Repeat(" ", widths[i]-length(text)+2)
			if columns[i].trait&colored != 0 && n > 0 {
				text = out.colorize(text)
			}
			line.WriteString(text + pad)
		}
		if err := out.write(strings.TrimRight(line.String(), " ") + "\n"); err != nil {
			return err
		}
	}
	return nil
}

// printList is printTable for a list, which may be empty: then it prints a sentence.
func printList[T any](out *terminal, empty string, columns []column, items []T, row func(T) []any) error {
	if len(items) == 0 {
		return out.write(empty + "\n")
	}
	return printTable(out, columns, items, row)
}

// runID is the ID of a run after some text. A table shows its first characters: as many as the runs
// of the table differ in, at least leastID. With --output wide it shows all.
type runID struct{ before, id string }

// String returns the whole ID with its prefix, or none without an ID.
func (r runID) String() string {
	if r.id == "" {
		return none
	}
	return r.before + r.id
}

// leastID is the least number of characters of the ID of a run. They have its time in milliseconds,
// which distinguishes it from the runs that the table does not show.
const leastID = len("01a21e76-0223")

// shortenIDs shortens the IDs of runs in the cells of a table.
func shortenIDs(cells [][]any) {
	var ids []string
	for _, row := range cells {
		for _, v := range row {
			if r, ok := v.(runID); ok {
				ids = append(ids, r.id)
			}
		}
	}
	slices.Sort(ids)
	ids, length := slices.Compact(ids), leastID
	for i := range len(ids) - 1 {
		for len(ids[i]) >= length && strings.HasPrefix(ids[i+1], ids[i][:length]) {
			length++
		}
	}
	for _, row := range cells {
		for i, v := range row {
			if r, ok := v.(runID); ok {
				row[i] = runID{r.before, r.id[:min(length, len(r.id))]}
			}
		}
	}
}

// layOut returns the text of all cells, the heading first, and the widths of the columns.
func layOut[T any](
	out *terminal, columns []column, items []T, row func(T) []any,
) (rows [][]string, widths []int) {
	rows, widths = make([][]string, len(items)+1), make([]int, len(columns))
	for _, c := range columns {
		if c.trait&timestamp != 0 && !out.shortTime && !out.local {
			c.name += " (UTC)"
		}
		rows[0] = append(rows[0], c.name)
	}
	cells := make([][]any, len(items))
	for n, item := range items {
		cells[n] = row(item)
	}
	if !out.wide {
		shortenIDs(cells)
	}
	for n := range cells {
		for _, v := range cells[n] {
			rows[n+1] = append(rows[n+1], printable(out.localized(out.cell(v))))
		}
	}
	for _, cells := range rows {
		for i, cell := range cells {
			widths[i] = max(widths[i], length(cell))
		}
	}
	return rows, widths
}

// cell formats a value.
func (out *terminal) cell(v any) string {
	switch v := v.(type) {
	case *timestamppb.Timestamp:
		return out.at(v)
	case time.Time:
		return out.clock(v)
	}
	return fmt.Sprint(v)
}

// total returns the width of a row. An omitted column has the width -2.
func total(widths []int) int {
	all := -2
	for _, w := range widths {
		all += 2 + w
	}
	return all
}

// fit narrows columns to a width, and returns the names of the columns that it omits.
func fit(columns []column, widths []int, width int) (missing []string) {
	least, room := slices.Clone(widths), width+2
	for i, c := range columns {
		if c.trait&(cut|cutLast) != 0 {
			least[i] = min(widths[i], leastWidth)
		}
		if c.trait&cut != 0 && c.trait&timestamp != 0 {
			least[i] = min(widths[i], leastMoment)
		}
	}
	for _, rank := range []columnOption{0, dropSecond, dropFirst} {
		for i, c := range columns {
			switch {
			case rank == dropFirst && c.trait == cut:
				room -= max(min(widths[i], readableWidth)-least[i], 0)
			case rank == dropFirst && c.trait&cutLast != 0:
				room -= widths[i] - least[i]
			}
		}
		for i, c := range columns {
			switch {
			case c.trait&(dropSecond|dropFirst) != rank:
			case rank != 0 && 2+least[i] > room:
				widths[i] = -2
				missing = append(missing, c.name)
			default:
				room -= 2 + least[i]
			}
		}
	}
	for over := total(widths) - width; over > 0; over-- {
		widest := -1
		for i, w := range widths {
			last := columns[i].trait & cutLast
			if w > least[i] && (widest < 0 || last < columns[widest].trait&cutLast ||
				last == columns[widest].trait&cutLast && w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return missing
}

// length returns the number of characters.
func length(text string) int { return len([]rune(text)) }

// shorten cuts a text to a width.
func shorten(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:max(width-1, 0)]) + "…"
	}
	return text
}

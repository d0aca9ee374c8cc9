package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/caretaker-go/caretaker/service/run"
)

// columnOption is what a column is, besides text. Without one its cells are always whole, as those of IDs
// and names that people copy.
type columnOption int

const (
	// cut columns are cut where the terminal is too narrow.
	cut columnOption = 1 << iota
	// dropSecond columns are left out there; dropFirst ones before them.
	dropSecond
	dropFirst
	// timestamp is a time: UTC by its heading, and brief where the terminal is too narrow.
	timestamp
	// colored is the state of something, in its colour.
	colored
)

// column of a table.
type column struct {
	name  string
	trait columnOption
}

func col(name string, traits ...columnOption) (c column) {
	c.name = name
	for _, t := range traits {
		c.trait |= t
	}
	return c
}

// leastWidth is how much of a column is left at least when it is cut, leastMoment how much of one
// that has a time behind a state.
const leastWidth, leastMoment = 8, len("succeeded 11-22 18:30")

// printTable writes a row for each item, in aligned columns under a heading. On a terminal rows fit
// its width: times are brief, and columns are cut or left out, which a line on the standard error
// says. Elsewhere, and with --output wide, everything is whole.
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
			defer out.note("left out to fit the terminal: %s; --output wide shows all",
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

// layOut is the text of all cells, the heading first, with the widths of the columns.
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
	for n, item := range items {
		for _, v := range row(item) {
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

// cell is a value as text.
func (out *terminal) cell(v any) string {
	switch v := v.(type) {
	case *timestamppb.Timestamp:
		return out.at(v)
	case time.Time:
		return out.clock(v)
	}
	return fmt.Sprint(v)
}

// total is the width of a row. A column that is left out has the width -2.
func total(widths []int) int {
	all := -2
	for _, w := range widths {
		all += 2 + w
	}
	return all
}

// fit narrows columns to a width, and returns the names of those that it leaves out.
func fit(columns []column, widths []int, width int) (missing []string) {
	least, room := slices.Clone(widths), width+2
	for i, c := range columns {
		if c.trait&cut != 0 {
			least[i] = min(widths[i], leastWidth)
		}
		if c.trait&cut != 0 && c.trait&timestamp != 0 {
			least[i] = min(widths[i], leastMoment)
		}
	}
	for _, rank := range []columnOption{0, dropSecond, dropFirst} {
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
			if w > least[i] && (widest < 0 || w > widths[widest]) {
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

// length is in characters.
func length(text string) int { return len([]rune(text)) }

// printable has a text of a database in one line, without what a terminal would obey.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if run.Misleading(r) {
			return ' '
		}
		return r
	}, text)
}

// message is a line for people. A name in it that has lines of its own forges no others.
func message(format string, args []any) string {
	plain := make([]any, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case string:
			plain[i] = printable(v)
		case error:
			plain[i] = errorLines(v)
		case fmt.Stringer:
			plain[i] = printable(v.String())
		default:
			plain[i] = arg
		}
	}
	return printableLines(fmt.Sprintf(format+"\n", plain...))
}

// errorLines is printable for an error: joined errors have a line each.
func errorLines(err error) string {
	var parts []error
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		parts = joined.Unwrap()
	} else if inner := errors.Unwrap(err); inner != nil {
		parts = []error{inner}
	}
	texts, lines := make([]string, len(parts)), make([]string, len(parts))
	for i, part := range parts {
		texts[i], lines[i] = part.Error(), errorLines(part)
	}
	if strings.Join(texts, "\n") == err.Error() {
		return strings.Join(lines, "\n")
	}
	return printable(err.Error())
}

// lines is an error of several lines.
func lines(texts []string) error {
	all := make([]error, len(texts))
	for i, text := range texts {
		all[i] = errors.New(text)
	}
	return errors.Join(all...)
}

// printableLines is printable for a text of several lines.
func printableLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || !run.Misleading(r) {
			return r
		}
		return ' '
	}, text)
}

// printableJSON is printable for the texts of a JSON document, which have some of these characters escaped.
func printableJSON(document string) string {
	pairs := []string{`\\`, `\\`, `\n`, " ", `\t`, " ", `\b`, " ", `\f`, " ", `\r`, " ", `\u2028`, " ", `\u2029`, " "}
	for control := range ' ' {
		pairs = append(pairs, fmt.Sprintf(`\u%04x`, control), " ")
	}
	return printableLines(strings.NewReplacer(pairs...).Replace(document))
}

// paragraph writes a text in lines that fit the terminal, all indented alike; elsewhere in one line.
func (out *terminal) paragraph(indent, text string) { out.wrap(out.width(), indent, text) }

// wrap writes a text behind a heading, which may be a state, in lines of a width; 0: in one.
func (out *terminal) wrap(width int, heading, text string) {
	for status := strings.TrimSpace(heading); ; status = "" {
		line := text
		if text = ""; width > 0 {
			line, text = split(line, max(width-length(heading), leastWidth))
		}
		out.printColored(status, "%s%s", heading, line)
		if text == "" {
			return
		}
		heading = strings.Repeat(" ", length(heading))
	}
}

// shorten cuts a text to a width.
func shorten(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:max(width-1, 0)]) + "…"
	}
	return text
}

// split cuts a text in two at the last blank before a width, else at the first.
func split(text string, width int) (first, rest string) {
	runes := []rune(text)
	if len(runes) <= width {
		return text, ""
	}
	at := strings.LastIndex(string(runes[:width+1]), " ")
	if at <= 0 {
		first, rest, _ = strings.Cut(text, " ")
		return first, rest
	}
	return text[:at], strings.TrimLeft(text[at:], " ")
}

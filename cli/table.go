package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/caretaker-go/caretaker/service/run"
)

// trait is what a column is, besides text. Without one its cells are always whole, as those of IDs
// and names that people copy.
type trait int

const (
	// cut columns are cut where the terminal is too narrow.
	cut trait = 1 << iota
	// wrapped ones go on in further lines there; only the last column can.
	wrapped
	// spare ones are left out there; minor ones before them.
	spare
	minor
	// brief times lose year and seconds there, and the day if it is today.
	brief
	// moment is a time, whose zone is in the heading.
	moment
	// timed is a time, too; a line on the standard error says its zone.
	timed
	// shade is the state of something, in its colour.
	shade
)

// column of a table.
type column struct {
	name  string
	trait trait
}

// leastWidth is how much of a column is left at least when it is cut.
const leastWidth = 8

// leastBrief is the same for a brief time behind a state.
const leastBrief = len("succeeded 11-22 18:30")

// table is one being laid out.
type table struct {
	columns []column
	rows    [][]string
	widths  []int
	// shown are the columns that fit, by their place.
	shown []int
}

// printTable writes a row for each item, in aligned columns under a heading. On a terminal rows fit
// its width: columns are cut or left out, which a line on the standard error says. Elsewhere, and
// with --output wide, everything is whole.
func printTable[T any](a *app, columns []column, items []T, row func(T) []string) error {
	t := &table{columns: slices.Clone(columns), widths: make([]int, len(columns))}
	t.rows = append(t.rows, t.heading(a))
	for _, item := range items {
		t.rows = append(t.rows, row(item))
	}
	for _, cells := range t.rows {
		for i, cell := range cells {
			cells[i] = printable(a.localized(cell))
			t.widths[i] = max(t.widths[i], length(cells[i]))
		}
	}
	t.shortenTimes(a)
	missing := t.fit(a.width())
	for n, cells := range t.rows {
		if err := t.write(a, cells, n == 0); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		a.note("left out to fit the terminal: %s; --output wide shows all", strings.Join(missing, ", "))
	}
	return nil
}

// heading has the names of the columns, with the zone of those that are times.
func (t *table) heading(a *app) []string {
	heading, timesAreUTC := make([]string, len(t.columns)), false
	for i, c := range t.columns {
		if heading[i] = c.name; c.trait&moment != 0 && !a.client.local {
			heading[i] += utcMark
		}
		timesAreUTC = timesAreUTC || c.trait&timed != 0 && !a.client.local
	}
	if timesAreUTC {
		a.note("times are UTC")
	}
	return heading
}

// shortenTimes makes brief times brief if the table is too wide. What was UTC by its heading is so
// by a line on the standard error.
func (t *table) shortenTimes(a *app) {
	total := -2
	for _, w := range t.widths {
		total += 2 + w
	}
	if a.width() == 0 || total <= a.width() {
		return
	}
	today, _, _ := strings.Cut(a.clock(time.Now()), " ")
	marked := false
	for i, c := range t.columns {
		if c.trait&brief == 0 {
			continue
		}
		t.widths[i] = 0
		for n, cells := range t.rows {
			if n == 0 {
				marked = marked || strings.HasSuffix(cells[i], utcMark)
				cells[i] = strings.TrimSuffix(cells[i], utcMark)
			}
			cells[i] = strings.ReplaceAll(cells[i], today+" ", "")
			cells[i] = fullTime.ReplaceAllString(cells[i], "$1$2")
			t.widths[i] = max(t.widths[i], length(cells[i]))
		}
	}
	if marked {
		a.note("times are UTC")
	}
}

// utcMark is in the headings of times, fullTime is a time with all its parts, or without the day.
const utcMark = " (UTC)"

var fullTime = regexp.MustCompile(`(?:\d{4}-(\d\d-\d\d ))?(\d\d:\d\d):\d\d`)

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

// makePrintable applies printable to all texts of an answer.
func makePrintable(answer protoreflect.Message) {
	answer.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap(): // Its keys are names of counts.
		case f.IsList():
			for i := range v.List().Len() {
				if f.Message() != nil {
					makePrintable(v.List().Get(i).Message())
				} else if f.Kind() == protoreflect.StringKind {
					text := printable(v.List().Get(i).String())
					v.List().Set(i, protoreflect.ValueOfString(text))
				}
			}
		case f.Message() != nil:
			makePrintable(v.Message())
		case f.Kind() == protoreflect.StringKind:
			answer.Set(f, protoreflect.ValueOfString(printable(v.String())))
		}
		return true
	})
}

// fit chooses and narrows the columns for a width, 0: any. It returns the names of those left out.
func (t *table) fit(width int) (missing []string) {
	total, least := -2, -2
	for i, c := range t.columns {
		total += 2 + t.widths[i]
		if c.trait&(spare|minor) == 0 {
			least += 2 + t.least(i)
		}
		t.shown = append(t.shown, i)
	}
	if width == 0 || total <= width {
		return nil
	}
	t.shown, total = nil, -2
	fits := map[int]bool{}
	for _, rank := range []trait{spare, minor} {
		for i, c := range t.columns {
			if c.trait&rank != 0 && least+2+t.least(i) <= width {
				least += 2 + t.least(i)
				fits[i] = true
			}
		}
	}
	for i, c := range t.columns {
		if c.trait&(spare|minor) != 0 && !fits[i] {
			missing = append(missing, c.name)
			continue
		}
		t.shown = append(t.shown, i)
		total += 2 + t.widths[i]
	}
	for ; total > width; total-- {
		widest := -1
		for _, i := range t.shown {
			if t.widths[i] > t.least(i) && (widest < 0 || t.widths[i] > t.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		t.widths[widest]--
	}
	return missing
}

// least is how narrow a column may become.
func (t *table) least(i int) int {
	if t.columns[i].trait&(cut|wrapped) == 0 {
		return t.widths[i]
	}
	if t.columns[i].trait&brief != 0 {
		return min(t.widths[i], leastBrief)
	}
	return min(t.widths[i], leastWidth)
}

// write writes a row, with further lines for what is wrapped.
func (t *table) write(a *app, cells []string, heading bool) error {
	for more := true; more; {
		line, pad := &strings.Builder{}, 0
		rest := make([]string, len(cells))
		more = false
		for _, i := range t.shown {
			text := cells[i]
			if t.columns[i].trait&wrapped != 0 {
				text, rest[i] = split(text, t.widths[i])
				more = rest[i] != ""
			}
			text = shorten(text, t.widths[i])
			if text != "" {
				line.WriteString(strings.Repeat(" ", pad))
				pad = 0
			}
			pad += t.widths[i] - length(text) + 2
			if t.columns[i].trait&shade != 0 && !heading {
				text = a.paint(text)
			}
			line.WriteString(text)
		}
		if _, err := fmt.Fprintln(a.Out, line.String()); err != nil {
			return err
		}
		cells = rest
	}
	return nil
}

// prose writes a text in lines that fit the terminal, all indented alike; elsewhere in one line.
func (a *app) prose(indent, text string) {
	width := a.width() - length(indent)
	for rest := text; ; {
		line := rest
		if rest = ""; a.width() > 0 {
			line, rest = split(line, max(width, leastWidth))
		}
		a.say("%s%s", indent, line)
		if rest == "" {
			return
		}
	}
}

// shorten cuts a text to a width.
func shorten(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:max(width-1, 0)]) + "…"
	}
	return text
}

// split cuts a text in two at the last blank before a width, if there is one.
func split(text string, width int) (first, rest string) {
	runes := []rune(text)
	if len(runes) <= width {
		return text, ""
	}
	at := strings.LastIndex(string(runes[:width+1]), " ")
	if at <= 0 {
		return string(runes[:width]), string(runes[width:])
	}
	return text[:at], strings.TrimLeft(text[at:], " ")
}

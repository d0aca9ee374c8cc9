package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// json writes a value as one indented JSON document.
func (out *terminal) json(v any) error {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return err
	}
	return out.document(text.String())
}

// document writes a JSON document, or the same as YAML.
func (out *terminal) document(json string) error {
	out.endStatus()
	json = printableJSON(strings.TrimSpace(json))
	if out.yaml == nil {
		return out.write(json + "\n")
	}
	// JSON is YAML in another style.
	var root yaml.Node
	if err := yaml.Unmarshal([]byte(json), &root); err != nil {
		return fmt.Errorf("cannot write the response as YAML: %w", err)
	}
	blockStyle(&root)
	return out.yaml.Encode(&root)
}

// blockStyle sets block style on a node and its children, with as few quotes as possible.
func blockStyle(node *yaml.Node) {
	node.Style = 0
	for _, child := range node.Content {
		blockStyle(child)
	}
}

// report prints the result, with --output json as a document. err has the failures.
func (out *terminal) report(err error, document any, text func()) error {
	if out.asJSON {
		return errors.Join(err, out.json(document))
	}
	text()
	return err
}

// status shows what a command does, on one line of a terminal's standard error, until other output
// replaces it. Elsewhere it writes nothing.
func (out *terminal) status(format string, args ...any) {
	if !isTerminal(out.std.Err) {
		return
	}
	text := strings.TrimSpace(message(format, args))
	if width := widthOf(out.std.Err); width > 0 {
		text = shorten(text, width-1)
	}
	_, _ = io.WriteString(out.std.Err, clearLine+text)
	out.live = true
}

// clearLine removes the text of the current line of a terminal.
const clearLine = "\r\033[K"

// endStatus removes the line of status.
func (out *terminal) endStatus() {
	if out.live {
		_, _ = io.WriteString(out.std.Err, clearLine)
		out.live = false
	}
}

// write writes text to the standard output, unchanged.
func (out *terminal) write(text string) error {
	out.endStatus()
	_, err := io.WriteString(out.std.Out, text)
	return err
}

// println writes a line for people to the standard output.
func (out *terminal) println(format string, args ...any) {
	out.endStatus()
	_, _ = io.WriteString(out.std.Out, message(format, args))
}

// printColored is println with a state in its color.
func (out *terminal) printColored(state, format string, args ...any) {
	out.endStatus()
	line := message(format, args)
	_, _ = io.WriteString(out.std.Out, strings.Replace(line, state, out.colorize(state), 1))
}

// text is println that writes nothing with --output json.
func (out *terminal) text(format string, args ...any) {
	if !out.asJSON {
		out.println(format, args...)
	}
}

// note writes a line to the standard error.
func (out *terminal) note(format string, args ...any) {
	out.endStatus()
	_, _ = io.WriteString(out.std.Err, message(format, args))
}

// fields writes an indented line for each field that has a value.
func (out *terminal) fields(pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out.println("  %-7s %s", pairs[i], out.localized(pairs[i+1]))
		}
	}
}

// terminal prints command results as JSON or as text. The text fits the width, the colors and the
// time zone of its reader.
type terminal struct {
	std Streams
	// asJSON is set by --output json and yaml, yaml by the latter.
	asJSON bool
	yaml   *yaml.Encoder
	// wide is set by --output wide: tables are never cut, however narrow the terminal is.
	wide bool
	// local shows times in this machine's time zone.
	local bool
	// shortTime omits the year and seconds of times, and the day if it is today.
	shortTime bool
	// live: the current line of the standard error shows a status.
	live bool
}

// width returns the width of the terminal in characters, 0 without a terminal and with --output
// wide.
func (out *terminal) width() int {
	if out.wide {
		return 0
	}
	return widthOf(out.std.Out)
}

// widthOf returns the width of a terminal in characters, 0 without a terminal.
func widthOf(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// useColor reports whether the output may have colors.
func (out *terminal) useColor() bool {
	return isTerminal(out.std.Out) && out.std.Env.AllowsColor()
}

const red, yellow, plain = "\x1b[31m", "\x1b[33m", "\x1b[0m"

// colorize colors a text that begins with a state that may need attention.
func (out *terminal) colorize(text string) string {
	word, _, _ := strings.Cut(text, " ")
	colour := map[string]string{"bad": red, "warn": yellow}[fault.Tone(word)]
	if colour == "" || !out.useColor() {
		return text
	}
	return colour + text + plain
}

// at formats a time for a table. The heading names UTC. With --local the time names its zone.
func (out *terminal) at(t *timestamppb.Timestamp) string {
	if t == nil {
		return none
	}
	return out.clock(t.AsTime())
}

// clock is at for a time.Time.
func (out *terminal) clock(t time.Time) string {
	layout, now := time.DateTime, time.Now().UTC()
	if t = t.UTC(); out.local {
		t, now = t.Local(), now.Local() //nolint:gosmopolitan // --local asks for it
	}
	if out.shortTime {
		layout = "01-02 15:04"
		if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
			layout = "15:04"
		}
	}
	if out.local {
		layout += " MST"
	}
	return t.Format(layout)
}

// moment formats a time with its zone, for text outside tables.
func (out *terminal) moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return none
	}
	return out.zoned(t.AsTime())
}

// zoned is moment for a time.Time.
func (out *terminal) zoned(t time.Time) string {
	if out.local {
		return out.clock(t)
	}
	return out.clock(t) + " UTC"
}

// localized converts the times in a text of the server to local time if --local is set.
func (out *terminal) localized(text string) string {
	if !out.local {
		return text
	}
	times := regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	return times.ReplaceAllStringFunc(text, func(found string) string {
		t, err := time.Parse(time.RFC3339, found)
		if err != nil {
			return found
		}
		return out.clock(t)
	})
}

// printable returns a text in one line, without the control characters of a terminal.
func printable(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(printableLines(text))
}

// message formats a line for people. A name with line breaks cannot forge other lines.
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

// errorLines is printable for an error. Each of several joined errors gets its own line.
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

// printableLines is printable for a text with several lines.
func printableLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || !format.Misleading(r) {
			return r
		}
		return ' '
	}, text)
}

// printableJSON is printable for a JSON document, in which control characters may be escaped.
func printableJSON(document string) string {
	pairs := []string{`\\`, `\\`, `\u2028`, " ", `\u2029`, " "}
	for _, escaped := range "ntbfr" {
		pairs = append(pairs, `\`+string(escaped), " ")
	}
	for control := range ' ' {
		pairs = append(pairs, fmt.Sprintf(`\u%04x`, control), " ")
	}
	return printableLines(strings.NewReplacer(pairs...).Replace(document))
}

// paragraph writes indented text in lines that fit the terminal. Elsewhere it writes one line.
func (out *terminal) paragraph(indent, text string) { out.wrap(out.width(), indent, text) }

// wrap writes a text after a heading, which may be a state, in lines of a width. 0 means one line.
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

// split cuts a text at the last blank before a width, or otherwise at the first blank.
func split(text string, width int) (first, remaining string) {
	runes := []rune(text)
	if len(runes) <= width {
		return text, ""
	}
	at := strings.LastIndex(string(runes[:width+1]), " ")
	if at <= 0 {
		first, remaining, _ = strings.Cut(text, " ")
		return first, remaining
	}
	return text[:at], strings.TrimLeft(text[at:], " ")
}

// show prints an answer as protobuf JSON, or with text.
func (out *terminal) show(answer proto.Message, text func() error) error {
	if !out.asJSON {
		return text()
	}
	return out.printJSON(answer, protojson.MarshalOptions{Multiline: true, Indent: "  "})
}

// printJSON prints an answer of the API, with fields that have their default values.
func (out *terminal) printJSON(message proto.Message, options protojson.MarshalOptions) error {
	options.EmitDefaultValues = true
	document, err := options.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot write the response as JSON: %w", err)
	}
	return out.document(string(document))
}

// interactive reports whether a person can answer: input and messages use a terminal.
func (out *terminal) interactive() bool {
	for _, stream := range []any{out.std.In, out.std.Err} {
		file, ok := stream.(*os.File)
		if !ok || !term.IsTerminal(int(file.Fd())) {
			return false
		}
	}
	return true
}

// agreed reads the answer to a question. Only y and yes agree.
func (out *terminal) agreed() bool {
	line, err := bufio.NewReader(out.std.In).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return err == nil && (answer == "y" || answer == "yes")
}

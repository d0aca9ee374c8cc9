// Package format formats numbers, lists and long texts for people.
package format

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Pluralize returns a number with its noun, in the plural unless the number is 1: 1 user, 2 users.
func Pluralize[N ~int | ~int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Number(n) + " " + noun
}

// CountName returns the name of a count as text, in the singular if the number is 1: deleted rows
// for deleted_rows.
func CountName[N ~int | ~int64](n N, name string) string {
	if n == 1 {
		name = strings.TrimSuffix(name, "s")
	}
	return strings.ReplaceAll(name, "_", " ")
}

// Argument quotes a text for a command that is copied into a shell. Names keep their own quotes.
func Argument(text string) string {
	const safe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,:/@%+=-"
	if text != "" && strings.Trim(text, safe) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Number returns a number with commas between its thousands: 10,817.
func Number[N ~int | ~int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// Misleading reports whether a character can disguise a name or the text around it. Such characters
// are control characters, and those that change the text's direction or end its line.
func Misleading(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// Shorten truncates text to that many bytes, and adds how many more there are, and where.
func Shorten(text string, most int, where string) string {
	if len(text) <= most {
		return text
	}
	shown := strings.ToValidUTF8(text[:most], "")
	return fmt.Sprintf("%s… (%d bytes more: %s)", shown, len(text)-len(shown), where)
}

// maxNames is the maximum number of names in a message.
const maxNames = 10

// List returns the first ten names with commas: "main, ci and 20 more".
func List(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// Join joins the texts that are not empty, with semicolons.
func Join(texts ...string) string {
	empty := func(text string) bool { return text == "" }
	return strings.Join(slices.DeleteFunc(slices.Clone(texts), empty), "; ")
}

package run

import (
	"fmt"
	"unicode"
)

// Counted is a number with its noun, in the plural unless it is 1: 1 user, 2 users.
func Counted[N ~int | ~int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Misleading reports whether a character can make a name look like another one, or like a part of what
// stands around it: control characters, and those that change the direction of the text or end its line.
func Misleading(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

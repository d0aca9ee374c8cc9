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

// Tone is how a state is shown: as bad, as warn if an operator may have to act, as busy, good or off.
func Tone(state string) string {
	switch state {
	case "failed", "failing", "discarded", "error":
		return "bad"
	case "paused", "throttled", "lease held elsewhere", "hold", "retryable", "missed", "cancelled",
		"refused", "warning":
		return "warn"
	case "running":
		return "busy"
	case "succeeded", "idle", "completed", "ran":
		return "good"
	}
	return "off"
}

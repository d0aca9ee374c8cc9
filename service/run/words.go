package run

import "fmt"

// Counted is a number with its noun, in the plural unless it is 1: 1 user, 2 users.
func Counted[N ~int | ~int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

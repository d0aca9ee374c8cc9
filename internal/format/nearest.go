package format

import "strings"

// DidYouMean asks whether the [Nearest] candidate was meant, or else the first that begins with the
// name, in parentheses after a blank. It returns "" without one.
func DidYouMean(name string, candidates []string) string {
	near := Nearest(name, candidates)
	for _, c := range candidates {
		if near == "" && len(name) > 2 && strings.HasPrefix(c, name) {
			near = c
		}
	}
	if near == "" {
		return ""
	}
	return " (did you mean " + near + "?)"
}

// Nearest returns the candidate with the smallest edit distance. It returns "" if that is more than
// a typing error: more than 2 and more than a fifth of the name, or for short names 2 or the name.
func Nearest(name string, candidates []string) string {
	best, smallest := "", min(max(min(2, len(name)-2), len(name)/5)+1, len(name))
	for _, c := range candidates {
		if d := distance(name, c); d < smallest {
			best, smallest = c, d
		}
	}
	return best
}

// distance returns the Levenshtein distance, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

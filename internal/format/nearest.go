package format

// Nearest returns the candidate with the smallest edit distance. It returns "" if that is more than
// a typing error: more than 2 and more than a fifth of the name, or the whole name.
func Nearest(name string, candidates []string) string {
	best, smallest := "", min(max(2, len(name)/5)+1, len(name))
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

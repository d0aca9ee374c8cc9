package docs_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// What differs from run to run counts as one and the same.
var shapes = []struct {
	what *regexp.Regexp
	as   string
}{
	// ids, hashes, cut or whole, who holds a lease, who it was and where
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "#"},
	{regexp.MustCompile(`\b[0-9a-f]{6,}…|…[0-9a-f]{4}\b`), "#"},
	{regexp.MustCompile(`\b[0-9a-f]{16,}\b`), "#"},
	{regexp.MustCompile(`\b[\w.-]+/\d+/[a-z0-9]{8}\b`), "#"},
	{regexp.MustCompile(`\b\w+@[\w.-]+`), "#"},
	// that a run has begun, which a terminal shows in a line that changes
	{regexp.MustCompile(`(?m)^run # of .* started at .*$`), ""},
	// times, durations, sizes, numbers
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z| UTC|[+-]\d\d(:\d\d)?)?`), "#"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|ms|s|m|h|d))+\b`), "#"},
	{regexp.MustCompile(`-?\d+([.,:]\d+)*%?`), "#"},
	// how far a run is, which a terminal shows in a line that changes
	{regexp.MustCompile(`(?m)^(loose_foreign|inactive|ghost|adjourned|placeholder)\w+( on \w+)? # .*$`), ""},
	// nothing yet, and the lines of psql's tables
	{regexp.MustCompile(`(^|\s)-(\s|$)`), "$1#$2"},
	{regexp.MustCompile(`-{2,}`), "--"},
	// one row, two rows
	{regexp.MustCompile(`# ([a-z]+?)s?\b`), "# ${1}"},
}

// words are the words of an output, without what differs from run to run.
func words(text string) []string {
	for _, s := range shapes {
		text = s.what.ReplaceAllString(text, s.as)
		if strings.HasSuffix(s.as, "$2") { // neighbours share a space
			text = s.what.ReplaceAllString(text, s.as)
		}
	}
	return strings.Fields(text)
}

// compare says where an output begins to differ in shape from what a page shows; "": nowhere. In
// what is shown "…", or "...", stands for anything: alone for any words, within a word for its rest.
func compare(shown, got string) string {
	want, have := words(shown), words(got)
	// reached[i] are the places of have up to which the first i words of want may lead.
	at := map[int]bool{0: true}
	furthest := 0
	for _, word := range want {
		next := map[int]bool{}
		for place := range at {
			switch {
			case word == "…" || word == "...":
				for further := place; further <= len(have); further++ {
					next[further] = true
				}
			case place < len(have) && same(word, have[place]):
				next[place+1] = true
			}
		}
		if len(next) == 0 {
			return fmt.Sprintf("shown is %q, but there is %s", word, quote(have, furthest))
		}
		at, furthest = next, len(have)
		for place := range next {
			furthest = min(furthest, place)
		}
	}
	if !at[len(have)] {
		return "there is more: " + quote(have, furthest)
	}
	return ""
}

func same(word, have string) bool {
	before, after, cut := strings.Cut(word, "…")
	if !cut {
		return word == have
	}
	return len(have) >= len(before)+len(after) && strings.HasPrefix(have, before) &&
		strings.HasSuffix(have, after)
}

func quote(have []string, from int) string {
	if from >= len(have) {
		return "nothing"
	}
	return fmt.Sprintf("%q", strings.Join(have[from:min(from+8, len(have))], " "))
}

func TestCompare_SeesShapesAlone(t *testing.T) {
	for _, c := range []struct {
		shown, got string
		same       bool
	}{
		{"deleted rows 100, in 47ms", "deleted  rows 9, in 1m2.5s", true},
		{"deleted rows 100", "updated rows 100", false},
		{"RUN  STATE\n…\nlast 1", "RUN STATE\na b c\nlast 7", true},
		{"RUN  STATE\n…\nlast 1", "RUN STATE\na b c", false},
		{"A  B\n1  -  -", "A  B\n2 3 2026-11-22 10:00:00", true},
		{"A\n1", "A\n1\n2", false},
		{`{"id": "01a1fbb2-60f9-7872-aa81-f1e831a435e2"}`, `{ "id": "01a1fbb2" }`, false},
		{`{"id": "17", "key": 1}`, `{"id":  "18", "key":  2}`, true},
		{`{"id": "17", "key": 1}`, `{"id":  "18", "name":  2}`, false},
		{"digest 80c1f6a9…", "digest 80c1f6a9a7b80c1f6a9a7b80c1f6a9a7b", true},
		{"1 user failed", "2 users failed", true},
		{"ERROR: …", "ERROR: what went wrong", true},
	} {
		if why := compare(c.shown, c.got); (why == "") != c.same {
			t.Errorf("%q and %q: %q", c.shown, c.got, why)
		}
	}
}

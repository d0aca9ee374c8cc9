package loosefk

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/caretaker-go/caretaker/service/run"
)

// locks are the records of a run that were put off because others hold rows or tables that they need, by place.
type locks struct {
	mu      sync.Mutex
	records map[string]int
}

// place is the table of a step, with its database.
func (s *step) place() string { return s.key.Table + " on " + s.database }

func (l *locks) add(putOff map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.records == nil {
		l.records = map[string]int{}
	}
	for place, n := range putOff {
		l.records[place] += n
	}
}

// placesTold is how many places a run's reason and log name, those with most records.
const placesTold = 5

// words are for people: "4 records put off, others hold locks: ci_builds on ci (4)"; "" if none was.
func (l *locks) words() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	total, told := 0, []string{}
	places := slices.SortedFunc(maps.Keys(l.records), func(a, b string) int {
		if l.records[a] != l.records[b] {
			return l.records[b] - l.records[a]
		}
		return strings.Compare(a, b)
	})
	for i, place := range places {
		total += l.records[place]
		if i < placesTold {
			told = append(told, fmt.Sprintf("%s (%d)", place, l.records[place]))
		}
	}
	if len(places) > placesTold {
		told = append(told, fmt.Sprintf("and %d more tables", len(places)-placesTold))
	}
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("%d records put off, others hold locks: %s", total, strings.Join(told, ", "))
}

// tellLocks says what a run has put off for locks, in one line and, unless the run has another one, as its reason.
func (c *cleanup) tellLocks(ctx context.Context) {
	words := c.locks.words()
	if words == "" {
		return
	}
	c.x.Log.WarnContext(ctx, "records put off, others hold locks", "locked", words)
	c.x.Report(func(r *run.Run) {
		if r.Reason == "" {
			r.Reason = words
		}
	})
}

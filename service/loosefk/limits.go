package loosefk

import (
	"sync"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
)

// action is what a definition does to rows, as far as the run's limits care.
type action int

const (
	deletes action = iota
	updates
)

func actionOf(key repo.LooseForeignKey) action {
	if key.OnDelete == repo.AsyncDelete {
		return deletes
	}
	return updates
}

// budget is what is left of the run's row limits. Statements reserve their cap before and give back what they did not
// change after, so that the limits hold over all batches in flight.
type budget struct {
	mu       sync.Mutex
	returned *sync.Cond
	limit    [2]int64
	used     [2]int64
	reserved [2]int64
}

func newBudget(maxDeletes, maxUpdates int64) *budget {
	b := &budget{limit: [2]int64{maxDeletes, maxUpdates}}
	b.returned = sync.NewCond(&b.mu)
	return b
}

// reserve grants up to want rows; 0: the limit is reached. While others hold all that is left it waits for them.
func (b *budget) reserve(a action, want int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.used[a]+b.reserved[a] >= b.limit[a] {
		if b.reserved[a] == 0 {
			return 0
		}
		b.returned.Wait()
	}
	granted := min(want, b.limit[a]-b.used[a]-b.reserved[a])
	b.reserved[a] += granted
	return granted
}

func (b *budget) settle(a action, granted, used int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reserved[a] -= granted
	b.used[a] += used
	b.returned.Broadcast()
}

// exhausted names the limit that is reached, "" for none.
func (b *budget) exhausted() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.used[deletes] >= b.limit[deletes]:
		return "max_deletes"
	case b.used[updates] >= b.limit[updates]:
		return "max_updates"
	}
	return ""
}

// roomy says whether a full statement fits beside those in flight.
func (b *budget) roomy() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := range b.limit {
		if b.limit[a]-b.used[a]-b.reserved[a] < bulk.MaxStatementRows {
			return false
		}
	}
	return true
}

// limitReached is why the run takes no more work, and what it left.
type limitReached struct {
	mu     sync.Mutex
	why    string
	undone bool
}

func (l *limitReached) set(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == "" {
		l.why = why
	}
}

func (l *limitReached) setIncomplete() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.undone = true
}

func (l *limitReached) reason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

func (l *limitReached) reached() bool { return l.reason() != "" }

func (l *limitReached) incomplete() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.undone
}

func (s *step) SizeKey() bulk.SizeKey {
	return bulk.SizeKey{What: s.key.String(), Action: s.key.OnDelete, Database: s.database}
}

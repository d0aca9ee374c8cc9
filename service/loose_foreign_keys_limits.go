package service

import (
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
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
		if b.limit[a]-b.used[a]-b.reserved[a] < maxStatementRows {
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

const (
	// firstStatementRows, maxStatementRows and statementGoal are spec/README.md section 4, bounded statements.
	firstStatementRows = 1000
	maxStatementRows   = 20_000
	statementGoal      = 250 * time.Millisecond
)

// statementSizes are how many rows a statement of a definition on a home may change, learned from how long they took,
// for the life of the process.
type statementSizes struct {
	mu   sync.Mutex
	rows map[sizeKey]int64
}

type sizeKey struct{ definition, onDelete, database string }

func newStatementSizes() *statementSizes { return &statementSizes{rows: map[sizeKey]int64{}} }

func (s *step) sizeKey() sizeKey { return sizeKey{s.key.String(), s.key.OnDelete, s.database} }

func (z *statementSizes) get(s *step) int64 {
	z.mu.Lock()
	defer z.mu.Unlock()
	if rows, known := z.rows[s.sizeKey()]; known {
		return rows
	}
	return firstStatementRows
}

// observe learns from a statement that found rows under a cap: doubled when a capped one took under half the goal,
// shrunk in proportion when over it.
func (z *statementSizes) observe(s *step, took time.Duration, limit, found int64, capped bool) {
	size := z.get(s)
	switch {
	case took > statementGoal:
		base := limit
		if found > 0 {
			base = min(limit, found)
		}
		size = min(size, max(1, base*int64(statementGoal)/int64(took)))
	case capped && limit >= size && took < statementGoal/2:
		size = min(2*size, maxStatementRows)
	}
	z.set(s, size)
}

// halve learns from a statement that ran into its time-out.
func (z *statementSizes) halve(s *step, limit int64) { z.set(s, max(1, limit/2)) }

func (z *statementSizes) set(s *step, rows int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.rows[s.sizeKey()] = rows
}

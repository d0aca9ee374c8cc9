package bulk

import (
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

const (
	// FirstStatementRows is with how many rows a kind of statement begins.
	FirstStatementRows = 1000
	// MaxStatementRows is the most that a statement may have.
	MaxStatementRows = 20_000
	// StatementGoal is how long a statement should take.
	StatementGoal = 250 * time.Millisecond
	// statementAim is what one that took longer is made to last. With the goal itself every second
	// one would be over it.
	statementAim = StatementGoal * 3 / 4
)

// How long a statement on the application's rows may take, and how long one for a single row. How
// long it waits for locks: first hardly at all, then once more for longer.
const (
	StatementTime = time.Second
	SingleRowTime = 10 * time.Second
	LockTime      = 10 * time.Millisecond
	LongLockTime  = time.Second
)

// ProbeLimits bound the statements that only look whether there are rows, as one for a single row.
func ProbeLimits() repo.Limits { return repo.Limits{Statement: SingleRowTime, Lock: LongLockTime} }

// waitingLimits bound a statement for so many rows that waits for locks.
func waitingLimits(rows int64) repo.Limits {
	if rows == 1 {
		return ProbeLimits()
	}
	return repo.Limits{Statement: StatementTime + LongLockTime, Lock: LongLockTime}
}

// StatementSizes are how many rows a statement may change, learned from how long those of its kind
// took. They last as long as the process, and are safe for concurrent use.
type StatementSizes struct {
	mu   sync.Mutex
	rows map[SizeKey]int64
}

// SizeKey is a kind of statement: of a definition or table, with what it does to rows, in a
// database.
type SizeKey struct{ What, Action, Database string }

// sized is what makes statements of a kind.
type sized interface{ SizeKey() SizeKey }

// NewStatementSizes has learned nothing yet.
func NewStatementSizes() *StatementSizes { return &StatementSizes{rows: map[SizeKey]int64{}} }

// Get is how many rows the next statement of a kind may have.
func (z *StatementSizes) Get(s sized) int64 {
	z.mu.Lock()
	defer z.mu.Unlock()
	if rows, ok := z.rows[s.SizeKey()]; ok {
		return rows
	}
	return FirstStatementRows
}

// Observe learns from a statement that found rows under a limit. The size is doubled when a full
// one, capped, took under half the goal, and shrunk in proportion when it took longer than the
// goal.
func (z *StatementSizes) Observe(s sized, took time.Duration, limit, found int64, capped bool) {
	size := z.Get(s)
	switch {
	case took > StatementGoal:
		base := limit
		if found > 0 {
			base = min(limit, found)
		}
		size = min(size, max(1, base*int64(statementAim)/int64(took)))
	case capped && limit >= size && took < StatementGoal/2:
		size = min(2*size, MaxStatementRows)
	}
	z.set(s, size)
}

// Halve learns from a statement that ran into its time-out.
func (z *StatementSizes) Halve(s sized, limit int64) { z.set(s, max(1, limit/2)) }

func (z *StatementSizes) set(s sized, rows int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.rows[s.SizeKey()] = rows
}

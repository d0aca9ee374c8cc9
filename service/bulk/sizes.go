package bulk

import (
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo/fencing"
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
func ProbeLimits() fencing.Limits {
	return fencing.Limits{Statement: SingleRowTime, Lock: LongLockTime}
}

// StatementSizes are how many rows a statement may change, learned from how long those of its kind
// took. They last as long as the process, and are safe for concurrent use.
//
// A statement has a cost that no size changes: planning and locking of a table with many partitions
// can take longer than the goal. So before a size shrinks, the same statement is sent for no row. If
// that alone takes as long as a statement should, its time is left out of the goal and of the timeout.
type StatementSizes struct {
	mu    sync.Mutex
	kinds map[SizeKey]learned
}

// learned is what is known of a kind of statement.
type learned struct {
	// rows is how many the next statement may have.
	rows int64
	// fixed is what a statement for no row takes; 0: too little to matter.
	fixed time.Duration
}

// SizeKey is a kind of statement: of a definition or table, with what it does to rows, in a
// database.
type SizeKey struct{ What, Action, Database string }

// sized is what makes statements of a kind.
type sized interface{ SizeKey() SizeKey }

// Statement is a statement that has ended, for [StatementSizes.Learn].
type Statement struct {
	// Took is how long it lasted. TimedOut: it ran into its timeout.
	Took     time.Duration
	TimedOut bool
	// Limit is how many rows it might have, Found how many it found. Capped: the limit kept it from
	// finding more.
	Limit, Found int64
	Capped       bool
	// Empty sends the same statement for no row, with the timeout of a single row, and returns how
	// long that took.
	Empty func() (time.Duration, error)
}

// NewStatementSizes has learned nothing yet.
func NewStatementSizes() *StatementSizes { return &StatementSizes{kinds: map[SizeKey]learned{}} }

// Get is how many rows the next statement of a kind may have.
func (z *StatementSizes) Get(s sized) int64 { return z.get(s).rows }

// Time is how long a statement of a kind may take, if it is for more than one row.
func (z *StatementSizes) Time(s sized) time.Duration { return StatementTime + z.get(s).fixed }

// waitingLimits bound a statement for so many rows that waits for locks.
func (z *StatementSizes) waitingLimits(s sized, rows int64) fencing.Limits {
	if rows <= 1 {
		return ProbeLimits()
	}
	return fencing.Limits{Statement: z.Time(s) + LongLockTime, Lock: LongLockTime}
}

// Learn learns from a statement. The size is doubled when a full one took under half the goal. It
// shrinks in proportion when one took longer than the goal, and is halved when one timed out. Learn
// reports whether one that timed out needs more time instead, which the next one gets.
func (z *StatementSizes) Learn(s sized, t Statement) (moreTime bool) {
	k := z.get(s)
	k.fixed = significant(min(k.fixed, t.Took))
	if t.TimedOut || t.Took-k.fixed > StatementGoal {
		moreTime = k.shrink(t)
	} else if t.Capped && t.Limit >= k.rows && t.Took-k.fixed < StatementGoal/2 {
		k.rows = min(2*k.rows, MaxStatementRows)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.kinds[s.SizeKey()] = k
	return moreTime
}

// shrink makes the size smaller where a smaller statement is quicker.
func (k *learned) shrink(t Statement) (moreTime bool) {
	k.fixed = 0
	if empty, err := t.Empty(); err == nil && t.TimedOut {
		k.fixed = significant(empty)
	} else if err == nil {
		k.fixed = significant(min(empty, t.Took))
	}
	base, forRows := t.Limit, t.Took-k.fixed
	if t.Found > 0 {
		base = min(base, t.Found)
	}
	switch {
	case t.TimedOut && forRows <= StatementTime/2:
		return true
	case t.TimedOut:
		k.rows = min(k.rows, max(1, t.Limit/2))
	case forRows > StatementGoal:
		k.rows = min(k.rows, max(1, base*int64(statementAim)/int64(forRows)))
	}
	return false
}

// significant is a fixed cost if it alone takes as long as a statement should, else 0: a shorter one
// is a part of the goal. It never makes a statement's timeout longer than that of a single row.
func significant(fixed time.Duration) time.Duration {
	if fixed < statementAim {
		return 0
	}
	return min(fixed, SingleRowTime-StatementTime)
}

func (z *StatementSizes) get(s sized) learned {
	z.mu.Lock()
	defer z.mu.Unlock()
	if k, ok := z.kinds[s.SizeKey()]; ok {
		return k
	}
	return learned{rows: FirstStatementRows}
}

package bulk

import (
	"cmp"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo/fencing"
)

const (
	// FirstStatementRows is the initial number of rows of a kind of statement.
	FirstStatementRows = 1000
	// MaxStatementRows is the maximum number of rows of a statement.
	MaxStatementRows = 50_000
	// StatementGoal is the usual target duration of a statement. Other adapting sizes: childTask.learn
	// and loader of service/lfk (rows of a key, records of a batch), shrinkOnTimeout of the walk
	// over tokens.
	StatementGoal = 250 * time.Millisecond
)

// Time limits of a statement on the application's rows, and of one for a single row. Lock timeouts:
// very short at first, then once longer.
const (
	StatementTime = 4 * StatementGoal
	SingleRowTime = 10 * time.Second
	LockTime      = 10 * time.Millisecond
	LongLockTime  = time.Second
)

// ProbeLimits bound the statements that only check whether rows exist, like those for a single row.
func ProbeLimits() fencing.Limits {
	return fencing.Limits{Statement: SingleRowTime, Lock: LongLockTime}
}

// StatementSizes learn how many rows a statement may change, from the duration of statements of its
// kind. They last as long as the process, and are safe for concurrent use.
//
// A statement has a cost that no size changes: planning and locking of a table with many partitions
// can take longer than the goal. So before a size shrinks, the same statement is sent for no row.
// If that alone takes as long as a statement should, its time does not count for the goal and the
// timeout.
type StatementSizes struct {
	goal  time.Duration
	mu    sync.Mutex
	kinds map[SizeKey]learned
}

// learned is the known size of a kind of statement.
type learned struct {
	// rows is the maximum for the next statement.
	rows int64
	// fixed is the time of a statement for no row. 0 means too short to matter.
	fixed time.Duration
}

// SizeKey is a kind of statement: a definition or table, its action, and the database.
type SizeKey struct{ What, Action, Database string }

// sized makes statements of a kind.
type sized interface{ SizeKey() SizeKey }

// Statement is a finished statement, for [StatementSizes.Learn].
type Statement struct {
	// Took is its duration. TimedOut: it reached its timeout.
	Took     time.Duration
	TimedOut bool
	// Limit is its maximum number of rows, Found how many it found. Capped: the limit kept it from
	// finding more.
	Limit, Found int64
	Capped       bool
	// Empty sends the same statement for no row, with the timeout of a single row, and returns how
	// long that took.
	Empty func() (time.Duration, error)
}

// NewStatementSizes returns sizes that have learned nothing yet. The goal is the target duration of
// a statement, whose timeout is four times as long. 0 is [StatementGoal].
func NewStatementSizes(goal time.Duration) *StatementSizes {
	return &StatementSizes{goal: cmp.Or(goal, StatementGoal), kinds: map[SizeKey]learned{}}
}

// Get returns the maximum number of rows for the next statement of a kind.
func (z *StatementSizes) Get(s sized) int64 { return z.get(s).rows }

// Time returns the time limit of a statement of a kind, if it is for more than one row.
func (z *StatementSizes) Time(s sized) time.Duration { return 4*z.goal + z.get(s).fixed }

// waitingLimits bound a statement for a number of rows that waits for locks.
func (z *StatementSizes) waitingLimits(s sized, rows int64) fencing.Limits {
	if rows <= 1 {
		return ProbeLimits()
	}
	return fencing.Limits{Statement: z.Time(s) + LongLockTime, Lock: LongLockTime}
}

// Learn learns from a statement. The size doubles after a full statement that took under half the
// goal. It shrinks in proportion after one that took longer than the goal, and is halved after a
// timeout. Learn reports whether a statement that timed out needs more time instead, which the next
// one gets.
func (z *StatementSizes) Learn(s sized, t Statement) (moreTime bool) {
	k := z.get(s)
	k.fixed = z.significant(min(k.fixed, t.Took))
	if t.TimedOut || t.Took-k.fixed > z.goal {
		moreTime = z.shrink(&k, t)
	} else if t.Capped && t.Limit >= k.rows && t.Took-k.fixed < z.goal/2 {
		k.rows = min(2*k.rows, MaxStatementRows)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.kinds[s.SizeKey()] = k
	return moreTime
}

// shrink reduces the size if a smaller statement is faster.
func (z *StatementSizes) shrink(k *learned, t Statement) (moreTime bool) {
	k.fixed = 0
	if empty, err := t.Empty(); err == nil && t.TimedOut {
		k.fixed = z.significant(empty)
	} else if err == nil {
		k.fixed = z.significant(min(empty, t.Took))
	}
	base, forRows := t.Limit, t.Took-k.fixed
	if t.Found > 0 {
		base = min(base, t.Found)
	}
	switch {
	case t.TimedOut && forRows <= 2*z.goal:
		return true
	case t.TimedOut:
		k.rows = min(k.rows, max(1, t.Limit/2))
	case forRows > z.goal:
		k.rows = min(k.rows, max(1, base*int64(z.aim())/int64(forRows)))
	}
	return false
}

// significant returns a fixed cost if it alone takes as long as a statement should, else 0: a
// shorter cost is part of the goal. It never makes a timeout longer than that of a single row.
func (z *StatementSizes) significant(fixed time.Duration) time.Duration {
	if fixed < z.aim() {
		return 0
	}
	return min(fixed, max(0, SingleRowTime-4*z.goal))
}

// aim is the new target after a longer statement. With the goal itself every second statement would
// exceed it.
func (z *StatementSizes) aim() time.Duration { return z.goal * 3 / 4 }

// get returns the size learned for a kind of statement. A kind without any starts with
// FirstStatementRows.
func (z *StatementSizes) get(s sized) learned {
	z.mu.Lock()
	defer z.mu.Unlock()
	if k, ok := z.kinds[s.SizeKey()]; ok {
		return k
	}
	return learned{rows: FirstStatementRows}
}

package service

import (
	"sync"
	"time"
)

const (
	// firstStatementRows, maxStatementRows and statementGoal are spec/README.md section 4, bounded statements.
	firstStatementRows = 1000
	maxStatementRows   = 20_000
	statementGoal      = 250 * time.Millisecond
	// statementAim is what one that took longer is made to last: at the goal itself every second one would be over it.
	statementAim = statementGoal * 3 / 4
)

// statementSizes are how many rows a statement may change, learned from how long those of its kind took, for the life of
// the process.
type statementSizes struct {
	mu   sync.Mutex
	rows map[sizeKey]int64
}

// sizeKey is a kind of statement: of a definition or table, with what it does to rows, in a database.
type sizeKey struct{ what, action, database string }

// sized is what makes statements of a kind.
type sized interface{ sizeKey() sizeKey }

func newStatementSizes() *statementSizes { return &statementSizes{rows: map[sizeKey]int64{}} }

func (z *statementSizes) get(s sized) int64 {
	z.mu.Lock()
	defer z.mu.Unlock()
	if rows, known := z.rows[s.sizeKey()]; known {
		return rows
	}
	return firstStatementRows
}

// observe learns from a statement that found rows under a cap: doubled when a capped one took under half the goal,
// shrunk in proportion when over it, to where there is room again.
func (z *statementSizes) observe(s sized, took time.Duration, limit, found int64, capped bool) {
	size := z.get(s)
	switch {
	case took > statementGoal:
		base := limit
		if found > 0 {
			base = min(limit, found)
		}
		size = min(size, max(1, base*int64(statementAim)/int64(took)))
	case capped && limit >= size && took < statementGoal/2:
		size = min(2*size, maxStatementRows)
	}
	z.set(s, size)
}

// halve learns from a statement that ran into its time-out.
func (z *statementSizes) halve(s sized, limit int64) { z.set(s, max(1, limit/2)) }

func (z *statementSizes) set(s sized, rows int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.rows[s.sizeKey()] = rows
}

// How long a statement on the application's rows may take, that of a single row, and how long it waits
// for locks: first hardly at all, then once more for longer.
const (
	statementTime = time.Second
	singleRowTime = 10 * time.Second
	lockTime      = 10 * time.Millisecond
	longLockTime  = time.Second
)

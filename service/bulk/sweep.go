package bulk

import (
	"context"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/run"
)

// Sweeper changes and removes rows of one database in bounded statements, each a transaction of its
// own. It is for one goroutine.
type Sweeper struct {
	Catalog *catalog.Catalog
	Sizes   *StatementSizes
	Writer  run.Writer
	// CheckStop is called before every statement. Its error ends the work at once.
	CheckStop func() error
	// Count is called for every committed change: the table, the change, and its rows.
	Count func(ctx context.Context, table string, c rowset.Change, rows int64)
	// Outside gets the paths, outside the database, of removed rows. nil means they are dropped.
	Outside func(ctx context.Context, paths []string)
	// DryRun counts instead of changing. nil means changes are made.
	DryRun *DryRun
}

// lockedError means that only rows locked by other transactions remain.
type lockedError struct{ rows string }

func (e *lockedError) Error() string {
	return "rows of " + e.rows + " are locked by another transaction: " +
		"check pg_stat_activity for long transactions"
}

// Public marks the text as fit for clients.
func (e *lockedError) Public() {}

// IsLocked reports whether rows remain because other transactions have locked them.
func IsLocked(err error) bool {
	_, locked := errors.AsType[*lockedError](err)
	return locked
}

// Sweep changes all rows, unlocked ones first. If rows are still locked after one wait, they
// remain, and [IsLocked] holds for the error.
func (w *Sweeper) Sweep(ctx context.Context, rows rowset.Rows, c rowset.Change) error {
	if w.DryRun != nil {
		return w.DryRun.Sweep(ctx, rows, c)
	}
	parts, err := w.parts(ctx, rows)
	if err != nil {
		return err
	}
	var locked error
	for _, part := range parts {
		s := &sweep{Sweeper: w, rows: part, change: c}
		err := s.run(ctx)
		switch {
		case IsLocked(err):
			locked = err
		case err != nil:
			return err
		}
	}
	return locked
}

// parts returns the partitions with such rows. Listing them costs statements, hence CheckStop.
func (w *Sweeper) parts(ctx context.Context, rows rowset.Rows) ([]rowset.Rows, error) {
	if !rows.Partitioned() {
		return []rowset.Rows{rows}, nil
	}
	if err := w.CheckStop(); err != nil {
		return nil, err
	}
	return rowset.Parts(ctx, w.Catalog, rows, ProbeLimits())
}

// sweepMode is how a statement handles rows locked by another transaction. A lock that a mode
// cannot handle leads to the next mode.
type sweepMode int

const (
	// unlocked expects no locks: a statement that meets a lock fails and changes nothing.
	unlocked sweepMode = iota
	// skippingLocked leaves locked rows out.
	skippingLocked
	// waitingLocked waits for them, from the start of the rows.
	waitingLocked
)

// sweep changes all rows of one table or partition.
type sweep struct {
	*Sweeper
	rows   rowset.Rows
	change rowset.Change
	// mode is how the next statement treats locked rows.
	mode sweepMode
	// after is the end of the previous statement. nil means at the start.
	after *int64
	// full: the previous statement changed its maximum number of rows.
	full bool
	// idleRounds counts the consecutive statements that have found rows and changed none.
	idleRounds int
}

// maxIdleRounds is the number of such statements after which rows count as kept: by triggers, or by
// transactions that change them back.
const maxIdleRounds = 3

// SizeKey returns the key of the sizes of its statements.
func (s *sweep) SizeKey() SizeKey {
	return SizeKey{s.rows.String(), s.change.Action(), s.rows.Database.Name}
}

// run sends statements until all rows are changed. It checks for a stop request before each one.
func (s *sweep) run(ctx context.Context) error {
	for done := false; !done; {
		if err := s.CheckStop(); err != nil {
			return err
		}
		// 1. Size the statement. After a full batch without locks it changes rows without picking
		// them first.
		b := rowset.Batch{
			Rows: s.Sizes.Get(s), After: s.after, SkipLocked: s.mode == skippingLocked,
			Direct: s.full && s.mode == unlocked && s.idleRounds == 0,
		}
		// 2. Send it. onError decides whether the sweep continues with a smaller or another
		// statement.
		r, took, err := s.send(ctx, &b)
		if err != nil {
			if err = s.onError(ctx, b, took, err); err != nil {
				return err
			}
			continue
		}
		// 3. Count its rows, and move to the next place.
		s.account(ctx, b, r, took)
		if done, err = s.advance(ctx, b, r); err != nil {
			return err
		}
	}
	return nil
}

// send sends the statement of a batch, and sets its permit in b.
func (s *sweep) send(
	ctx context.Context, b *rowset.Batch,
) (r rowset.BatchResult, took time.Duration, err error) {
	permit, err := s.Writer.Permit(ctx, repo.Of(s.rows.Database), s.rows.Table, s.limits(b.Rows))
	if err != nil {
		return r, 0, err
	}
	defer permit.End(&err)
	b.Permit = permit.Permit
	began := time.Now()
	r, err = s.rows.Sweep(ctx, s.change, *b)
	return r, time.Since(began), err
}

// limits returns the timeouts of a statement that changes up to that many rows. A statement for one
// row gets SingleRowTime.
func (s *sweep) limits(rows int64) fencing.Limits {
	if s.mode == waitingLocked {
		return s.Sizes.waitingLimits(s, rows)
	}
	l := fencing.Limits{Statement: s.Sizes.Time(s), Lock: LockTime}
	if rows <= 1 {
		l.Statement = SingleRowTime
	}
	return l
}

// empty returns a function that sends the statement for no row, and returns its duration.
func (s *sweep) empty(ctx context.Context) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		_, took, err := s.send(ctx, &rowset.Batch{SkipLocked: s.mode == skippingLocked})
		return took, err
	}
}

// account counts the changes of a statement, and learns from its duration. Time spent waiting for
// locks does not count.
func (s *sweep) account(ctx context.Context, b rowset.Batch, r rowset.BatchResult, took time.Duration) {
	if r.Changed > 0 {
		s.Count(ctx, s.rows.Table.Name, s.change, r.Changed)
	}
	if len(r.Reported) > 0 && s.Outside != nil {
		s.Outside(ctx, r.Reported)
	}
	if s.mode != waitingLocked {
		s.Sizes.Learn(s, Statement{
			Took: took, Limit: b.Rows, Found: r.Found, Capped: r.Found >= b.Rows, Empty: s.empty(ctx),
		})
	}
}

// advance decides on the next statement, and whether there is one.
//
// No row remains after a statement that was not full. Only a statement that began at the start, and
// changed all rows that it found, proves that none remains at all.
func (s *sweep) advance(
	ctx context.Context, b rowset.Batch, r rowset.BatchResult,
) (done bool, err error) {
	s.idleRounds++
	if r.Changed > 0 || r.Found == 0 {
		s.idleRounds = 0
	}
	if s.idleRounds >= maxIdleRounds {
		return false, s.rows.Kept(ctx, s.change)
	}
	if s.full = r.Found >= b.Rows; s.full {
		s.after = r.Last
		return false, nil
	}
	fromStart := s.after == nil && !b.Direct
	s.after = nil
	if s.mode == skippingLocked {
		s.mode = waitingLocked
		return false, nil
	}
	return fromStart && r.Found == r.Changed, nil
}

// onError makes the next statement smaller, or its timeout longer. It returns errors that neither
// helps against.
func (s *sweep) onError(
	ctx context.Context, b rowset.Batch, took time.Duration, err error,
) error {
	switch class := ClassOf(err, took, b.Limits); {
	case class == dberr.ClassLock && s.mode == waitingLocked:
		return &lockedError{s.rows.String()}
	case class == dberr.ClassLock:
		if s.mode == skippingLocked {
			s.after = nil
		}
		s.mode++
		return nil
	case class == dberr.ClassTimeout && b.Rows > 1:
		s.Sizes.Learn(s, Statement{Took: took, TimedOut: true, Limit: b.Rows, Empty: s.empty(ctx)})
		return nil
	}
	return err
}

// ClassOf returns the class of a statement's error. A cancel before the timeout came from a user or
// program, and is no timeout.
func ClassOf(err error, took time.Duration, l fencing.Limits) dberr.Class {
	refused, ok := errors.AsType[*dberr.Error](err)
	switch {
	case !ok, refused.Class() == dberr.ClassTimeout && took < l.Statement:
		return dberr.ClassData
	}
	return refused.Class()
}

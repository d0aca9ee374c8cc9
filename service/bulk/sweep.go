package bulk

import (
	"context"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// Sweeper changes and removes rows of one database in bounded statements, each a transaction
// of its own. It is for one goroutine.
type Sweeper struct {
	Catalog *repo.Catalog
	Sizes   *StatementSizes
	Writer  run.Writer
	// GoOn is asked before every statement; its error ends the sweep as it is.
	GoOn func() error
	// Count hears of every change that is committed: the table, what was done, and to how many
	// rows.
	Count func(ctx context.Context, table string, c repo.Change, rows int64)
	// Outside hears of the paths that removed rows had, of what is not in the database; nil: nobody
	// asks.
	Outside func(ctx context.Context, paths []string)
}

// lockedError means that rows are left because somebody else has locked them: everything else is
// done.
type lockedError struct{ rows string }

func (e *lockedError) Error() string {
	return "rows of " + e.rows + " are locked by another transaction: look for long ones in pg_stat_activity"
}

// Public says that the text is fit for clients.
func (e *lockedError) Public() {}

// Sweep changes all rows, first those that nobody else has locked. Rows that are still locked after
// waiting once are left: [*lockedError]. A statement that finds fewer rows than it may take, from
// the start, was the last.
func (w *Sweeper) Sweep(ctx context.Context, rows repo.Rows, c repo.Change) error {
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

// IsLocked says whether rows are left because others have locked them.
func IsLocked(err error) bool {
	var locked *lockedError
	return errors.As(err, &locked)
}

// parts asks goOn where that costs a statement.
func (w *Sweeper) parts(ctx context.Context, rows repo.Rows) ([]repo.Rows, error) {
	if !rows.Partitioned() {
		return []repo.Rows{rows}, nil
	}
	if err := w.GoOn(); err != nil {
		return nil, err
	}
	return w.Catalog.Parts(ctx, rows, ProbeLimits())
}

// ProbeLimits bound the statements that only look whether there are rows: like those for a single
// row.
func ProbeLimits() repo.Limits { return repo.Limits{Statement: SingleRowTime, Lock: LongLockTime} }

// sweepMode is how a statement behaves towards rows that somebody else has locked. Each mode starts
// where the one before has met a lock that it does not cope with.
type sweepMode int

const (
	// unlocked expects no locks: a statement that meets one changes nothing.
	unlocked sweepMode = iota
	// skippingLocked leaves locked rows out.
	skippingLocked
	// waitingLocked waits for them, from the start.
	waitingLocked
)

// Sweep is the change of all rows of one table or partition.
type sweep struct {
	*Sweeper
	rows   repo.Rows
	change repo.Change
	mode   sweepMode
	// behind is where the statement before ended; nil: at the start.
	behind *int64
	// full: the statement before has changed as many rows as it might.
	full bool
	// fruitless statements in a row have found rows and changed none.
	fruitless int
}

func (s *sweep) SizeKey() SizeKey {
	return SizeKey{What: s.rows.String(), Action: s.change.Action(), Database: s.rows.Database.Name}
}

func (s *sweep) run(ctx context.Context) error {
	for done := false; !done; {
		if err := s.GoOn(); err != nil {
			return err
		}
		b := repo.Batch{Rows: s.Sizes.Get(s), Behind: s.behind, SkipLocked: s.mode == skippingLocked, Swift: s.full && s.mode == unlocked && s.fruitless == 0}
		r, took, err := s.statement(ctx, &b)
		if err != nil {
			if err = s.yield(b, took, err); err != nil {
				return err
			}
			continue
		}
		if done, err = s.advance(ctx, b, r); err != nil {
			return err
		}
	}
	return nil
}

func (s *sweep) limits(rows int64) repo.Limits {
	l := repo.Limits{Statement: StatementTime, Lock: LockTime}
	if s.mode == waitingLocked {
		l = repo.Limits{Statement: StatementTime + LongLockTime, Lock: LongLockTime}
	}
	if rows == 1 {
		l.Statement = SingleRowTime
	}
	return l
}

// send sends the statement of a batch, and notes its permit there.
func (s *sweep) send(
	ctx context.Context, b *repo.Batch,
) (r repo.BatchResult, took time.Duration, err error) {
	permit, err := s.Writer.Permit(ctx, s.rows.Database, s.rows.Table, s.limits(b.Rows))
	if err != nil {
		return r, 0, err
	}
	defer permit.End(&err)
	b.Permit = permit.Permit
	began := time.Now()
	r, err = s.rows.Sweep(ctx, s.change, *b)
	return r, time.Since(began), err
}

// statement changes a batch and accounts for it. b keeps the limits it had.
func (s *sweep) statement(
	ctx context.Context, b *repo.Batch,
) (r repo.BatchResult, took time.Duration, err error) {
	if r, took, err = s.send(ctx, b); err != nil {
		return r, took, err
	}
	if s.mode != waitingLocked {
		s.Sizes.Observe(s, took, b.Rows, r.Picked, r.Picked >= b.Rows)
	}
	if r.Changed > 0 {
		s.Count(ctx, s.rows.Table.Name, s.change, r.Changed)
	}
	if len(r.Reported) > 0 && s.Outside != nil {
		s.Outside(ctx, r.Reported)
	}
	return r, took, nil
}

// maxFruitless statements may find rows and change none, because others move them under our hands,
// or triggers back.
const maxFruitless = 3

// advance decides what the next statement does: true, there is none.
func (s *sweep) advance(
	ctx context.Context, b repo.Batch, r repo.BatchResult,
) (done bool, err error) {
	s.fruitless++
	if r.Changed > 0 || r.Picked == 0 {
		s.fruitless = 0
	}
	if s.fruitless >= maxFruitless {
		return false, s.rows.Kept(ctx, s.change)
	}
	if s.full = r.Picked >= b.Rows; s.full {
		s.behind = r.Last
		return false, nil
	}
	// Nothing is left behind the last one. Whether nothing is left at all, a look from the start
	// says.
	fromStart := s.behind == nil && !b.Swift
	s.behind = nil
	if s.mode == skippingLocked {
		s.mode = waitingLocked
		return false, nil
	}
	return fromStart && r.Picked == r.Changed, nil
}

// yield makes the statement smaller, or more patient; errors that neither helps against are
// returned.
func (s *sweep) yield(b repo.Batch, took time.Duration, err error) error {
	switch class := ClassOf(err, took, b.Limits); {
	case class == repo.ClassLock && s.mode == waitingLocked:
		return &lockedError{s.rows.String()}
	case class == repo.ClassLock:
		if s.mode == skippingLocked {
			s.behind = nil
		}
		s.mode++
		return nil
	case class == repo.ClassTimeout && b.Rows > 1:
		s.Sizes.Halve(s, b.Rows)
		return nil
	}
	return err
}

// ClassOf is the class of a statement's error. A statement that was cancelled before its time was
// cancelled by somebody else, which is no time-out.
func ClassOf(err error, took time.Duration, l repo.Limits) repo.Class {
	var refused *repo.Error
	switch {
	case !errors.As(err, &refused):
		return repo.ClassData
	case refused.Class() == repo.ClassTimeout && took < l.Statement:
		return repo.ClassData
	}
	return refused.Class()
}

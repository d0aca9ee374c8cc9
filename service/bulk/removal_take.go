package bulk

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// takenAtOnce is how many rows that others depend on are removed together: every dependant is asked for all of them.
const takenAtOnce = 1000

// takes are the statements that read keys of rows to be removed.
type takes struct{ rows repo.Rows }

func (t takes) SizeKey() SizeKey {
	return SizeKey{What: t.rows.String(), Action: "take", Database: t.rows.Database.Name}
}

// Take finds rows of a parent and what depends on them, page by page, before they are removed.
func (w *Sweeper) Take(ctx context.Context, rows repo.Rows, columns []repo.Column, t *Taking) ([][]string, error) {
	for {
		if err := w.GoOn(); err != nil {
			return nil, err
		}
		b := repo.Batch{Rows: min(takenAtOnce, w.Sizes.Get(takes{rows})), SkipLocked: !t.waited}
		began := time.Now()
		values, err := w.take(ctx, rows, columns, t, &b)
		class := ClassOf(err, time.Since(began), b.Limits)
		switch {
		case err == nil && len(values[0]) == 0 && !t.waited:
			t.waited = true
		case err == nil:
			// Fewer than asked for are all that nobody has locked.
			t.waited = t.waited || int64(len(values[0])) < b.Rows
			return values, nil
		case class == repo.ClassLock && !t.waited:
			t.waited = true
		case class == repo.ClassLock:
			return nil, &lockedError{rows.String()}
		case class == repo.ClassTimeout && b.Rows > 1:
			w.Sizes.Halve(takes{rows}, b.Rows)
		default:
			return nil, err
		}
	}
}

// take sends one statement, and notes its permit in b.
func (w *Sweeper) take(
	ctx context.Context, rows repo.Rows, columns []repo.Column, t *Taking, b *repo.Batch,
) (values [][]string, err error) {
	limits := repo.Limits{Statement: StatementTime + LongLockTime, Lock: LongLockTime}
	if b.Rows == 1 {
		limits.Statement = SingleRowTime
	}
	permit, err := w.Writer.Permit(ctx, rows.Database, rows.Table, limits)
	if err != nil {
		return nil, err
	}
	defer permit.End(&err)
	b.Permit = permit.Permit
	return rows.Take(ctx, columns, t.Aside, *b)
}

func (w *Sweeper) any(ctx context.Context, rows repo.Rows) (bool, error) {
	if err := w.GoOn(); err != nil {
		return false, err
	}
	has, err := rows.Database.Any(ctx, []repo.Rows{rows}, ProbeLimits())
	if ClassOf(err, 0, repo.Limits{}) == repo.ClassLock {
		return false, &lockedError{rows.String()}
	}
	return err == nil && has[0], err
}

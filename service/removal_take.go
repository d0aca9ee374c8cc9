package service

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// takenAtOnce is how many rows that others depend on are removed together: every dependant is asked for all of them.
const takenAtOnce = 1000

// takes are the statements that read keys of rows to be removed.
type takes struct{ rows repo.Rows }

func (t takes) sizeKey() sizeKey {
	return sizeKey{t.rows.String(), "take", t.rows.Database.Name}
}

func (w *sweeper) take(ctx context.Context, rows repo.Rows, columns []repo.Column, t *taking) ([][]string, error) {
	for {
		if err := w.goOn(); err != nil {
			return nil, err
		}
		b := repo.Batch{Rows: min(takenAtOnce, w.sizes.get(takes{rows})), SkipLocked: !t.waited}
		limits := repo.Limits{Statement: statementTime + longLockTime, Lock: longLockTime}
		if b.Rows == 1 {
			limits.Statement = singleRowTime
		}
		var values [][]string
		var took time.Duration
		err := w.write(ctx, rows.Database, rows.Table, limits, func(g repo.Guard, l repo.Limits) (err error) {
			b.Guard, b.Limits = g, l
			began := time.Now()
			values, err = rows.Take(ctx, columns, t.aside, b)
			took = time.Since(began)
			return err
		})
		class := classOf(err, took, b.Limits)
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
			w.sizes.halve(takes{rows}, b.Rows)
		default:
			return nil, err
		}
	}
}

func (w *sweeper) any(ctx context.Context, rows repo.Rows) (bool, error) {
	if err := w.goOn(); err != nil {
		return false, err
	}
	has, err := rows.Database.Any(ctx, []repo.Rows{rows}, probeLimits())
	if classOf(err, 0, repo.Limits{}) == repo.ClassLock {
		return false, &lockedError{rows.String()}
	}
	return err == nil && has[0], err
}

package repo

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// How often a transaction is tried, and how long is waited before the second try; before the others four times as long
// as before the one before.
const (
	tries      = 4
	firstPause = 10 * time.Millisecond
)

// again does a transaction of ours anew that the database has ended to get out of a deadlock (40P01) or because another
// one came first (40001): it has changed nothing, and the other one needs a moment only. What do has set must be set
// anew by the next try. After four tries, or when ctx ends, the error stands.
//
// Statements on the application's rows are not for it: what to do about a lock is their worker's business.
func again(ctx context.Context, do func() error) error {
	pause := firstPause
	for n := 1; ; n++ {
		err := do()
		if n == tries || !collided(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(float64(pause) * (0.5 + rand.Float64()))):
		}
		pause *= 4
	}
}

func collided(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "40001")
}

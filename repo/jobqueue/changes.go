package jobqueue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// OutsideCount is how many paths a job has left outside the database, and how many of them are
// pending.
type OutsideCount struct{ All, Pending int64 }

const countOutsideSQL = `
SELECT count(*), count(*) FILTER (WHERE done_at IS NULL)
FROM maintenance.outside_paths WHERE job_id = $1`

// JobChanges is what a job's attempts have changed and left, as far as it is committed and kept.
type JobChanges struct {
	// Tables are what was changed in main, by the receipts; Outside is what it has left.
	Tables  []TableCount
	Outside OutsideCount
}

// JobChanges reads what a job's attempts have changed and left.
func (d Jobs) JobChanges(ctx context.Context, id int64) (c JobChanges, err error) {
	q := pg.NewQuery("read what a job has changed", jobTablesSQL, id)
	if c.Tables, err = pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[TableCount]); err != nil {
		return c, err
	}
	into := []any{&c.Outside.All, &c.Outside.Pending}
	err = pg.QueryRow(ctx, d.db, "count the paths that a job has left", into, countOutsideSQL, id)
	return c, err
}

package jobqueue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// OutsideCount is the number of paths that a job has left outside the database, and of the pending
// ones.
type OutsideCount struct{ All, Pending int64 }

const countOutsideSQL = `
SELECT count(*), count(*) FILTER (WHERE done_at IS NULL)
FROM maintenance.outside_paths WHERE job_id = $1`

// JobChanges are the committed and stored changes and leftovers of a job's attempts.
type JobChanges struct {
	// Tables are the changes in main, from the receipts. Outside counts the leftovers.
	Tables  []TableCount
	Outside OutsideCount
}

// JobChanges reads the changes and leftovers of a job's attempts.
func (d Jobs) JobChanges(ctx context.Context, id int64) (c JobChanges, err error) {
	q := pg.NewQuery("read the changes of a job", jobTablesSQL, id)
	if c.Tables, err = pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[TableCount]); err != nil {
		return c, err
	}
	into := []any{&c.Outside.All, &c.Outside.Pending}
	err = pg.QueryRow(ctx, d.db, "count paths left by the job", into, countOutsideSQL, id)
	return c, err
}

package rowset

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Deleted rows can leave paths outside the database, such as a repository on a disk. The deleting
// statement records these paths in maintenance.outside_paths. Both are committed or neither. A
// repeated step finds no rows and records nothing.

// recordOutsideSQL is the part of sweepSQL that records paths. It runs whether or not anything
// reads it.
const recordOutsideSQL = `
left_outside AS (
  INSERT INTO maintenance.outside_paths (run_id, job_id, kind, path)
  SELECT {run}::uuid, {job}::bigint, {kind}::text, report::text FROM changed
  WHERE report IS NOT NULL
),`

// recordOutside returns that part for a change of these rows, "" if they leave nothing outside.
// Only main has the table.
func (r Rows) recordOutside(c Change, by fencing.Source, p *stmt.Parameters) string {
	if c.Outside == "" || r.Database.Name != "main" {
		return ""
	}
	run, job := by.IDs()
	return stmt.Fill(recordOutsideSQL, "{run}", p.Add(run), "{job}", p.Add(job), "{kind}", p.Add(c.Outside))
}

// OutsidePath is a path outside the database that deleted rows have left.
type OutsidePath struct {
	ID int64
	// RunID or JobID has deleted the row, the other is zero.
	RunID string
	JobID int64
	// Kind is the kind of the path, Path its location in the row.
	Kind, Path string
	// At is the time of the deletion, by the clock of main. DoneAt is the time when DoneBy reported
	// that nothing is left there, zero before.
	At, DoneAt time.Time
	DoneBy     string
}

const outsideColumns = `id, coalesce(run_id::text, ''), coalesce(job_id, 0), kind, path, at, done_at, done_by`

// OutsideFilter selects paths.
type OutsideFilter struct {
	// JobID and RunID are zero for all.
	JobID int64
	RunID string
	// Pending selects only those that are not done.
	Pending bool
	// After is the id after which the page begins. Limit is the maximum number of paths.
	After int64
	Limit int
}

const listOutsideSQL = `
SELECT ` + outsideColumns + ` FROM maintenance.outside_paths
WHERE id > $1 AND ($2::bigint = 0 OR job_id = $2) AND ($3 = '' OR run_id = nullif($3, '')::uuid)
  AND (NOT $4::boolean OR done_at IS NULL)
ORDER BY id LIMIT $5`

// ListOutside reads a page of paths, oldest first.
func (d Outside) ListOutside(ctx context.Context, f OutsideFilter) ([]OutsidePath, error) {
	q := pg.NewQuery("list paths", listOutsideSQL, stmt.CustomPlan, f.After, f.JobID, f.RunID, f.Pending, f.Limit)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[OutsidePath])
}

const (
	unknownOutsideSQL = `
SELECT w.id FROM (SELECT DISTINCT unnest($1::bigint[]) AS id) w
WHERE NOT EXISTS (SELECT FROM maintenance.outside_paths o WHERE o.id = w.id OFFSET 0)
ORDER BY w.id`

	// ackOutsideSQL does not change paths that are already done.
	ackOutsideSQL = `
UPDATE maintenance.outside_paths SET done_at = clock_timestamp(), done_by = $2
WHERE id = ANY ($1::bigint[]) AND done_at IS NULL`

	readOutsideSQL = `
SELECT ` + outsideColumns + ` FROM maintenance.outside_paths
WHERE id = ANY ($1::bigint[]) ORDER BY id`
)

// errUnknownOutside rolls back the transaction.
var errUnknownOutside = errors.New("unknown paths")

// AckOutside marks paths as done and returns them. Paths that are already done do not change. If
// some ids are unknown, it marks nothing and returns these ids instead.
func (d Outside) AckOutside(
	ctx context.Context, ids []int64, by string,
) (done []OutsidePath, unknown []int64, err error) {
	do := func(ctx context.Context, tx *pg.Changing) error {
		rows, _ := tx.Query(ctx, unknownOutsideSQL, ids)
		if unknown, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			return err
		}
		if len(unknown) > 0 {
			return errUnknownOutside
		}
		if _, err := tx.Exec(ctx, ackOutsideSQL, ids, by); err != nil {
			return err
		}
		rows, _ = tx.Query(ctx, readOutsideSQL, ids)
		done, err = pgx.CollectRows(rows, pgx.RowToStructByPos[OutsidePath])
		return err
	}
	err = pg.Transaction(ctx, d.db, "mark paths as done", fencing.Permit{Guard: fencing.Unguarded(), Limits: fencing.AckLimits()}, do)
	if errors.Is(err, errUnknownOutside) {
		return nil, unknown, nil
	}
	return done, nil, err
}

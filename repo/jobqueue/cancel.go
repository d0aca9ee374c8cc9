package jobqueue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

const (
	// cancelJobSQL records the cancellation, which stops running attempts, and ends a waiting job:
	// both or neither. It waits for no attempt. A running attempt ends itself.
	cancelJobSQL = `
WITH noted AS (
  INSERT INTO maintenance.job_cancellations (job_id, user_id, group_id, reason, cancelled_by)
  SELECT id, CASE kind
      WHEN 'delete_user' THEN (args ->> 'user_id')::bigint
      WHEN 'delete_placeholder_user' THEN (args ->> 'placeholder_user_id')::bigint END,
    CASE kind WHEN 'destroy_group' THEN (args ->> 'group_id')::bigint END, $2, $3
  FROM maintenance.river_job WHERE id = $1 AND finalized_at IS NULL
  ON CONFLICT (job_id) DO NOTHING
)
UPDATE maintenance.river_job
SET state = 'cancelled', finalized_at = now(),
  metadata = metadata || '{"outcome": "cancelled", "reason": "CANCELLED"}'
WHERE id = $1 AND state IN ('available', 'pending', 'scheduled', 'retryable')`

	// cancellationSQL reads why a job was cancelled, by whom and when.
	cancellationSQL = `
SELECT reason, cancelled_by, cancelled_at FROM maintenance.job_cancellations WHERE job_id = $1`

	// uncancelSQL lets a retried job run again.
	uncancelSQL = `DELETE FROM maintenance.job_cancellations WHERE job_id = $1`
)

// CancelJob stops a job that has not ended. A waiting job ends at once. A running job writes
// nothing more, and ends itself. If the job does not exist, the error is [dberr.ErrNotFound].
func (d Jobs) CancelJob(ctx context.Context, id int64, reason, by string) (QueuedJob, error) {
	if _, err := pg.Exec(ctx, d.db, "cancel the job", cancelJobSQL, id, reason, by); err != nil {
		return QueuedJob{}, err
	}
	return d.ReadJob(ctx, id)
}

// JobCancelled returns the text of who cancelled a job and why, "" if it was not cancelled.
func (d Jobs) JobCancelled(ctx context.Context, id int64) (text string, err error) {
	c, err := cancellation(ctx, d.db, id)
	if c != nil {
		text = "cancelled by " + c.By + ": " + c.Reason
	}
	return text, err
}

// cancellation returns the cancellation of a job, nil if it has none.
func cancellation(ctx context.Context, d *pg.Database, id int64) (*Cancellation, error) {
	q := pg.NewQuery("check whether the job was cancelled", cancellationSQL, id)
	found, err := pg.Collect(ctx, d, q, pgx.RowToAddrOfStructByPos[Cancellation])
	if len(found) == 0 {
		return nil, err
	}
	return found[0], err
}

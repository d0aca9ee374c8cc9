package jobqueue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// QueueDue describes the due jobs of a queue.
type QueueDue struct {
	Queue string
	// Waits: a job has been due for a while, and no server has taken it.
	Waits bool
	// Later: other jobs become due, the first after In, by the clock of main.
	Later bool
	In    time.Duration
}

// dueJobsSQL reads one row of River's index for each queue and state. All jobs have River's default
// priority. River compares with now().
const dueJobsSQL = `
SELECT q.name, current_setting('transaction_read_only') = 'on',
  EXISTS (
    SELECT FROM maintenance.river_job
    WHERE state = 'available' AND queue = q.name AND priority = 1
      AND scheduled_at <= now() - $3::interval AND kind = ANY ($2)),
  extract(epoch FROM min(next.scheduled_at) - (now() - $3::interval))::float8
FROM unnest($1::text[]) AS q (name)
CROSS JOIN unnest('{available,scheduled,retryable}'::maintenance.river_job_state[]) AS s (state)
LEFT JOIN LATERAL (
  SELECT j.scheduled_at FROM maintenance.river_job j
  WHERE j.state = s.state AND j.queue = q.name AND j.priority = 1
    AND j.scheduled_at > now() - $3::interval
  ORDER BY j.scheduled_at LIMIT 1
) next ON true
GROUP BY q.name`

// In selects queues and kinds of jobs.
type In struct {
	Queues, Kinds []string
	// Grace is how long a job may have been due.
	Grace time.Duration
}

// DueJobs returns which of these queues have jobs of these kinds that have been due for longer than
// the grace. It also returns when jobs of any kind become due. If the database is read-only, the
// error is [dberr.ErrUnreachable].
func (d Jobs) DueJobs(ctx context.Context, in In) ([]QueueDue, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	ctx, o := pg.BeginRoutine(ctx, d.db, "find due jobs")
	var readOnly bool
	var due []QueueDue
	scan := func(row pgx.CollectableRow) (QueueDue, error) { return scanQueueDue(row, &readOnly) }
	err := pg.RetryConflicts(ctx, func() error {
		rows, err := pg.PoolOf(d.db).Query(ctx, dueJobsSQL, in.Queues, in.Kinds, in.Grace)
		if err == nil {
			due, err = pgx.CollectRows(rows, scan)
		}
		return err
	})
	if err == nil {
		err = pg.RecordWritable(d.db, readOnly)
	}
	o.End(ctx, err)
	return due, pg.Wrap(ctx, d.db, "find due jobs", err)
}

// scanQueueDue reads a row of dueJobsSQL. readOnly reports whether the server refuses writes.
func scanQueueDue(row pgx.CollectableRow, readOnly *bool) (due QueueDue, err error) {
	var seconds *float64
	err = row.Scan(&due.Queue, readOnly, &due.Waits, &seconds)
	if seconds != nil {
		due.Later, due.In = true, time.Duration(*seconds*float64(time.Second))
	}
	return due, err
}

package gitlab

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// A pass is one walk over all bots. Its position is stored with the jobs of each range. At most one
// is unfinished.

// TokenPass is a row of maintenance.token_passes.
type TokenPass struct {
	// ID is "" if no pass is open.
	ID string
	TokenRules
	// Cursor is the highest id of a processed bot.
	Cursor int64
}

// openTokenPassSQL continues the unfinished pass, else opens one with T = $1 and C = $2, or none if
// $3 is false. It also deletes passes that were finished long ago.
const openTokenPassSQL = `
WITH {guard},
forgotten AS (
  DELETE FROM maintenance.token_passes WHERE id = ANY (ARRAY(
    SELECT p.id FROM maintenance.token_passes p, guard
    WHERE p.finished_at < clock_timestamp() - interval '30 days' LIMIT 100))
),
unfinished AS (
  SELECT id, started_at, cut_off, cursor FROM maintenance.token_passes WHERE finished_at IS NULL
),
opened AS (
  INSERT INTO maintenance.token_passes (started_at, cut_off, today)
  SELECT $1::timestamptz, $2::timestamptz, ($1::timestamptz AT TIME ZONE 'UTC')::date FROM guard
  WHERE $3::boolean AND NOT EXISTS (SELECT FROM unfinished)
  RETURNING id, started_at, cut_off, cursor
)
SELECT EXISTS (SELECT FROM guard), coalesce(p.id::text, ''),
  coalesce(p.started_at, $1), coalesce(p.cut_off, $2), coalesce(p.cursor, 0)
FROM (SELECT) AS always LEFT JOIN (
  SELECT id, started_at, cut_off, cursor FROM unfinished
  UNION ALL
  SELECT id, started_at, cut_off, cursor FROM opened
) p ON true`

// OpenTokenPass continues the unfinished pass, which keeps its rules, or opens one with these
// rules. With resume it opens none: the ID is then "".
func (d Tokens) OpenTokenPass(
	ctx context.Context, p fencing.Permit, rules TokenRules, resume bool,
) (pass TokenPass, err error) {
	q := pg.NewQuery("start a bot check", openTokenPassSQL, rules.At, rules.CutOff, !resume)
	err = pg.Write(ctx, d.db, p, q, &pass.ID, &pass.At, &pass.CutOff, &pass.Cursor)
	return pass, err
}

// dropTokenPassSQL deletes the unfinished pass, while the guard holds.
const dropTokenPassSQL = `
WITH {guard},
dropped AS (
  DELETE FROM maintenance.token_passes p USING guard WHERE p.finished_at IS NULL RETURNING 1
)
SELECT EXISTS (SELECT FROM guard), (SELECT count(*) FROM dropped)`

// DropTokenPass deletes the unfinished pass, and reports whether there was one.
func (d Tokens) DropTokenPass(ctx context.Context, p fencing.Permit) (dropped bool, err error) {
	var n int
	err = pg.Write(ctx, d.db, p, pg.NewQuery("end the bot check", dropTokenPassSQL), &n)
	return n > 0, err
}

// TokenStep is the result of a range for its pass.
type TokenStep struct {
	BotRange
	// Jobs are the jobs delete_user of the inactive bots.
	Jobs []jobqueue.Job
	// Continue, if not nil, is the job that continues the pass, due ContinueAfter from now.
	Continue      *jobqueue.Job
	ContinueAfter time.Duration
}

// advanceTokenPassSQL: $2 is the cursor, $3 and $4 are the numbers of bots and jobs, $5 marks the
// last range.
const advanceTokenPassSQL = `
WITH {guard},
advanced AS (
  UPDATE maintenance.token_passes p
  SET cursor = $2, examined = examined + $3, scheduled = scheduled + $4,
    finished_at = CASE WHEN $5 THEN clock_timestamp() END
  FROM guard WHERE p.id = $1::text::uuid AND p.finished_at IS NULL
  RETURNING 1
){journal}
SELECT EXISTS (SELECT FROM guard), EXISTS (SELECT FROM advanced)`

// AdvanceTokenPass inserts a range's jobs and moves the cursor after it, in one transaction. It
// returns how many jobs were inserted. If the pass was deleted or finished, the error is
// [dberr.ErrNotFound].
func (d Tokens) AdvanceTokenPass(
	ctx context.Context, p fencing.Permit, pass string, step TokenStep, queue jobqueue.Queue,
) (scheduled int, err error) {
	const operation = "save the progress of the bot check"
	var held, advanced bool
	sql := pg.Journaled(advanceTokenPassSQL, "('examined_users', (SELECT $3::bigint FROM advanced)), "+
		"('scheduled_jobs', (SELECT $4::bigint FROM advanced))", 6)
	args := func() []any { return []any{pass, step.Last, step.Examined, scheduled, !step.More, p.RunID} }
	// Without jobs one guarded statement suffices.
	if len(step.Jobs) == 0 && step.Continue == nil {
		err = pg.Write(ctx, d.db, p, pg.NewQuery(operation, sql, args()...), &advanced)
		if err == nil && !advanced {
			err = dberr.ErrNotFound
		}
		return 0, err
	}
	err = pg.Transaction(ctx, d.db, operation, p, func(ctx context.Context, tx *pg.Changing) (err error) {
		if scheduled, err = queue.InsertJobs(ctx, tx, step.Jobs); err != nil {
			return err
		}
		if err := queueContinuation(ctx, tx, pass, step, queue); err != nil {
			return err
		}
		s := p.Fill(stmt.Statement{SQL: sql, Args: args()})
		err = tx.QueryRow(ctx, s.SQL, s.Args...).Scan(&held, &advanced)
		switch {
		case err != nil:
			return err
		case !held:
			return p.Refused(ctx, tx)
		case !advanced:
			return dberr.ErrNotFound
		}
		return nil
	})
	return scheduled, err
}

// dueLaterSQL computes a time by main's clock.
const dueLaterSQL = `SELECT clock_timestamp() + $1::interval`

// queueContinuation inserts the job that continues the pass, if the step has one.
func queueContinuation(
	ctx context.Context, tx pgx.Tx, pass string, step TokenStep, queue jobqueue.Queue,
) error {
	if step.Continue == nil {
		return nil
	}
	job := *step.Continue
	job.Args = jobqueue.ContinueInactiveTokenDeletion{PassID: pass}
	if err := tx.QueryRow(ctx, dueLaterSQL, step.ContinueAfter).Scan(&job.ScheduledAt); err != nil {
		return err
	}
	_, err := queue.InsertJobs(ctx, tx, []jobqueue.Job{job})
	return err
}

// unfinishedTokenPassSQL returns false for a pass that was deleted.
const unfinishedTokenPassSQL = `
SELECT EXISTS (SELECT FROM maintenance.token_passes WHERE id::text = $1 AND finished_at IS NULL)`

// TokenPassUnfinished reports whether a pass has remaining work.
func (d Tokens) TokenPassUnfinished(
	ctx context.Context, id string,
) (unfinished bool, err error) {
	err = pg.QueryRow(ctx, d.db, "read the progress of the bot check", []any{&unfinished},
		unfinishedTokenPassSQL, id)
	return unfinished, err
}

// newJobsSQL returns the bots of $1 without a waiting or running job with this reason.
const newJobsSQL = `
SELECT bot.id FROM unnest($1::bigint[]) AS bot (id)
WHERE NOT EXISTS (
  SELECT FROM maintenance.river_job j
  WHERE j.kind = 'delete_user' AND j.state IN ('available', 'pending', 'scheduled', 'retryable', 'running')
    AND j.args @> jsonb_build_object('user_id', bot.id, 'reason', $2::text))
ORDER BY bot.id`

// NewDeletions returns the users for whom a job delete_user with this reason would be inserted, by
// their ids.
func (d Tokens) NewDeletions(
	ctx context.Context, users []int64, reason string, l fencing.Limits,
) ([]int64, error) {
	q := pg.NewQuery("find users without a queued job", newJobsSQL, users, reason)
	return pg.ReadRows(ctx, d.db, l, q, pgx.RowTo[int64])
}

// tokenBacklogSQL returns no row without an unfinished pass.
const tokenBacklogSQL = `
SELECT p.started_at, (SELECT count(*) FROM (
    SELECT FROM users WHERE (user_type, id) > (6, p.cursor) AND user_type <= 6
    ORDER BY user_type, id LIMIT $1) above),
  (SELECT min(j.scheduled_at) FROM maintenance.river_job j
    WHERE j.kind = 'continue_inactive_token_deletion' AND j.state IN ('available', 'pending', 'scheduled', 'retryable')
      AND j.args @> jsonb_build_object('pass_id', p.id)),
  clock_timestamp()
FROM maintenance.token_passes p WHERE p.finished_at IS NULL`

// TokenBacklog counts the bots above the cursor of the unfinished pass. They are deferred while its
// continuation waits, which is due at goesOn. Zero means that none waits. Dead ones are not
// counted.
func (d Tokens) TokenBacklog(
	ctx context.Context, l fencing.Limits,
) (b control.Backlog, continuesAt time.Time, err error) {
	type row struct {
		StartedAt time.Time
		Above     int64
		GoesOn    time.Time
		ReadAt    time.Time
	}
	q := pg.NewQuery("count the backlog", tokenBacklogSQL, control.BacklogCap+1)
	passes, _, err := pg.ReplicaRows(ctx, d.db, l, q, pgx.RowToStructByPos[row])
	for _, p := range passes {
		b = control.Backlog{Pending: p.Above, OldestAt: p.StartedAt, ReadAt: p.ReadAt}
		continuesAt = p.GoesOn
		if continuesAt.IsZero() {
			b.Due = p.Above
		}
	}
	return b.Capped(), continuesAt, err
}

// abandonedTokenPassSQL: the newest run that had the lease $1 has died, or was stopped by the end
// of its process. Runs that had a lease have an epoch, or were about to save theirs. LEASE_LOST
// marks the latter if the run was closed meanwhile.
const abandonedTokenPassSQL = `
SELECT EXISTS (SELECT FROM maintenance.token_passes WHERE finished_at IS NULL)
  AND NOT EXISTS (SELECT FROM maintenance.leases WHERE name = $1 AND expires_at > clock_timestamp())
  AND coalesce((
    SELECT r.state = 'running' OR r.reason IN ('LEASE_LOST', 'SHUTDOWN') FROM maintenance.runs r
    WHERE r.worker = $1 AND NOT r.dry_run AND (r.state = 'running' OR r.reason = 'LEASE_LOST' OR r.lease_epoch > 0)
    ORDER BY r.id DESC LIMIT 1), false)`

// TokenPassAbandoned reports whether a dead run of this worker has left a pass unfinished, and its
// lease has expired.
func (d Tokens) TokenPassAbandoned(
	ctx context.Context, worker string,
) (abandoned bool, err error) {
	err = pg.QueryRow(ctx, d.db, "find an abandoned bot check", []any{&abandoned},
		abandonedTokenPassSQL, worker)
	return abandoned, err
}

// waitingDeletionsSQL counts up to $1 of the jobs, and as many of the rows of the ghost migration.
const waitingDeletionsSQL = `
SELECT (SELECT count(*) FROM (
    SELECT FROM maintenance.river_job j
    WHERE j.kind = 'delete_user' AND j.state IN ('available', 'pending', 'scheduled', 'retryable', 'running') LIMIT $1) jobs)
  + (SELECT count(*) FROM (SELECT FROM {ghosts} LIMIT $1) ghosts)`

// WaitingDeletions counts the users who wait for their deletion: jobs delete_user that have not
// ended, and rows of the ghost migration's queue. Counts above limit may be incomplete.
func (d Tokens) WaitingDeletions(
	ctx context.Context, f UserFeatures, limit int, l fencing.Limits,
) (n int, err error) {
	sql := stmt.Fill(waitingDeletionsSQL, "{ghosts}", stmt.Quote(f.ghosts))
	err = pg.ReadRow(ctx, d.db, l, pg.NewQuery("count users queued for deletion", sql, limit), &n)
	return n, err
}

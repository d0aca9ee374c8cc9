package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// States and triggers of a run, as maintenance.runs stores them.
const (
	RunRunning   = "running"
	RunSucceeded = "succeeded"
	RunFailed    = "failed"
	RunCancelled = "cancelled"
	RunSkipped   = "skipped"

	TriggerSchedule = "schedule"
	TriggerRequest  = "request"
)

// Run is a row of maintenance.runs, with most fields of the message Run of the API.
type Run struct {
	ID, Worker, Database, Trigger, State, Reason, Error, TraceID, RequestedBy string
	DryRun, OverLimit, TurboMode                                              bool
	LeaseEpoch                                                                int64
	StartedAt                                                                 time.Time
	// FinishedAt is zero while the run is running.
	FinishedAt  time.Time
	Counts      map[string]int64
	Tables      []jobqueue.TableCount
	Definitions []DefinitionCount
	// Candidates are the first candidates of a dry run, MoreCandidates the number of further ones.
	// CandidatesDigest covers all, and is "" if not all could be read. Lists of runs leave them
	// out.
	Candidates       []Candidate
	MoreCandidates   int64
	CandidatesDigest string
	// RequestID is the client's, empty if it gave none. Replica is the process of the run.
	RequestID, Replica string
	// SilentSince is the last heartbeat of a running run that has sent none for ten seconds. DeadAt
	// is when it will be presumed dead. Both are zero otherwise.
	SilentSince, DeadAt time.Time
	// Fire is the time of its fire, zero for none. It is stored with the fire, not with the run.
	Fire time.Time
	// Unsettled: a run that ends may have committed more than its counts show. EarlierUnsettled: so
	// may earlier runs of its worker.
	Unsettled, EarlierUnsettled bool
}

// DefinitionCount is the result of a dry run for one definition.
type DefinitionCount struct {
	Table   string `json:"table"`
	Column  string `json:"column"`
	Parent  string `json:"parent"`
	Action  string `json:"action"`
	Rows    int64  `json:"rows"`
	AtLeast bool   `json:"at_least"`
}

// runColumns are in the order of (*Run).scan.
const runColumns = `id::text, worker, database, trigger, state, reason, error, trace_id, requested_by, dry_run, over_limit,
  turbo_mode, lease_epoch, started_at, finished_at, counts, tables, definitions, coalesce(request_id, ''), replica,
  CASE WHEN state = 'running' AND heartbeat_at < clock_timestamp() - least(interval '10 seconds', heartbeat_ttl) THEN heartbeat_at END, heartbeat_at + heartbeat_ttl`

// wholeRunColumns are in the order of scanWholeRun.
const wholeRunColumns = runColumns + `, candidates, more_candidates, candidates_digest`

// scanWholeRun reads the columns of wholeRunColumns.
func scanWholeRun(row pgx.CollectableRow) (r Run, err error) {
	err = r.scan(row, &r.Candidates, &r.MoreCandidates, &r.CandidatesDigest)
	return r, err
}

// scanRun reads the columns of runColumns: a run without its candidates.
func scanRun(row pgx.CollectableRow) (r Run, err error) {
	err = r.scan(row)
	return r, err
}

// scan reads the columns of runColumns, then further ones into more. DeadAt is zero unless the run
// is silent.
func (r *Run) scan(row pgx.Row, more ...any) error {
	err := row.Scan(append([]any{
		&r.ID, &r.Worker, &r.Database, &r.Trigger, &r.State, &r.Reason, &r.Error, &r.TraceID, &r.RequestedBy,
		&r.DryRun, &r.OverLimit, &r.TurboMode, &r.LeaseEpoch, &r.StartedAt, &r.FinishedAt, &r.Counts, &r.Tables,
		&r.Definitions, &r.RequestID, &r.Replica, &r.SilentSince, &r.DeadAt,
	}, more...)...)
	if r.SilentSince.IsZero() {
		r.DeadAt = time.Time{}
	}
	return err
}

// runByRequestSQL reads a run by the client's request id.
const runByRequestSQL = `SELECT ` + wholeRunColumns + ` FROM maintenance.runs WHERE request_id = $1`

// RunByRequest returns the run of a client's request id, or [dberr.ErrNotFound].
func (d Runs) RunByRequest(ctx context.Context, requestID string) (Run, error) {
	q := pg.NewQuery("read the run of the request", runByRequestSQL, requestID)
	return oneOfRuns(ctx, d.db, q, scanWholeRun)
}

// runByIDSQL reads a run by its id.
const runByIDSQL = `SELECT ` + wholeRunColumns + ` FROM maintenance.runs WHERE id = $1::text::uuid`

// Run reads a run, or returns [dberr.ErrNotFound].
func (d Runs) Run(ctx context.Context, id string) (Run, error) {
	return oneOfRuns(ctx, d.db, pg.NewQuery("read the run", runByIDSQL, id), scanWholeRun)
}

// runsBetweenSQL lists the ids in a range, such as those with the same beginning.
const runsBetweenSQL = `
SELECT id::text FROM maintenance.runs
WHERE id BETWEEN $1::text::uuid AND $2::text::uuid ORDER BY runs.id DESC LIMIT $3`

// RunsBetween returns the ids from first to last, at most so many, the newest first.
func (d Runs) RunsBetween(ctx context.Context, first, last string, most int) ([]string, error) {
	q := pg.NewQuery("find runs by ID prefix", runsBetweenSQL, first, last, most)
	return pg.Collect(ctx, d.db, q, pgx.RowTo[string])
}

// deleteRunSQL deletes a run by its id.
const deleteRunSQL = `DELETE FROM maintenance.runs WHERE id = $1::text::uuid`

// DeleteRun deletes a run that could not start, so that its request id can be used again.
func (d Runs) DeleteRun(ctx context.Context, id string) error {
	_, err := pg.Exec(ctx, d.db, "delete the run record", deleteRunSQL, id)
	return err
}

// saveProgressSQL changes a running run only. It returns whether the run was asked to stop.
const saveProgressSQL = `
UPDATE maintenance.runs r SET heartbeat_at = clock_timestamp(), counts = $2, tables = $3, lease_epoch = $4, turbo_mode = $5,
  reason = $6
WHERE r.id = $1::text::uuid AND r.state = 'running'
RETURNING r.cancel_requested_at IS NOT NULL, r.error, EXISTS (
  SELECT FROM maintenance.pauses p
  WHERE p.worker IN (r.worker, '*') AND (p.until IS NULL OR p.until > clock_timestamp()))`

// SaveProgress saves the heartbeat and the counts of a running run. It reports whether a user has
// asked to cancel the run, and whether its worker is paused. If the run was presumed dead, the
// error is [dberr.ErrNotFound].
func (d Runs) SaveProgress(ctx context.Context, run Run) (w StopRequest, err error) {
	err = pg.QueryRow(ctx, d.db, "save the run's progress", []any{&w.Cancelled, &w.Text, &w.Paused}, saveProgressSQL,
		run.ID, asJSON(nonNil(run.Counts)), asJSON(orEmpty(run.Tables)), run.LeaseEpoch, run.TurboMode, run.Reason)
	return w, err
}

// StopRequest reports whether a running run was asked to stop.
type StopRequest struct {
	Cancelled, Paused bool
	// Text is the text of RequestCancel.
	Text string
}

//nolint:unqueryvet // ended.* are the columns of its RETURNING, here and below
const finishRunSQL = `
WITH ended AS (
UPDATE maintenance.runs SET state = $2, reason = $3, error = $4, over_limit = $5, turbo_mode = $6, lease_epoch = $7,
  counts = $8, tables = $9, definitions = $10, candidates = $11, more_candidates = $12, candidates_digest = $13,
  heartbeat_at = clock_timestamp(), finished_at = clock_timestamp()
WHERE id = $1::text::uuid AND CASE WHEN $14 THEN state = 'failed' AND starts_with(error, ` + abandonedSQL + `) ELSE state = 'running' END
RETURNING ` + wholeRunColumns + `)` + unsettledSQL + `
SELECT ended.*, EXISTS (SELECT FROM maintenance.run_counts c JOIN maintenance.runs r ON r.id = c.run_id
  WHERE c.name = '' AND (r.worker, r.database) = (ended.worker, ended.database))
FROM ended`

// FinishRun records the end of a run. It corrects a run that was presumed dead and closed
// meanwhile, because its process was suspended or could not reach main. If the run was deleted or
// has ended otherwise, the error is [dberr.ErrNotFound].
func (d Runs) FinishRun(ctx context.Context, run Run) (stored Run, closed bool, err error) {
	scan := func(row pgx.CollectableRow) (r Run, err error) {
		err = r.scan(row, &r.Candidates, &r.MoreCandidates, &r.CandidatesDigest, &r.EarlierUnsettled)
		return r, err
	}
	for _, closed = range []bool{false, true} {
		q := pg.NewQuery("record the run's end", stmt.Fill(finishRunSQL, "{unsettled}", "$15"), run.ID, run.State, run.Reason, run.Error, run.OverLimit,
			run.TurboMode, run.LeaseEpoch, asJSON(nonNil(run.Counts)), asJSON(orEmpty(run.Tables)), asJSON(orEmpty(run.Definitions)),
			asJSON(orEmpty(run.Candidates)), run.MoreCandidates, run.CandidatesDigest, closed, run.Unsettled)
		stored, err = oneOfRuns(ctx, d.db, q, scan)
		if !errors.Is(err, dberr.ErrNotFound) {
			break
		}
	}
	return stored, closed, err
}

// abandonedSQL begins the error of a run whose end is unknown.
const abandonedSQL = `'no heartbeat from the process that ran it'`

//nolint:unqueryvet // as above
const closeAbandonedRunsSQL = `
WITH ended AS (
UPDATE maintenance.runs SET state = 'failed', reason = 'LEASE_LOST', finished_at = heartbeat_at,
  error = ` + abandonedSQL + ` || '; it has done at least what its counts say'
WHERE state = 'running' AND heartbeat_at < clock_timestamp() - heartbeat_ttl
RETURNING ` + runColumns + `)` + unsettledSQL + `
SELECT ended.* FROM ended`

// CloseAbandonedRuns records the runs of dead processes as failed, with their last heartbeat as
// their end and its counts. It returns the runs that this call closed: each is returned to one
// caller.
func (d Runs) CloseAbandonedRuns(ctx context.Context) ([]Run, error) {
	return pg.Collect(ctx, d.db, pg.NewQuery("close abandoned runs", stmt.Fill(closeAbandonedRunsSQL, "{unsettled}", "true")), scanRun)
}

// requestCancelSQL keeps the time and the text of the first request.
const requestCancelSQL = `
UPDATE maintenance.runs SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
  error = CASE WHEN cancel_requested_at IS NULL THEN $2 ELSE error END
WHERE id = $1::text::uuid AND state = 'running'`

// RequestCancel asks the run's process to stop, which reads the request with its next heartbeat.
// text names the requester, and becomes the run's error. The first request counts. A run that has
// ended, or that does not exist, does not change.
func (d Runs) RequestCancel(ctx context.Context, id, text string) error {
	_, err := pg.Exec(ctx, d.db, "request cancellation of the run", requestCancelSQL, id, text)
	return err
}

// runs.id, here and below: id alone would be the text of the columns, which has no index.
const listRunsSQL = `
SELECT ` + runColumns + ` FROM maintenance.runs
WHERE ($1 = '' OR worker = $1) AND ($2 = '' OR state = $2) AND ($3 = '' OR id < nullif($3, '')::uuid)
  AND ($5 = '' OR id >= nullif($5, '')::uuid AND started_at >= $6)
  AND ($7 = '' OR id < nullif($7, '')::uuid AND started_at < $8)
ORDER BY runs.id DESC LIMIT $4`

// RunList selects runs: of one worker, in one state, after the run After in the list. "" selects
// all.
type RunList struct {
	Worker, State, After string
	// Since and Until bound their start: Since inclusive, Until exclusive. Zero means no bound.
	Since, Until time.Time
	// Limit is the maximum number of runs.
	Limit int
}

// idSlack is how much older than the start of its run an id may be.
const idSlack = time.Minute

// ListRuns reads runs, the newest first.
func (d Runs) ListRuns(ctx context.Context, l RunList) ([]Run, error) {
	first, end := "", ""
	if !l.Since.IsZero() {
		first = idAt(l.Since.Add(-idSlack))
	}
	if !l.Until.IsZero() {
		end = idAt(l.Until.Add(time.Millisecond))
	}
	q := pg.NewQuery("list runs", listRunsSQL, stmt.CustomPlan, l.Worker, l.State, l.After, l.Limit,
		first, stmt.Bound(l.Since, pgtype.NegativeInfinity), end, stmt.Bound(l.Until, pgtype.Infinity))
	return pg.Collect(ctx, d.db, q, scanRun)
}

// idAt returns the beginning of the ids of runs that are created at a time: UUIDs of version 7.
func idAt(t time.Time) string {
	const most = 1<<48 - 1
	milliseconds := fmt.Sprintf("%012x", min(max(t.UnixMilli(), 0), most))
	return milliseconds[:8] + "-" + milliseconds[8:] + "-0000-0000-000000000000"
}

// runningRunSQL finds the newest run of worker $1 and database $2 in process $3. It skips dry runs
// and the run $4.
const runningRunSQL = `
SELECT id::text FROM maintenance.runs
WHERE worker = $1 AND database = $2 AND replica = $3 AND state = 'running' AND NOT dry_run AND id <> $4::text::uuid
ORDER BY runs.id DESC LIMIT 1`

// RunningRun returns the id of the running run with the same worker and database as this one, in the
// process that holds the lease. Otherwise the error is [dberr.ErrNotFound].
func (d Runs) RunningRun(ctx context.Context, run Run, holder string) (id string, err error) {
	err = pg.QueryRow(ctx, d.db, "find the active run", []any{&id}, runningRunSQL, run.Worker, run.Database, holder, run.ID)
	return id, err
}

// runSummarySQL: scheduled runs that could not start are among the fires. A run that a setting
// disabled counts as run. The newest run of each state is read separately: a worker may have only
// skipped runs for months. It is the first at or after its place in runs_by_state. For equal values
// PostgreSQL may scan all runs by their ids instead, and a range of pairs does not end at a missing
// pair.
const runSummarySQL = `
WITH newest (id) AS (
  SELECT (
    SELECT x.id FROM (
      SELECT r.id, r.worker, r.state FROM maintenance.runs r
      WHERE (r.worker, r.state) >= ($1, s.state) AND (r.state = 'running' OR NOT r.dry_run)
      ORDER BY r.worker, r.state, r.id DESC LIMIT 1
    ) x
    WHERE x.worker = $1 AND x.state = s.state)
  FROM unnest('{running,succeeded,failed,cancelled}'::text[]) AS s (state)
  UNION ALL
  (SELECT x.id FROM (
    SELECT r.id, r.worker, r.state, r.dry_run, r.reason FROM maintenance.runs r
    WHERE (r.worker, r.state) >= ($1, 'skipped')
    ORDER BY r.worker, r.state, r.id DESC LIMIT 100
  ) x
  WHERE x.worker = $1 AND x.state = 'skipped' AND NOT x.dry_run
    AND x.reason LIKE 'SETTING%' ORDER BY x.id DESC LIMIT 1)
)
SELECT ` + runColumns + ` FROM maintenance.runs WHERE id = ANY (ARRAY(SELECT id FROM newest)) ORDER BY runs.id DESC`

// RunSummary is the state of a worker. A missing run is nil.
type RunSummary struct{ Current, Last, LastSuccess *Run }

// RunSummary reads the newest running run, the newest run that ended (of skipped runs only those
// that a setting skipped), and the newest that succeeded. Only the first may be a dry run.
func (d Runs) RunSummary(ctx context.Context, worker string) (s RunSummary, err error) {
	runs, err := pg.Collect(ctx, d.db, pg.NewQuery("read the newest runs", runSummarySQL, worker), scanRun)
	for i := range runs {
		switch r := &runs[i]; {
		case r.State == RunRunning:
			s.Current = r
		case s.Last == nil:
			s.Last = r
		}
		if r := &runs[i]; r.State == RunSucceeded {
			s.LastSuccess = r
		}
	}
	return s, err
}

// oneRun returns the only run of a statement, without candidates, or [dberr.ErrNotFound].
func oneRun(
	ctx context.Context, d *pg.Database, operation, sql string, args ...any,
) (run Run, err error) {
	return oneOfRuns(ctx, d, pg.NewQuery(operation, sql, args...), scanRun)
}

// oneOfRuns returns the first run of a query, or [dberr.ErrNotFound].
func oneOfRuns(ctx context.Context, d *pg.Database, q pg.Query, scan pgx.RowToFunc[Run]) (Run, error) {
	runs, err := pg.Collect(ctx, d, q, scan)
	if err == nil && len(runs) == 0 {
		return Run{}, pg.Wrap(ctx, d, q.Operation, dberr.ErrNotFound)
	}
	if err != nil {
		return Run{}, err
	}
	return runs[0], nil
}

// orEmpty returns an empty list for nil: [] in JSON, not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// asJSON encodes values as JSON. The driver does so only if it knows the parameter's type, which it
// does not with default_query_exec_mode=exec. The values contain only strings and numbers, so it
// cannot fail.
func asJSON(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

// nonNil returns an empty map for nil: {} in JSON, not null.
func nonNil(counts map[string]int64) map[string]int64 {
	if counts == nil {
		return map[string]int64{}
	}
	return counts
}

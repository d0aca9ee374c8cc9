package control

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// pruneHistorySQL skips running runs, and each worker's newest fire, which shows whether that was
// missed. $2 bounds each table. The ids of runs are in the order of their times: it examines only
// the oldest, of which more than a few are never running.
const pruneHistorySQL = `
WITH old_fires AS (
  DELETE FROM maintenance.fires WHERE ctid = ANY (ARRAY(
    SELECT f.ctid FROM maintenance.fires f
    WHERE f.fire_time < (SELECT clock_timestamp() - $1::interval)
      AND EXISTS (SELECT FROM maintenance.fires n WHERE n.worker = f.worker AND n.fire_time > f.fire_time)
    ORDER BY f.fire_time LIMIT $2))
  RETURNING 1
),
old_runs AS (
  DELETE FROM maintenance.runs WHERE id = ANY (ARRAY(
    SELECT r.id FROM (
      SELECT id, state, started_at FROM maintenance.runs ORDER BY id LIMIT $2 + 100
    ) r
    WHERE r.state <> 'running' AND r.started_at < clock_timestamp() - $1::interval LIMIT $2))
  RETURNING 1
),
old_audit AS (
  DELETE FROM maintenance.audit WHERE ctid = ANY (ARRAY(
    SELECT a.ctid FROM maintenance.audit a
    WHERE a.at < (SELECT clock_timestamp() - $1::interval)
    ORDER BY a.at, a.id LIMIT $2))
  RETURNING 1
)
SELECT (SELECT count(*) FROM old_fires) = $2 OR (SELECT count(*) FROM old_runs) = $2
  OR (SELECT count(*) FROM old_audit) = $2`

// pruneDeletionsSQL skips cancellations of jobs that would otherwise continue, and paths that are
// not marked as done.
const pruneDeletionsSQL = `
WITH old_cancellations AS (
  DELETE FROM maintenance.job_cancellations WHERE job_id = ANY (ARRAY(
    SELECT c.job_id FROM maintenance.job_cancellations c
    WHERE NOT EXISTS (SELECT FROM maintenance.river_job j WHERE j.id = c.job_id)
      AND NOT EXISTS (SELECT FROM maintenance.group_removals r WHERE r.group_id = c.group_id)
      AND NOT EXISTS (SELECT FROM maintenance.user_removals r WHERE r.user_id = c.user_id)
    LIMIT $2))
),
old_protections AS (
  DELETE FROM maintenance.protected_targets WHERE ctid = ANY (ARRAY(
    SELECT p.ctid FROM maintenance.protected_targets p
    WHERE p.until < (SELECT clock_timestamp()) ORDER BY p.until LIMIT $2))
  RETURNING 1
),
old_paths AS (
  DELETE FROM maintenance.outside_paths WHERE ctid = ANY (ARRAY(
    SELECT o.ctid FROM maintenance.outside_paths o
    WHERE o.done_at < (SELECT clock_timestamp() - $1::interval)
    ORDER BY o.done_at LIMIT $2))
  RETURNING 1
)
SELECT (SELECT count(*) FROM old_paths) = $2 OR (SELECT count(*) FROM old_protections) = $2`

// PruneBatch is the maximum number of rows of each table that one statement of PruneHistory
// deletes.
const PruneBatch = 1000

// PruneHistory deletes up to 1000 rows each of old records, and reports whether there may be more.
// It deletes runs, fires and audit entries older than keep, outside paths that have been done for
// longer than keep, and expired protections. It also deletes cancellations of deleted jobs. It
// keeps the cancellation of a job whose removal has started, so that the removal does not continue.
func (d History) PruneHistory(ctx context.Context, keep time.Duration) (more bool, err error) {
	err = pg.QueryRow(ctx, d.db, "prune the history", []any{&more}, pruneHistorySQL, keep, PruneBatch)
	// With loose foreign keys only, deletions leave nothing to prune.
	if err != nil || d.db.LooseForeignKeysOnly {
		return more, err
	}
	var others bool
	err = pg.QueryRow(ctx, d.db, "prune records of deletions", []any{&others}, pruneDeletionsSQL, keep, PruneBatch)
	return more || others, err
}

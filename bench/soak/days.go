package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// passDay makes all that takes days due: it moves timestamps back.
func (e *estate) passDay(ctx context.Context) error {
	for _, name := range databases {
		statements := everywhereSQL
		if name == "main" {
			statements += ";\n" + mainSQL + ";\n" + periodsSQL + ";\n" + midnightSQL
		}
		keep := fmt.Sprintf("interval '%d milliseconds'", 3*e.day.Milliseconds())
		for statement := range strings.SplitSeq(strings.ReplaceAll(statements, "$1::interval", keep), ";\n") {
			_, err := e.conns[name].Exec(ctx, statement)
			if failed, ok := errors.AsType[*pgconn.PgError](err); ok && failed.Code == deadlock {
				continue // the next day does it
			}
			if err != nil {
				return fmt.Errorf("let a day pass in %s: %.80q: %w", name, statement, err)
			}
		}
	}
	return nil
}

const deadlock = "40P01"

// leftover are rows that should be gone.
type leftover struct {
	database, what string
	rows           int64
}

// leftSQL is what must be gone in the end. Demo data that needs a decision by a person is not ours.
const (
	leftInMainSQL = `
SELECT 'main', 'users of the application', count(*) FROM users WHERE username LIKE 'soak-%' OR username LIKE 'short-lived-%'
UNION ALL SELECT 'main', 'groups and projects of the application', count(*) FROM namespaces WHERE path LIKE 'soak-%' OR path LIKE 'short-lived-%'
UNION ALL SELECT 'main', 'jobs that wait', count(*) FROM maintenance.river_job WHERE finalized_at IS NULL AND created_at < now() - interval '10 seconds'`
	leftInCISQL = `
SELECT 'ci', 'schedules of pipelines', count(*) FROM ci_pipeline_schedules WHERE description = 'Short-lived'`
	leftInSecSQL = `
SELECT 'sec', 'vulnerabilities', count(*) FROM vulnerabilities WHERE title = 'Short-lived'`
	leftInShopSQL = `
SELECT 'shop', 'items of orders', count(*) FROM order_items`
	leftRecordsSQL = `
UNION ALL SELECT current_database()::text, 'records in the queue', count(*) FROM loose_foreign_keys_deleted_records WHERE status = 1`
)

// left counts the remainder over.
func (e *estate) left(ctx context.Context) (all []leftover, err error) {
	for name, sql := range map[string]string{
		"main": leftInMainSQL, "ci": leftInCISQL, "sec": leftInSecSQL, shop: leftInShopSQL,
	} {
		rows, err := e.conns[name].Query(ctx, sql+leftRecordsSQL)
		if err != nil {
			return nil, err
		}
		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l leftover, err error) {
			return l, row.Scan(&l.database, &l.what, &l.rows)
		})
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return slices.DeleteFunc(all, func(l leftover) bool { return l.rows == 0 }), nil
}

// drain lets days pass, and runs the workers, until nothing is left or the time for it is over.
func (e *estate) drain(ctx context.Context) (left []leftover, err error) {
	for end := time.Now().Add(e.options.drain); ; {
		if _, err := e.conns["main"].Exec(ctx, referencesSQL, 0); err != nil {
			return nil, err
		}
		if err := e.passDay(ctx); err != nil {
			return nil, err
		}
		for _, name := range databases {
			err = errors.Join(err, e.work(ctx, workers[0], "--database", name))
		}
		for _, worker := range workers[1:] {
			err = errors.Join(err, e.work(ctx, worker))
		}
		if err != nil {
			return nil, err
		}
		left, err = e.left(ctx)
		if err != nil || len(left) == 0 || time.Now().After(end) {
			return left, err
		}
	}
}

// everywhereSQL moves the timestamps that every database has. Rows older than three days move into
// the far past at once, where nothing keeps them. So no row is moved twice. Records that were
// postponed are due. A queue of our own is to be rolled.
const everywhereSQL = `
UPDATE maintenance.receipts SET at = at - interval '400 days'
WHERE at BETWEEN now() - interval '300 days' AND now() - $1::interval;
UPDATE maintenance.queue_partitions SET active_since = now() - interval '25 hours' WHERE active_since > now() - interval '25 hours';
UPDATE loose_foreign_keys_deleted_records SET consume_after = now() WHERE status = 1 AND consume_after > now()`

// mainSQL does the same for the history. The newest fire of a worker reports what was missed, and
// stays.
const mainSQL = `
UPDATE maintenance.runs SET started_at = started_at - interval '400 days', heartbeat_at = heartbeat_at - interval '400 days',
  finished_at = finished_at - interval '400 days'
WHERE state <> 'running' AND started_at BETWEEN now() - interval '300 days' AND now() - $1::interval;
UPDATE maintenance.fires f SET fire_time = fire_time - interval '400 days', claimed_at = claimed_at - interval '400 days'
WHERE fire_time BETWEEN now() - interval '300 days' AND now() - $1::interval
  AND fire_time < (SELECT max(n.fire_time) FROM maintenance.fires n WHERE n.worker = f.worker);
UPDATE maintenance.audit SET at = at - interval '400 days' WHERE at BETWEEN now() - interval '300 days' AND now() - $1::interval;
UPDATE maintenance.backlog_samples SET minute = minute - interval '400 days'
WHERE minute BETWEEN now() - interval '300 days' AND now() - $1::interval;
UPDATE maintenance.outside_paths SET done_at = now() - interval '400 days', done_by = 'soak' WHERE done_at IS NULL;
UPDATE maintenance.river_job SET finalized_at = finalized_at - interval '400 days'
WHERE finalized_at BETWEEN now() - interval '300 days' AND now() - $1::interval`

// periodsSQL ends retry periods and grace periods.
const periodsSQL = `
UPDATE maintenance.river_job SET scheduled_at = now()
WHERE state IN ('scheduled', 'retryable') AND scheduled_at > now() + interval '5 seconds';
UPDATE ghost_user_migrations SET consume_after = now() WHERE consume_after > now();
UPDATE import_placeholder_user_details SET last_deletion_attempt_at = last_deletion_attempt_at - interval '3 days'
WHERE last_deletion_attempt_at > now() - interval '3 days' AND deletion_attempts < 15
  AND placeholder_user_id IN (SELECT id FROM users WHERE username LIKE 'soak-%');
UPDATE group_deletion_schedules SET marked_for_deletion_on = marked_for_deletion_on - 40 WHERE marked_for_deletion_on > current_date - 30;
UPDATE personal_access_tokens SET expires_at = expires_at - 40 WHERE name = 'soak' AND expires_at > current_date - 30`

// midnightSQL is what River does every midnight: it rebuilds the indexes of jobs. Two of them are GIN indexes, which
// keep the keys of rows that are gone.
const midnightSQL = `REINDEX TABLE CONCURRENTLY maintenance.river_job`

// work has a worker run. One that is skipped, as a schedule has just started it, is no failure.
func (e *estate) work(ctx context.Context, worker string, flags ...string) error {
	err := e.command(ctx, e.program, append([]string{"run", worker, "--address", e.first.api}, flags...)...)
	if failed, ok := errors.AsType[*exec.ExitError](err); ok && failed.ExitCode() == skipped {
		return nil
	}
	return err
}

const skipped = 3

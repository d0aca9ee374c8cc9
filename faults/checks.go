package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb/oracle"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// leftSQL are jobs that are still to be done. A bot that must stay gets a new job in every pass: the
// newest ones do not count.
const leftSQL = `
SELECT concat_ws(' ', 'job', kind, args, state, 'attempt', attempt, 'due', scheduled_at, 'now', now()) FROM maintenance.river_job
WHERE finalized_at IS NULL AND created_at < now() - interval '2 seconds' ORDER BY id LIMIT 10`

// recordsSQL leaves out records that may be held permanently: of a parent that lives, and of a
// depot whose desk a protected user has.
const recordsSQL = `SELECT 'records of ' || fully_qualified_table_name || ': ' || count(*)
FROM faults.pending_records
WHERE fully_qualified_table_name <> 'public.shelves' AND (fully_qualified_table_name, primary_key_value) <> ('public.depots', 1)
GROUP BY fully_qualified_table_name`

// unsettledSQL are runs whose end was not clean, until the next clean run of their worker has completed their counts.
const unsettledSQL = `SELECT 'counts that are not final: ' || to_jsonb(r)::text FROM maintenance.runs r
WHERE state = 'running' AND started_at < now() - interval '30 s'
  OR id IN (SELECT run_id FROM maintenance.run_counts WHERE name = '') LIMIT 10`

const desksSQL = `SELECT 'a desk without its depot: ' || to_jsonb(d)::text FROM desks d WHERE depot_id > 1 LIMIT 10`

// differences are those between the model and the databases, and what is not done yet.
func (r *round) differences(ctx context.Context) (found []string, err error) {
	all, err := r.lab.connectAll(ctx)
	if err != nil {
		return nil, err
	}
	if found, err = r.estate.Differences(ctx, all); err != nil {
		return nil, err
	}
	for _, q := range []struct {
		conn *pgx.Conn
		sql  string
	}{{all.Main, leftSQL}, {all.Main, recordsSQL}, {all.Main, unsettledSQL}, {all.Main, desksSQL}, {all.CI, recordsSQL}, {all.Sec, recordsSQL}} {
		more, err := texts(ctx, q.conn, q.sql)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// changes is how many rows of the application caretaker has changed in main: work in ci alone does not count.
func (r *round) changes(ctx context.Context) (n int, err error) {
	main, err := r.lab.connect(ctx, "main")
	if err == nil {
		err = main.QueryRow(ctx, `SELECT count(*) FROM witness.seen`).Scan(&n)
	}
	return n, err
}

func texts(ctx context.Context, conn *pgx.Conn, sql string) ([]string, error) {
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("%.60q: %w", sql, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// brokenSQL are queries over main, each of which must find nothing. loose_foreign_keys_cleanup and
// inactive_token_deletion also have scheduled runs without a fire of their own: those of the rotation's
// other databases, and those that continue a pass.
func brokenSQL() []string {
	return []string{
		`SELECT 'a job was given up: ' || kind || ' ' || args::text FROM maintenance.river_job WHERE state = 'discarded'`,
		`SELECT 'a job ended without an outcome: ' || to_jsonb(j)::text FROM maintenance.river_job j
			WHERE finalized_at IS NOT NULL AND metadata ->> 'outcome' IS NULL`,
		`SELECT 'a completed job has another outcome: ' || to_jsonb(j)::text FROM maintenance.river_job j
			WHERE state = 'completed' AND metadata ->> 'outcome' NOT IN ('succeeded', 'skipped', 'restored')`,
		`SELECT 'a run counts other rows than its tables: ' || r.id || ' ' || counts::text || ' ' || tables::text FROM maintenance.runs r
			WHERE worker IN ('loose_foreign_keys_cleanup', 'ghost_user_migration') AND state = 'succeeded' AND (counts ->> 'deleted_rows')::bigint
				<> (SELECT coalesce(sum((t ->> 'deleted')::bigint), 0) FROM jsonb_array_elements(tables) t)`,
		`SELECT 'a run counts other values than its tables: ' || r.id || ' ' || counts::text || ' ' || tables::text FROM maintenance.runs r
			WHERE worker = 'ghost_user_migration' AND state = 'succeeded' AND (counts ->> 'moved_rows')::bigint + (counts ->> 'nullified_rows')::bigint
				< (SELECT coalesce(sum((t ->> 'updated')::bigint), 0) FROM jsonb_array_elements(tables) t)`,
		`SELECT 'a run counts other jobs than it has queued: ' || r.id || ' ' || r.worker || ' ' || counts::text || ', queued ' || n FROM maintenance.runs r
			JOIN (VALUES ('inactive_token_deletion', 'delete_user'), ('adjourned_group_deletion', 'destroy_group'), ('placeholder_user_cleanup', 'delete_placeholder_user'))
				queues (by, kind) ON by = worker,
			LATERAL (SELECT count(*) AS n FROM maintenance.river_job j WHERE j.metadata ->> 'run_id' = r.id::text AND j.kind = queues.kind) queued
			WHERE NOT dry_run AND state = 'succeeded' AND (counts ->> 'scheduled_jobs')::bigint <> n`,
		`SELECT 'a fire has no run: ' || worker || ' ' || fire_time FROM maintenance.fires f WHERE outcome = 'ran'
			AND NOT EXISTS (SELECT FROM maintenance.runs r WHERE r.id = f.run_id)`,
		`SELECT 'a run by schedule has not one fire: ' || worker || ' ' || id FROM maintenance.runs r
			WHERE trigger = 'schedule' AND (SELECT count(*) FROM maintenance.fires f WHERE f.run_id = r.id) <> 1
				AND worker NOT IN ('loose_foreign_keys_cleanup', 'inactive_token_deletion')`,
		`SELECT 'a fire is not on record: ' || s.worker || ' ' || due FROM maintenance.schedules s,
			generate_series((SELECT min(fire_time) FROM maintenance.fires f WHERE f.worker = s.worker), greatest(s.accounted_until, now() - interval '2 minutes'), '1 minute') due
			WHERE NOT EXISTS (SELECT FROM maintenance.fires f WHERE f.worker = s.worker AND f.fire_time = due)`,
		`SELECT 'two fires have one run: ' || run_id FROM maintenance.fires WHERE run_id IS NOT NULL GROUP BY run_id HAVING count(*) > 1`,
		`SELECT 'paths outside the database differ from the witness: ' || concat_ws(' ', kind, path) FROM (
			(SELECT kind, path FROM witness.left_outside EXCEPT ALL SELECT kind, path FROM maintenance.outside_paths) UNION ALL
			(SELECT kind, path FROM maintenance.outside_paths EXCEPT ALL SELECT kind, path FROM witness.left_outside)) differing`,
		`SELECT 'placeholders were claimed twice: ' || placeholder_user_id FROM import_placeholder_user_details WHERE deletion_attempts > 1`,
	}
}

// check searches for what must never be, when all is done.
func (r *round) check(ctx context.Context, drained bool) (broken []string, err error) {
	main, err := r.lab.connect(ctx, "main")
	if err != nil {
		return nil, err
	}
	for _, sql := range brokenSQL() {
		found, err := texts(ctx, main, sql)
		if err != nil {
			return nil, err
		}
		broken = append(broken, found...)
	}
	for _, name := range databases() {
		found, err := r.violations(ctx, name)
		if err != nil {
			return nil, err
		}
		broken = append(broken, found...)
	}
	found, err := r.checkCounts(ctx, drained)
	if err != nil {
		return nil, err
	}
	broken = append(broken, found...)
	for _, replica := range r.replicas {
		replica.mu.Lock()
		broken = append(broken, replica.failures...)
		replica.mu.Unlock()
	}
	r.tally.mu.Lock()
	defer r.tally.mu.Unlock()
	r.tally.rounds++
	return broken, nil
}

// checkCounts finds runs whose counts of a table's rows differ from their receipts in all
// databases. It also finds databases whose runs count other records than have left the queues.
// Until the work is drained a run may count fewer. Claims of placeholders have no receipts, and
// rows of the ghost queue are not counted.
func (r *round) checkCounts(ctx context.Context, drained bool) (broken []string, err error) {
	type change struct{ run, what, action string }
	read := func(database, sql string, each func(change, int64)) error {
		conn, err := r.lab.connect(ctx, database)
		if err != nil {
			return err
		}
		rows, err := conn.Query(ctx, sql) //nolint:rowserrcheck // ForEachRow returns it
		if err != nil {
			return err
		}
		var c change
		var n int64
		_, err = pgx.ForEachRow(rows, []any{&c.run, &c.what, &c.action, &n}, func() error {
			each(c, n)
			return nil
		})
		return err
	}
	// Runs are read first: what is running meanwhile has more receipts afterwards, not fewer.
	counted, happened := map[change]int64{}, map[change]int64{}
	err = read("main", `SELECT r.id::text, t ->> 'table', action, (t ->> action)::bigint FROM maintenance.runs r,
		jsonb_array_elements(r.tables) t, unnest('{deleted,updated}'::text[]) action
		WHERE NOT dry_run AND (t ->> 'table', action) <> ('import_placeholder_user_details', 'updated')
		UNION ALL
		SELECT database, 'records', '', sum(coalesce((counts ->> 'processed_records')::bigint, 0) + coalesce((counts ->> 'obsolete_records')::bigint, 0))::bigint
		FROM maintenance.runs WHERE worker = 'loose_foreign_keys_cleanup' AND NOT dry_run GROUP BY 1`,
		func(c change, n int64) { counted[c] = n })
	for _, name := range databases() {
		err = errors.Join(err, read(name, `SELECT run_id::text, "table", replace(action, 'nullified', 'updated'), sum(rows)::bigint
			FROM maintenance.receipts WHERE run_id IS NOT NULL AND "table" <> 'ghost_user_migrations' GROUP BY 1, 2, 3
			UNION ALL SELECT '`+name+`', 'records', '', count(*) FROM faults.done`, func(c change, n int64) { happened[c] += n }))
	}
	for c, n := range counted {
		if n > happened[c] {
			broken = append(broken, fmt.Sprintf("a run counts more rows than its receipts: %+v %d %d", c, n, happened[c]))
		}
	}
	for c, n := range happened {
		if drained && n > counted[c] {
			broken = append(broken, fmt.Sprintf("a run counts less than it has committed: %+v %d %d", c, counted[c], n))
		}
	}
	return broken, err
}

// violations reads what the rules have found in a database, and how much they have checked.
func (r *round) violations(ctx context.Context, name string) (broken []string, err error) {
	conn, err := r.lab.connect(ctx, name)
	if err != nil {
		return nil, err
	}
	if broken, err = texts(ctx, conn, `SELECT rule || ': ' || detail || ' at ' || at FROM faults.violations ORDER BY at LIMIT 20`); err != nil {
		return nil, err
	}
	d, err := repo.Open(ctx, name, r.lab.url(name))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var seen, receipted string
	err = conn.QueryRow(ctx, `SELECT coalesce((`+oracle.Seen+`), ''), coalesce((`+oracle.Receipted+`), '')`).Scan(&seen, &receipted)
	if err != nil {
		return nil, err
	}
	dead, err := texts(ctx, conn, `SELECT 'a record was given up: ' || to_jsonb(r)::text FROM maintenance.dead_records r`)
	if err != nil {
		return nil, err
	}
	broken = append(broken, dead...)
	if seen != receipted {
		broken = append(broken, fmt.Sprintf("receipts differ from the witness: on %s were changed\n%s\nthe receipts say\n%s", name, seen, receipted))
	}
	chain, err := service.VerifyReceipts(ctx, d, nil)
	if err != nil {
		return nil, err
	}
	for _, f := range chain.Findings {
		broken = append(broken, fmt.Sprintf("the chain of receipts on %s: %+v", name, f))
	}
	return broken, r.countWatched(ctx, name, conn)
}

func (r *round) countWatched(ctx context.Context, name string, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT rule, count(*) FROM faults.watched GROUP BY rule`) //nolint:rowserrcheck // ForEachRow returns it
	if err != nil {
		return err
	}
	r.tally.mu.Lock()
	defer r.tally.mu.Unlock()
	var rule string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&rule, &n}, func() error {
		r.tally.watched[rule] += n
		return nil
	}); err != nil || name != "main" {
		return err
	}
	var seen, runs, jobs, fires, missed int
	err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM witness.seen), (SELECT count(*) FROM maintenance.runs),
		(SELECT count(*) FROM maintenance.river_job), (SELECT count(*) FROM maintenance.fires),
		(SELECT count(*) FROM maintenance.fires WHERE outcome = 'missed')`).Scan(&seen, &runs, &jobs, &fires, &missed)
	r.tally.rows, r.tally.runs, r.tally.jobs, r.tally.fires = r.tally.rows+seen, r.tally.runs+runs, r.tally.jobs+jobs, r.tally.fires+fires
	r.tally.missed += missed
	return err
}

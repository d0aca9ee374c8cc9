package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/metrics"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
)

// eligible are details of placeholder users, every second one attempted long enough ago, the others never.
func eligible(n int) []string {
	return []string{
		`INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'bench', now(), now())`,
		fmt.Sprintf(`INSERT INTO users (id, email, username, projects_limit, user_type, state, organization_id)
			SELECT i, i || '@example.com', 'user_' || i, 0, 15, 'active', 1 FROM generate_series(1, %d) i`, n),
		fmt.Sprintf(`INSERT INTO import_placeholder_user_details (placeholder_user_id, deletion_attempts, last_deletion_attempt_at, organization_id, created_at, updated_at)
			SELECT i, i %% 2, CASE i %% 2 WHEN 1 THEN now() - interval '3 days' END, 1, now(), now() FROM generate_series(1, %d) i`, n),
	}
}

// readyClaims has a server behind it that has run before.
func readyClaims(ctx context.Context, d *database) (work, error) {
	s, err := openService(ctx, d, service.Config{})
	if err != nil {
		return nil, err
	}
	if err := s.Healthy(ctx); err != nil {
		return nil, err
	}
	counts := map[string]int64{"scheduled_jobs": int64(d.lab.placeholders), "exhausted_users": 0}
	return func(ctx context.Context) error { return runWorker(ctx, s, "placeholder_user_cleanup", counts) }, nil
}

const (
	nextRowsSQL = `SELECT id FROM import_placeholder_user_details
		WHERE namespace_id IS NULL AND deletion_attempts < 15 AND (last_deletion_attempt_at IS NULL OR last_deletion_attempt_at < $1::timestamptz - interval '48 hours')
			AND id > $2 ORDER BY id LIMIT 1000`
	claimRowSQL = `UPDATE import_placeholder_user_details
		SET deletion_attempts = deletion_attempts + 1, last_deletion_attempt_at = $2, updated_at = $2
		WHERE id = $1 AND namespace_id IS NULL AND deletion_attempts < 15
			AND (last_deletion_attempt_at IS NULL OR last_deletion_attempt_at < $2::timestamptz - interval '48 hours')
		RETURNING placeholder_user_id`
)

// readyRowByRow is the reference: a transaction for each row, with an UPDATE of the row and the insert of its job.
func readyRowByRow(ctx context.Context, d *database) (work, error) {
	main, err := repo.Open(ctx, "main", d.url)
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, func() error { main.Close(); return nil })
	queue, err := scheduler.NewQueue(main, scheduler.QueueConfig{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		now, after, index := time.Now(), int64(0), 0
		for {
			rows, err := d.conn.Query(ctx, nextRowsSQL, now, after) //nolint:rowserrcheck // CollectRows returns it
			if err != nil {
				return err
			}
			ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			if err != nil || len(ids) == 0 {
				return err
			}
			for _, id := range ids {
				if err := claimRow(ctx, d.conn, queue, id, now, index); err != nil {
					return err
				}
				after, index = id, index+1
			}
		}
	}, nil
}

func claimRow(ctx context.Context, conn *pgx.Conn, queue *scheduler.Queue, id int64, now time.Time, index int) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var user int64
		if err := tx.QueryRow(ctx, claimRowSQL, id, now).Scan(&user); err != nil {
			return err
		}
		_, err := queue.InsertJobs(ctx, tx, []repo.Job{{
			Args: repo.DeletePlaceholderUser{PlaceholderUserID: user}, ScheduledAt: now.Add(time.Duration(index) * time.Second),
		}})
		return err
	})
}

// claimAllSQL is PostgreSQL's own limit: one statement for all.
const claimAllSQL = `
WITH claimed AS (
  UPDATE import_placeholder_user_details
  SET deletion_attempts = deletion_attempts + 1, last_deletion_attempt_at = now(), updated_at = now()
  WHERE namespace_id IS NULL AND deletion_attempts < 15 AND (last_deletion_attempt_at IS NULL OR last_deletion_attempt_at < now() - interval '48 hours')
  RETURNING id, placeholder_user_id
)
INSERT INTO maintenance.river_job (kind, args, max_attempts, state, scheduled_at, unique_key, unique_states)
SELECT 'delete_placeholder_user', jsonb_build_object('placeholder_user_id', placeholder_user_id), 25, 'scheduled',
  now() + row_number() OVER (ORDER BY id) * interval '1 second', sha256(placeholder_user_id::text::bytea), B'11110101'
FROM claimed`

func readyClaimAll(_ context.Context, d *database) (work, error) {
	return func(ctx context.Context) error { return d.exec(ctx, claimAllSQL) }, nil
}

// claimed makes sure that every row has its attempt and its job.
func claimed(ctx context.Context, d *database) error {
	var attempts, jobs int
	if err := d.one(ctx, &attempts, `SELECT count(*) FROM import_placeholder_user_details WHERE last_deletion_attempt_at > now() - interval '1 day'`); err != nil {
		return err
	}
	if err := d.one(ctx, &jobs, `SELECT count(DISTINCT args) FROM maintenance.river_job WHERE kind = 'delete_placeholder_user' AND state = 'scheduled'`); err != nil {
		return err
	}
	if want := d.lab.placeholders; attempts != want || jobs < want-1 || jobs > want {
		return fmt.Errorf("%d rows are claimed and %d users have a job, where there should be %d", attempts, jobs, want)
	}
	return nil
}

// compareClaims is (h), twice: on a server that does not wait for the disk, as in the other scenarios, and on one that
// does, as every server does that is to keep its data. What row by row loses is above all that wait.
func compareClaims(ctx context.Context, l *lab) (r *report, err error) {
	r = &report{header: append([]string{"commits"}, standingsHeader("rows")...)}
	var notes []string
	both := []bool{false, true}
	if l.durable {
		both = both[1:]
	}
	for _, durable := range both {
		note, err := l.compareClaimsOn(ctx, r, durable)
		if err != nil {
			return nil, err
		}
		notes = append(notes, note)
	}
	r.notes = append(r.notes, notes...)
	return r, l.claimStatements(ctx, r)
}

// compareClaimsOn is one of the two, on a server of its own where ours is another one.
func (l *lab) compareClaimsOn(ctx context.Context, r *report, durable bool) (note string, err error) {
	name, on := "do not wait for the disk", l
	if durable {
		name = "wait for the disk"
	}
	if durable != l.durable {
		o := l.options
		o.durable = durable
		if on, err = openLab(ctx, o, l.progress); err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, on.close(ctx)) }()
	}
	if err := on.buildMain(ctx, "placeholders", eligible(l.placeholders)...); err != nil {
		return "", err
	}
	ways := []way{{"caretaker", readyClaims}, {"one statement for all", readyClaimAll}, {"row by row", readyRowByRow}}
	measured, note, err := on.race(ctx, "placeholders", l.half(), claimed, ways...)
	if err != nil {
		return "", err
	}
	part := &report{}
	part.standings(l.placeholders, measured, ways...)
	for _, row := range part.rows {
		r.row(append([]string{name}, row...)...)
	}
	ratio := faster(measured, 2)
	l.target(r, "caretaker's speed beside row by row, where commits "+name+",", "at least 20 ×", times(ratio), ratio >= 20)
	took, _ := results(measured)
	r.note("There one statement for all, PostgreSQL's own limit, is %s as fast as row by row.", times(median(ratios(took[2], took[1]))))
	return "Where commits " + name + ": " + note, nil
}

// claimStatements notes how long the statements of a run took and how much memory it needed, in a run of their own.
func (l *lab) claimStatements(ctx context.Context, r *report) error {
	var few, many uint64
	for i, part := range []int{10, 1} {
		sized := *l
		sized.placeholders = max(l.placeholders/part, 1)
		took, heap, err := sized.claimLogged(ctx)
		if err != nil {
			return err
		}
		if i == 0 {
			few = heap
			continue
		}
		many = heap
		l.statementTarget(r, took)
	}
	r.note("Memory in use by this process, at most: %.1f MB for a tenth of the rows, %.1f MB for all.", float64(few)/1e6, float64(many)/1e6)
	return nil
}

func (l *lab) claimLogged(ctx context.Context) (took []time.Duration, heap uint64, err error) {
	d, err := l.fresh(ctx, "placeholders")
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.exec(ctx, fmt.Sprintf(`DELETE FROM import_placeholder_user_details WHERE id > %d`, l.placeholders)); err != nil {
		return nil, 0, err
	}
	if err := d.settle(ctx); err != nil {
		return nil, 0, err
	}
	took, err = d.statementsOf(ctx, `eligible_for_deletion|river_job`, func() error {
		run, err := readyClaims(ctx, d)
		if err != nil {
			return err
		}
		heap, err = peak(func() error { return run(ctx) })
		return err
	})
	return took, heap, errors.Join(err, claimed(ctx, d))
}

// peak is how much of the heap was live at most, by the collections of garbage, while some work was done.
func peak(do func() error) (most uint64, err error) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	done := make(chan error, 1)
	go func() { done <- do() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return most, err
		case <-tick.C:
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
		}
	}
}

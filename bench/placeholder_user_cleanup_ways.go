package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
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

// readyClaims uses a server that has run before.
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
			rows, err := d.conn.Query(ctx, nextRowsSQL, now, after)
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
		_, err := queue.InsertJobs(ctx, tx, []jobqueue.Job{{
			Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: user}, ScheduledAt: now.Add(time.Duration(index) * time.Second),
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

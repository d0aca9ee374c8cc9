package main

import (
	"context"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
)

// readyMigration uses a server that has run before, with nothing to do.
func readyMigration(ctx context.Context, d *database) (work, error) {
	var c service.Config
	service.Settings[ghost.Config](&c).MaxRuntime = 10 * time.Minute
	s, err := openService(ctx, d, c)
	if err != nil {
		return nil, err
	}
	if err := runWorker(ctx, s, "ghost_user_migration", map[string]int64{"migrated_users": 0}); err != nil {
		return nil, err
	}
	counts := map[string]int64{"migrated_users": 1, "moved_rows": int64(d.lab.contributions / 4 * 4)}
	return func(ctx context.Context) error { return runWorker(ctx, s, "ghost_user_migration", counts) },
		d.exec(ctx, fmt.Sprintf(`INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (%d, now(), now())`, leaving))
}

// readyUpdates is PostgreSQL's own limit: a statement for all rows of a column.
func readyUpdates(_ context.Context, d *database) (work, error) {
	return func(ctx context.Context) error {
		for _, c := range contributions() {
			if err := d.exec(ctx, fmt.Sprintf(`UPDATE %s SET %s = %d WHERE %[2]s = %[4]d`, c.table, c.column, ghostID, leaving)); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// readyFifties is the reference: 50 rows a statement until none remain, each a transaction. It is
// kept on the index, as it is in tables of GitLab's size. In one of this size the planner would
// read the table from its start each time.
func readyFifties(ctx context.Context, d *database) (work, error) {
	far, err := d.lab.connectTo(ctx, d.name, d.url)
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, func() error { return far.conn.Close(context.WithoutCancel(ctx)) })
	return func(ctx context.Context) error {
		for _, c := range contributions() {
			sql := fmt.Sprintf(`UPDATE %s SET %s = %d WHERE id IN (SELECT id FROM %[1]s WHERE %[2]s = %[4]d LIMIT 50)`, c.table, c.column, ghostID, leaving)
			for {
				done, err := far.conn.Exec(ctx, sql)
				if err != nil {
					return err
				}
				if done.RowsAffected() == 0 {
					break
				}
			}
		}
		return nil
	}, far.exec(ctx, `SET enable_seqscan = off`)
}

// away is a way with a network between it and the database.
func away(w way) way {
	return way{w.name + ", far", func(ctx context.Context, d *database) (work, error) {
		if err := d.far(ctx); err != nil {
			return nil, err
		}
		return w.ready(ctx, d)
	}}
}

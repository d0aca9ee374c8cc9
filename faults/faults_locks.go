package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// lock locks a table against writes, for longer than a statement waits.
func (r *round) lock(ctx context.Context) error {
	tables := []string{"notes", "issues", "members", "users", "projects", "loose_foreign_keys_deleted_records", "loose_foreign_keys_organization_deleted_records", "maintenance.river_job", "maintenance.leases"}
	conn, err := open(ctx, r.lab.url("main"), "application")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	table, hold := tables[r.random.IntN(len(tables))], r.upTo(4000)
	// A deadlock may cancel the lock. Then nothing happened.
	_ = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `LOCK TABLE `+table+` IN SHARE ROW EXCLUSIVE MODE`)
		if err == nil {
			wait(ctx, hold)
		}
		return err
	})
	return nil
}

// lockChildrenSQL makes statements that lock children of parents with pending records.
const lockChildrenSQL = `
SELECT format('SELECT FROM %I WHERE %I IN (SELECT primary_key_value FROM faults.pending_records
  WHERE fully_qualified_table_name = %L) LIMIT 100 FOR UPDATE SKIP LOCKED', child, child_column, 'public.' || parent)
FROM faults.children ORDER BY random()`

// lockChildren locks rows that a clean-up has to delete or update, for longer than a statement waits for a lock.
func (r *round) lockChildren(ctx context.Context) error {
	conn, err := open(ctx, r.lab.url(databases()[r.random.IntN(3)]), "application")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	hold, locked := r.upTo(4000), int64(0)
	// The transaction may lose in a deadlock, or its server may be killed.
	_ = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, lockChildrenSQL) // CollectRows returns the error
		statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, sql := range statements {
			tag, err := tx.Exec(ctx, sql)
			if err != nil {
				return err
			}
			locked += tag.RowsAffected()
		}
		if locked > 0 {
			wait(ctx, hold)
		}
		return nil
	})
	if locked == 0 {
		return errNoOccasion
	}
	return nil
}

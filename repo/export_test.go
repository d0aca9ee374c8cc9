package repo

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// OnPool is a Database on a pool of the test's making.
func OnPool(name string, pool *pgxpool.Pool) *Database { return on(pg.OnPool(name, pool)) }

// Unguarded is a guard that always holds.
func Unguarded() fencing.Guard { return fencing.Unguarded() }

// Look sends a statement that changes nothing.
func (d *Database) Look(ctx context.Context) error {
	_, err := pg.Exec(ctx, d.Database, "look", `SELECT 1`)
	return err
}

// Fail sends a statement that the server refuses.
func (d *Database) Fail(ctx context.Context) error {
	_, err := pg.Exec(ctx, d.Database, "fail", `SELECT 1/0`)
	return err
}

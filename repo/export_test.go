package repo

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// OnPool is a Database on a pool of the test's making.
func OnPool(name string, pool *pgxpool.Pool) *Database {
	return &Database{Name: name, pool: pool, prepares: true}
}

// Look sends a statement that changes nothing.
func (d *Database) Look(ctx context.Context) error {
	_, err := d.exec(ctx, "look", `SELECT 1`)
	return err
}

// Fail sends a statement that the server refuses.
func (d *Database) Fail(ctx context.Context) error {
	_, err := d.exec(ctx, "fail", `SELECT 1/0`)
	return err
}

package repo

import "github.com/jackc/pgx/v5/pgxpool"

// OnPool is a Database on a pool of the test's making.
func OnPool(name string, pool *pgxpool.Pool) *Database {
	return &Database{Name: name, pool: pool, prepares: true}
}

// Summarize is what a statement's span is called.
func Summarize(sql string) string { return summarize(sql) }

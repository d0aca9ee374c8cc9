package devdb

import (
	"context"
	"embed"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

//go:embed schema_*.sql
var schemaFiles embed.FS

// LoadSchema creates the reference schema in an empty database: the tables of
// main, ci or sec with GitLab's triggers and queue, or, for "all", those of the
// three in one, as on an estate whose ci and sec are not split off. All or
// nothing.
func LoadSchema(ctx context.Context, url, database string) error {
	main := []string{"main", "main_groups", "main_people", "main_content", "main_imports", "main_triggers"}
	parts := map[string][]string{"main": main, "ci": {"ci"}, "sec": {"sec"}, "all": append(slices.Clone(main), "ci", "sec")}[database]
	if parts == nil {
		return fmt.Errorf("no reference schema %q: choose main, ci, sec or all", database)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("load the reference schema %s: %w", database, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, part := range append([]string{"queue"}, parts...) {
			text, err := schemaFiles.ReadFile("schema_" + part + ".sql")
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, string(text)); err != nil { // many statements: simple protocol
				return fmt.Errorf("schema_%s.sql: %w", part, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("load the reference schema %s: %w", database, err)
	}
	return nil
}

package devdb

import (
	"context"
	"embed"
	"fmt"

	"github.com/jackc/pgx/v5"
)

//go:embed *.sql
var sqlFiles embed.FS

// part is a group of SQL files that are loaded all together or not at all.
type part struct {
	missing string // query: is it not there yet?
	files   []string
}

func schemaPart(table string, files ...string) part {
	return part{missing: "SELECT to_regclass('" + table + "') IS NULL", files: files}
}

// LoadSchema creates the reference schema: the tables of database main, ci or sec with GitLab's
// triggers and queue. "all" means those of the three in one, as on an estate whose ci and sec are
// not split off. "queue" is GitLab's queue without any other table. Existing tables do not change.
// All or nothing.
func LoadSchema(ctx context.Context, url, database string) error {
	main := schemaPart("users", "schema_main.sql", "schema_main_groups.sql", "schema_main_people.sql",
		"schema_main_content.sql", "schema_main_imports.sql", "schema_main_triggers.sql")
	ci, sec := schemaPart("p_ci_pipelines", "schema_ci.sql"), schemaPart("vulnerabilities", "schema_sec.sql")
	parts := map[string][]part{"main": {main}, "ci": {ci}, "sec": {sec}, "all": {main, ci, sec}, "queue": {}}[database]
	if parts == nil {
		return fmt.Errorf("unknown reference schema %q: use main, ci, sec, all or queue", database)
	}
	queue := schemaPart("loose_foreign_keys_deleted_records", "schema_queue.sql")
	if err := load(ctx, url, append([]part{queue}, parts...)...); err != nil {
		return fmt.Errorf("cannot load the reference schema %s: %w", database, err)
	}
	return nil
}

// load runs the files of the missing parts in one transaction, with UTC as the
// time zone.
func load(ctx context.Context, url string, parts ...part) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL timezone = 'UTC'"); err != nil {
			return err
		}
		for _, part := range parts {
			if err := part.load(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p part) load(ctx context.Context, tx pgx.Tx) error {
	var missing bool
	if err := tx.QueryRow(ctx, p.missing).Scan(&missing); err != nil || !missing {
		return err
	}
	for _, name := range p.files {
		text, err := sqlFiles.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, string(text)); err != nil { // no arguments: many statements in one
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

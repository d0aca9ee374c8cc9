package repo

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// Survey shows the application's tables before caretaker is set up.
type Survey struct {
	// GitLab: the tables are GitLab's.
	GitLab bool
	// Cascades are foreign keys with ON DELETE CASCADE whose child has many rows, the largest first.
	Cascades []Cascade
}

// Cascade is a foreign key. Rows are the planner's estimate. Indexed: an index of the child begins
// with the columns.
type Cascade struct {
	Child   string
	Columns []string
	Parent  string
	Rows    int64
	Indexed bool
}

const (
	looksLikeGitLabSQL = `
SELECT count(DISTINCT relname) = 4 FROM pg_class
WHERE relkind IN ('r', 'p') AND relname IN ('namespaces', 'projects', 'users', 'members')`

	cascadesSQL = `
SELECT c.conrelid::regclass::text, ARRAY(
    SELECT a.attname::text FROM unnest(c.conkey) WITH ORDINALITY AS col (number, place)
    JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = col.number ORDER BY col.place),
  c.confrelid::regclass::text, child.reltuples::bigint, EXISTS (
    SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am am ON am.oid = x.relam
    WHERE i.indrelid = c.conrelid AND i.indisvalid AND am.amname = 'btree'
      AND coalesce(pg_get_expr(i.indpred, i.indrelid), '(c IS NOT NULL)') LIKE '(% IS NOT NULL)'
      AND (i.indkey::int2[])[0:cardinality(c.conkey) - 1] @> c.conkey)
FROM pg_constraint c
JOIN pg_class child ON child.oid = c.conrelid
WHERE c.contype = 'f' AND c.confdeltype = 'c' AND c.conparentid = 0 AND child.reltuples >= $1
ORDER BY child.reltuples DESC, 1, 2 LIMIT $2`
)

const (
	// manyChildren is the number of rows from which a cascade may take long.
	manyChildren = 1_000
	// cascadesShown is the maximum number of cascades in a survey.
	cascadesShown = 20
)

// LooksLikeGitLab reports whether a schema has GitLab's tables.
func (d *Database) LooksLikeGitLab(ctx context.Context) (is bool, err error) {
	err = pg.QueryRow(ctx, d.Database, "find GitLab's tables", []any{&is}, looksLikeGitLabSQL)
	return is, err
}

// Survey inspects the application's tables through the catalogue alone.
func (d *Database) Survey(ctx context.Context) (s Survey, err error) {
	if s.GitLab, err = d.LooksLikeGitLab(ctx); err != nil {
		return s, err
	}
	q := pg.NewQuery("find cascades", cascadesSQL, manyChildren, cascadesShown)
	s.Cascades, err = pg.Collect(ctx, d.Database, q, pgx.RowToStructByPos[Cascade])
	return s, err
}

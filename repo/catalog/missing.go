package catalog

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// missingGrantsSQL compares grants with the rights of our role, object by object. Row-level
// security that would hide rows is an error to all statements of caretaker, so missingGrantsSQL
// reports whether it would.
const missingGrantsSQL = `
WITH asked (kind, schema, name, rights, n) AS (
  SELECT w.kind, w.schema, w.name, w.rights, w.n
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS w (kind, schema, name, rights, n)
)
SELECT a.n, ns.nspname, coalesce(c.relname, ''), concat_ws('.', quote_ident(ns.nspname), quote_ident(c.relname)), lacking.rights, coalesce(row_security_active(c.oid), false)
FROM asked a JOIN pg_namespace ns ON ns.nspname = a.schema
LEFT JOIN pg_class c ON a.kind <> 'SCHEMA' AND c.relnamespace = ns.oid AND (a.name = '' OR c.relname = a.name)
  AND (c.relkind = 'S') = (a.kind LIKE '%SEQUENCE%') AND c.relkind IN ('r', 'p', 'v', 'S')
CROSS JOIN LATERAL (
  SELECT coalesce(string_agg(r.name, ', ' ORDER BY r.i), '')
  FROM unnest(string_to_array(a.rights, ', ')) WITH ORDINALITY AS r (name, i)
  WHERE NOT CASE
    WHEN a.kind = 'SCHEMA' THEN has_schema_privilege(ns.oid, r.name)
    WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, r.name)
    ELSE has_table_privilege(c.oid, r.name) END
) lacking (rights)
WHERE (a.kind = 'SCHEMA' OR c.oid IS NOT NULL) AND (lacking.rights <> '' OR row_security_active(c.oid))
ORDER BY a.n, c.relname LIMIT 1000`

// MissingGrant is a missing grant of our role, or a table whose rows row-level security hides.
type MissingGrant struct {
	Grant
	// Hiding: our role may have rights, but not to all rows.
	Hiding bool
}

// MissingGrants returns the grants that our role is missing, 1,000 at most. The source of its other
// rights does not matter.
func (d Schema) MissingGrants(ctx context.Context, grants []Grant) ([]MissingGrant, error) {
	var columns [4][]string
	for _, g := range grants {
		for i, value := range []string{g.Kind, g.Table.Schema, g.Table.Name, g.Rights} {
			columns[i] = append(columns[i], value)
		}
	}
	q := pg.NewQuery("find missing privileges", missingGrantsSQL, columns[0], columns[1], columns[2], columns[3])
	return pg.Collect(ctx, d.db, q, func(row pgx.CollectableRow) (l MissingGrant, err error) {
		var n int
		err = row.Scan(&n, &l.Table.Schema, &l.Table.Name, &l.object, &l.Rights, &l.Hiding)
		l.Kind = map[string]string{onAllTables: onTable, onAllSequences: onSequence}[grants[n-1].Kind]
		if l.Kind == "" {
			l.Kind = grants[n-1].Kind
		}
		return l, err
	})
}

// unindexedSQL: an index serves a look-up if it begins with one of its columns, or with the kind
// and then one of them. A partial index suffices if the excluded rows have NULL in that column. A
// look-up by a missing column is never made.
const unindexedSQL = `
SELECT l.n, format('%I.%I (%s)', l.schema, l.name, (
  SELECT string_agg(quote_ident(k.name), ', ' ORDER BY k.i)
  FROM unnest(array_remove(array_prepend(l.kind, string_to_array(l.columns, ', ')), '')) WITH ORDINALITY AS k (name, i)))
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS l (schema, name, kind, columns, n)
JOIN pg_namespace ns ON ns.nspname = l.schema
JOIN pg_class c ON c.relnamespace = ns.oid AND c.relname = l.name
WHERE (
  SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (string_to_array(l.columns, ', '))
) = cardinality(string_to_array(l.columns, ', ')) AND NOT EXISTS (
  SELECT FROM pg_index i
  JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam AND am.amname = 'btree'
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
  LEFT JOIN pg_attribute b ON b.attrelid = c.oid AND b.attnum = i.indkey[1] AND i.indnkeyatts > 1
  CROSS JOIN LATERAL (SELECT CASE WHEN a.attname = l.kind THEN b.attname ELSE a.attname END) found (name)
  WHERE i.indrelid = c.oid AND i.indisvalid AND found.name::text = ANY (string_to_array(l.columns, ', '))
    AND (i.indpred IS NULL OR pg_get_expr(i.indpred, i.indrelid) = format('(%I IS NOT NULL)', found.name)))
ORDER BY l.n LIMIT 1000`

// Unindexed is a lookup without an index.
type Unindexed struct {
	Lookup
	// Index is the required index, as CREATE INDEX has it after ON.
	Index string
}

// Unindexed returns the lookups without an index, each once, 1,000 at most.
func (d Schema) Unindexed(ctx context.Context, lookups []Lookup) ([]Unindexed, error) {
	all := slices.Clone(lookups)
	slices.SortFunc(all, func(a, b Lookup) int { return strings.Compare(a.key(), b.key()) })
	all = slices.CompactFunc(all, func(a, b Lookup) bool { return a.key() == b.key() })
	var columns [4][]string
	for _, l := range all {
		for i, value := range []string{l.Schema, l.Name, l.Kind, strings.Join(l.Columns, ", ")} {
			columns[i] = append(columns[i], value)
		}
	}
	q := pg.NewQuery("find missing indexes", unindexedSQL, columns[0], columns[1], columns[2], columns[3])
	return pg.Collect(ctx, d.db, q, func(row pgx.CollectableRow) (u Unindexed, err error) {
		var n int
		err = row.Scan(&n, &u.Index)
		u.Lookup = all[n-1]
		return u, err
	})
}

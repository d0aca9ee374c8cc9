package catalog

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// Commands read the columns and indexes of single tables, of any schema, in their own transactions.

// KeyColumn is a column that may be part of a key, or refer to one.
type KeyColumn struct {
	// Table is the OID of its table.
	Table uint32
	Name  string
	// Exact is the type with its modifiers, Type the type without. Class is what the column can be
	// compared with: see [pg.KeyClassSQL].
	Exact, Type, Class string
	// Check means that a check constraint names the column, Generated that no statement can set it.
	NotNull, Check, Generated bool
}

// keyColumnsSQL reads the columns $2 of the tables, in this order, all columns if it is NULL.
const keyColumnsSQL = `
SELECT a.attrelid, a.attname::text, format_type(a.atttypid, a.atttypmod),
  format_type(a.atttypid, -1), ` + pg.KeyClassSQL + `, a.attnotnull OR t.typnotnull,
  EXISTS (
    SELECT FROM pg_constraint k
    WHERE k.conrelid = a.attrelid AND k.contype = 'c' AND a.attnum = ANY (k.conkey)),
  a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
  AND ($2::text[] IS NULL OR a.attname::text = ANY ($2))
ORDER BY array_position($2, a.attname::text), a.attnum`

// KeyColumns reads the columns of tables that have one of these names, in the order of the names,
// or all columns without names.
func KeyColumns(
	ctx context.Context, tx pgx.Tx, tables []uint32, names ...string,
) ([]KeyColumn, error) {
	rows, _ := tx.Query(ctx, keyColumnsSQL, tables, names)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[KeyColumn])
}

// Index is a valid index.
type Index struct {
	// Table is the OID of its table.
	Table uint32
	// Columns of the key, in order, "" for an expression.
	Columns []string
	// Predicate of a partial index, as PostgreSQL writes it.
	Predicate string
	// Unique indexes allow two equal values only until the commit if they are Deferrable.
	Btree, Unique, Deferrable bool
}

const indexesSQL = `
SELECT i.indrelid,
  ARRAY(SELECT coalesce(a.attname::text, '') FROM generate_series(0, i.indnkeyatts - 1) AS k (n)
        LEFT JOIN pg_attribute a
          ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.n] AND a.attnum > 0
        ORDER BY k.n),
  coalesce(pg_get_expr(i.indpred, i.indrelid), ''), am.amname = 'btree', i.indisunique,
  NOT i.indisprimary AND NOT i.indimmediate
FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam
WHERE i.indrelid = ANY ($1::oid[]) AND i.indisvalid AND i.indisready AND i.indislive
ORDER BY i.indisprimary DESC, i.indexrelid`

// Indexes reads the valid indexes of tables, primary keys first.
func Indexes(ctx context.Context, tx pgx.Tx, tables ...uint32) ([]Index, error) {
	rows, _ := tx.Query(ctx, indexesSQL, tables)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Index])
}

// Unique reports whether two rows of a table never have equal values in these columns. The columns
// are, in any order, the primary key or all columns of a unique index.
func Unique(indexes []Index, columns []string) bool {
	return slices.ContainsFunc(indexes, func(i Index) bool {
		other := func(name string) bool { return !slices.Contains(i.Columns, name) }
		return i.Unique && !i.Deferrable && i.Predicate == "" && len(i.Columns) == len(columns) &&
			!slices.ContainsFunc(columns, other)
	})
}

// UniqueKeys counts the keys of a table that unique indexes have.
func UniqueKeys(indexes []Index) int {
	keys := map[string]bool{}
	for _, i := range indexes {
		if i.Unique && i.Predicate == "" && !slices.Contains(i.Columns, "") {
			keys[strings.Join(i.Columns, "\x00")] = true
		}
	}
	return len(keys)
}

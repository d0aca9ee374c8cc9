package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// childIndex is a valid, ready btree index.
type childIndex struct {
	// columns of the key, in order; "" for an expression.
	columns []string
	// predicate of a partial index, as PostgreSQL writes it.
	predicate string
}

// indexedTable is a child, or a table below it.
type indexedTable struct {
	relation
	below   []uint32
	indexes []childIndex
}

type indexesByTable map[uint32]*indexedTable

const childIndexesSQL = `
WITH RECURSIVE below (oid, parent) AS (
  SELECT oid, 0::oid FROM unnest($1::oid[]) AS t (oid)
  UNION SELECT i.inhrelid, i.inhparent FROM below b JOIN pg_inherits i ON i.inhparent = b.oid
)
SELECT b.oid, b.parent, n.nspname, c.relname, c.relkind::text, coalesce(pg_get_expr(i.indpred, i.indrelid), ''),
  ARRAY(SELECT coalesce(a.attname::text, '') FROM generate_series(0, i.indnkeyatts - 1) AS k (n)
        LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.n] AND a.attnum > 0 ORDER BY k.n)
FROM below b
JOIN pg_class c ON c.oid = b.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN (pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam AND am.amname = 'btree')
  ON i.indrelid = b.oid AND i.indisvalid AND i.indisready AND i.indislive
ORDER BY n.nspname, c.relname, i.indexrelid`

func readIndexes(ctx context.Context, tx pgx.Tx, tables []uint32) (indexesByTable, error) {
	rows, err := tx.Query(ctx, childIndexesSQL, tables)
	if err != nil {
		return nil, err
	}
	type row struct {
		OID, Parent                   uint32
		Schema, Name, Kind, Predicate string
		Columns                       []string
	}
	read, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	found := indexesByTable{}
	for _, r := range read {
		if found[r.OID] == nil {
			found[r.OID] = &indexedTable{relation: relation{OID: r.OID, Schema: r.Schema, Name: r.Name, Kind: r.Kind}}
		}
		if len(r.Columns) > 0 {
			found[r.OID].indexes = append(found[r.OID].indexes, childIndex{r.Columns, r.Predicate})
		}
	}
	for _, r := range read {
		if above := found[r.Parent]; above != nil && !slices.Contains(above.below, r.OID) {
			above.below = append(above.below, r.OID)
		}
	}
	return found, err
}

// indexed says whether the rows of a key are found by an index: of the table itself, and in the tables below it by one
// of theirs. A valid index of a partitioned table is in all its partitions.
func (l childLook) indexed(ctx context.Context, oid uint32) (bool, error) {
	table := l.indexes[oid]
	own := false
	for _, index := range table.indexes {
		usable, err := l.usable(ctx, table.relation, index)
		if err != nil {
			return false, err
		}
		own = own || usable
	}
	if table.Kind == kindPartitioned {
		if own || len(table.below) == 0 {
			return own, nil
		}
	} else if !own {
		return false, nil
	}
	for _, below := range table.below {
		if indexed, err := l.indexed(ctx, below); err != nil || !indexed {
			return false, err
		}
	}
	return true, nil
}

// usable: all columns up to and including the definition's are that or those of its conditions, and the predicate, if
// there is one, holds for every row that the definition is about.
func (l childLook) usable(ctx context.Context, table relation, index childIndex) (bool, error) {
	conditions := columnsOf(l.key.Conditions)
	for _, column := range index.columns {
		if column == l.key.Column {
			break
		}
		if !slices.Contains(conditions, column) {
			return false, nil
		}
	}
	if !slices.Contains(index.columns, l.key.Column) {
		return false, nil
	}
	if index.predicate == "" {
		return true, nil
	}
	where := []string{quote(l.key.Column) + " IS NOT NULL"}
	var values []any
	for i, c := range l.key.Conditions {
		where = append(where, fmt.Sprintf("%s = $%d::text::%s", quote(c.Column), i+1, l.columns[c.Column].Type))
		values = append(values, c.Value)
	}
	where = append(where, "("+index.predicate+") IS NOT TRUE")
	return l.never(ctx, table.sql(), strings.Join(where, " AND "), values)
}

// neverSQL is only planned, never run.
const neverSQL = `EXPLAIN (COSTS OFF) SELECT FROM {table} WHERE {condition}`

// never says whether the planner can prove that no row meets a condition. It is the planner that decides whether a
// partial index can be used, by the same proof.
func (l childLook) never(ctx context.Context, table, condition string, values []any) (proved bool, err error) {
	if _, err := l.tx.Exec(ctx, `SET LOCAL constraint_exclusion = on`); err != nil {
		return false, err
	}
	args := append([]any{pgx.QueryExecModeExec}, values...)
	rows, err := l.tx.Query(ctx, fill(neverSQL, "{table}", table, "{condition}", condition), args...)
	if err != nil {
		return false, err
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Contains(strings.Join(plan, "\n"), "One-Time Filter: false"), err
}

// fitsSQL: the value converts to the column's type, keeps what it is when it is stored, and can be compared.
const fitsSQL = `SELECT coalesce($1::text::{type} = $1::text::{exact}, false)`

// fits says whether a value can stand in a column; a column that is missing has been reported as that.
func (l childLook) fits(ctx context.Context, v ColumnValue) (fits bool, err error) {
	column, there := l.columns[v.Column]
	if !there {
		return true, nil
	}
	// A value that does not convert fails, which must not end the transaction.
	err = pgx.BeginFunc(ctx, l.tx, func(tx pgx.Tx) error {
		sql := fill(fitsSQL, "{type}", column.Type, "{exact}", column.Exact)
		return tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, v.Value).Scan(&fits)
	})
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		if class := (&Error{SQLState: refused.Code}).Class(); class == ClassData || class == ClassSchema {
			return false, nil
		}
	}
	return fits, err
}

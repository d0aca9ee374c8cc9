package repo

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// InspectedChild is what stands in the way of a definition in one home of its child.
type InspectedChild struct {
	// MissingColumns that the definition names.
	MissingColumns []string
	// Mismatches say which type or value does not fit.
	Mismatches []string
	// Indexed: the rows of a key are found by an index.
	Indexed bool
	// NeverNull: the column that is to become NULL cannot.
	NeverNull bool
	// Keepers are triggers and rules that may keep rows as they are.
	Keepers []KeepingTrigger
}

// childColumn is a column of a child; for NOT NULL and checks, of its partitions too.
type childColumn struct {
	Table                   uint32
	Name, Type, Exact       string
	Integer, NotNull, Check bool
}

const childColumnsSQL = `
WITH RECURSIVE ` + integerTypesSQL + `,
below (root, oid) AS (
  SELECT oid, oid FROM unnest($1::oid[]) AS t (oid)
  UNION ALL SELECT b.root, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid
)
SELECT b.root, a.attname::text, min(format_type(a.atttypid, -1)), min(format_type(a.atttypid, a.atttypmod)),
  bool_and(a.atttypid IN (SELECT oid FROM integers)), bool_or(a.attnotnull OR t.typnotnull),
  bool_or(EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = a.attrelid AND k.contype = 'c' AND a.attnum = ANY (k.conkey)))
FROM below b
JOIN pg_attribute a ON a.attrelid = b.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
GROUP BY b.root, a.attname HAVING bool_or(a.attrelid = b.root)`

func inspectChildren(ctx context.Context, tx pgx.Tx, keys []LooseForeignKey, homes map[string]relation) ([]*InspectedChild, error) {
	oids := []uint32{}
	for _, k := range keys {
		if home, here := homes[k.Table]; here && !slices.Contains(oids, home.OID) {
			oids = append(oids, home.OID)
		}
	}
	rows, err := tx.Query(ctx, childColumnsSQL, oids)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[childColumn])
	if err != nil {
		return nil, err
	}
	columns := map[uint32]map[string]childColumn{}
	for _, c := range found {
		if columns[c.Table] == nil {
			columns[c.Table] = map[string]childColumn{}
		}
		columns[c.Table][c.Name] = c
	}
	indexes, err := readIndexes(ctx, tx, oids)
	if err != nil {
		return nil, err
	}
	children := make([]*InspectedChild, len(keys))
	for i, key := range keys {
		if home, here := homes[key.Table]; here {
			look := childLook{tx: tx, key: key, home: home, columns: columns[home.OID], indexes: indexes}
			if children[i], err = look.inspect(ctx); err != nil {
				return nil, err
			}
		}
	}
	return children, nil
}

// childLook inspects one definition in one home.
type childLook struct {
	tx      pgx.Tx
	key     LooseForeignKey
	home    relation
	columns map[string]childColumn
	indexes indexesByTable
}

func (l childLook) inspect(ctx context.Context) (*InspectedChild, error) {
	// What cannot run at all is not called slow as well.
	keepers, err := inspectKeepers(ctx, l.tx, l.key, l.home)
	child := &InspectedChild{Indexed: true, Keepers: keepers}
	if err != nil {
		return nil, err
	}
	values := slices.Clone(l.key.Conditions)
	if l.key.OnDelete == UpdateColumnTo {
		values = append(values, ColumnValue{l.key.TargetColumn, l.key.TargetValue})
	}
	for _, name := range append([]string{l.key.Column}, columnsOf(values)...) {
		if _, there := l.columns[name]; !there && !slices.Contains(child.MissingColumns, name) {
			child.MissingColumns = append(child.MissingColumns, name)
		}
	}
	if slices.Contains(child.MissingColumns, l.key.Column) {
		return child, nil
	}
	column := l.columns[l.key.Column]
	if !column.Integer {
		child.Mismatches = append(child.Mismatches,
			fmt.Sprintf("%s is of type %s: only smallint, integer and bigint can refer to a deleted row", column.Name, column.Exact))
	}
	for _, v := range values {
		fits, err := l.fits(ctx, v)
		if err != nil {
			return nil, err
		}
		if !fits {
			child.Mismatches = append(child.Mismatches, fmt.Sprintf("the value %q does not fit %s of type %s", v.Value, v.Column, l.columns[v.Column].Exact))
		}
	}
	if len(child.MissingColumns)+len(child.Mismatches) == 0 {
		if child.Indexed, err = l.indexed(ctx, l.home.OID); err != nil {
			return nil, err
		}
	}
	if l.key.OnDelete == AsyncNullify {
		child.NeverNull = column.NotNull
		if !column.NotNull && column.Check {
			child.NeverNull, err = l.never(ctx, l.home.sql(), quote(l.key.Column)+" IS NULL", nil)
		}
	}
	return child, err
}

func columnsOf(values []ColumnValue) []string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = v.Column
	}
	return names
}

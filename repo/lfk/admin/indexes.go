package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
)

// indexedTable is a child, or a table below it.
type indexedTable struct {
	relation
	// below are the OIDs of the tables directly below it.
	below   []uint32
	indexes []catalog.Index
}

// indexesByTable has the indexed tables by their OIDs.
type indexesByTable map[uint32]*indexedTable

// readIndexes reads the indexes of some tables and of all tables below them. It reads all indexes
// in one statement.
func readIndexes(
	ctx context.Context, tx pgx.Tx, trees trees, roots []uint32,
) (indexesByTable, error) {
	found := indexesByTable{}
	for _, root := range roots {
		for _, r := range trees[root] {
			if found[r.OID] == nil {
				found[r.OID] = &indexedTable{relation: r}
			}
			if above := found[r.Above]; above != nil && !slices.Contains(above.below, r.OID) {
				above.below = append(above.below, r.OID)
			}
		}
	}
	indexes, err := catalog.Indexes(ctx, tx, slices.Collect(maps.Keys(found))...)
	for _, i := range indexes {
		found[i.Table].indexes = append(found[i.Table].indexes, i)
	}
	return found, err
}

// indexed reports whether indexes find the rows of a key, in the table itself and in the tables
// below it. A valid index of a partitioned table is in all its partitions. It calls itself for each
// table below, until one has no usable index.
func (c childCheck) indexed(ctx context.Context, oid uint32) (bool, error) {
	table := c.indexes[oid]
	own := false
	for _, index := range table.indexes {
		usable, err := c.usable(ctx, table.relation, index)
		if err != nil {
			return false, err
		}
		own = own || usable
	}
	// Partitioned: a usable index of its own suffices. Otherwise each partition requires one.
	if table.Kind == kindPartitioned {
		if own || len(table.below) == 0 {
			return own, nil
		}
	} else if !own {
		return false, nil
	}
	for _, below := range table.below {
		if indexed, err := c.indexed(ctx, below); err != nil || !indexed {
			return false, err
		}
	}
	return true, nil
}

// notNullColumn returns the column if a predicate is only (column IS NOT NULL), else "".
func notNullColumn(predicate string) string {
	column, is := strings.CutSuffix(predicate, " IS NOT NULL)")
	column, opened := strings.CutPrefix(column, "(")
	if !is || !opened {
		return ""
	}
	return column
}

// usable reports whether a btree index serves the definition. Up to the definition's last column,
// it has only columns of the definition or its conditions. Its predicate, if any, holds for all the
// rows. A partial index costs an EXPLAIN, unless its predicate is only that a column is not NULL.
func (c childCheck) usable(ctx context.Context, table relation, index catalog.Index) (bool, error) {
	conditions, left := columnsOf(c.key.Conditions), slices.Clone(c.key.Columns)
	for _, column := range index.Columns {
		if len(left) == 0 {
			break
		}
		next := left
		if c.ordered {
			next = left[:1]
		}
		if !slices.Contains(next, column) && !slices.Contains(conditions, column) {
			return false, nil
		}
		left = slices.DeleteFunc(left, func(l string) bool { return l == column })
	}
	if len(left) > 0 || !index.Btree {
		return false, nil
	}
	if index.Predicate == "" {
		return true, nil
	}
	var where []string
	for _, column := range c.key.Columns {
		// Most partial indexes have such a predicate: do not ask the planner for each partition.
		if slices.Contains([]string{column, quote(column)}, notNullColumn(index.Predicate)) {
			return true, nil
		}
		where = append(where, quote(column)+" IS NOT NULL")
	}
	var values []any
	for i, v := range c.key.Conditions {
		where = append(where, fmt.Sprintf("%s = $%d::text::%s", quote(v.Column), i+1,
			c.columns[v.Column].Type))
		values = append(values, v.Value)
	}
	where = append(where, "("+index.Predicate+") IS NOT TRUE")
	return c.never(ctx, table.SQL(), strings.Join(where, " AND "), values)
}

package repo

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Each query reads one part of the catalogue. Go code joins the parts: a single query took five times as long.

// keptCascadesSQL: the constraint k is a foreign key that cascades, or sets the id of a user or group to its
// default.
const keptCascadesSQL = `k.contype = 'f' AND k.conparentid = 0 AND (k.confdeltype = 'c' OR k.confdeltype = 'd' AND EXISTS (
  SELECT FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace AND s.nspname = current_schema()
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND a.attnum = ANY (k.conkey)
  WHERE c.oid = k.conrelid AND c.relname IN ('users', 'namespaces')))`

// cascadingKeysSQL reads these foreign keys.
const cascadingKeysSQL = `
SELECT k.conrelid, k.conkey, k.confrelid, k.confkey FROM pg_constraint k
WHERE ` + keptCascadesSQL

// readableSQL: our role may read all rows of a table c.
const readableSQL = `has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(c.relnamespace, 'USAGE')
  AND NOT row_security_active(c.oid)`

// cascadingColumnsSQL reads the columns of those keys, on both sides.
const cascadingColumnsSQL = `
SELECT c.oid, n.nspname, c.relname, ` + readableSQL + `, a.attnum, a.attname, format_type(a.atttypid, -1)
FROM (
  SELECT DISTINCT u.rel, u.num FROM pg_constraint k
  CROSS JOIN LATERAL (SELECT k.conrelid, unnest(k.conkey) UNION ALL SELECT k.confrelid, unnest(k.confkey)) AS u (rel, num)
  WHERE ` + keptCascadesSQL + `
) u
JOIN pg_class c ON c.oid = u.rel AND c.relkind IN ('r', 'p') JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = u.rel AND a.attnum = u.num`

// stepColumnsSQL reads the columns $2 of tables $1 of the application schema: whether our role may read the
// table, and finds rows by an index.
const stepColumnsSQL = `
SELECT w.n::int - 1, c.oid, n.nspname, c.relname, ` + readableSQL + `,
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum AND i.indisvalid AND i.indpred IS NULL),
  a.attname, format_type(a.atttypid, -1)
FROM unnest($1::name[], $2::name[]) WITH ORDINALITY AS w (t, c, n)
JOIN pg_namespace n ON n.nspname = current_schema()
JOIN pg_class c ON c.relname = w.t AND c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = w.c AND a.attnum > 0`

// ancestorsSQL reads from which tables those inherit that have a part in foreign keys that cascade, or
// may be protected, and which our role may read.
const ancestorsSQL = `
WITH RECURSIVE own (oid) AS (
  SELECT k.conrelid FROM pg_constraint k WHERE ` + keptCascadesSQL + `
  UNION
  SELECT k.confrelid FROM pg_constraint k WHERE ` + keptCascadesSQL + `
  UNION
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = current_schema() AND c.relname IN ('users', 'namespaces')
), up (oid, above) AS (
  SELECT i.inhrelid, i.inhparent FROM pg_inherits i JOIN own ON own.oid = i.inhrelid
  UNION
  SELECT up.oid, i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.above
)
SELECT up.oid, above FROM up JOIN pg_class c ON c.oid = up.oid
WHERE ` + readableSQL + `
ORDER BY up.oid, above`

// keptTablesSQL are the tables of users and groups, as far as protections can be of their ids.
const keptTablesSQL = `
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND a.atttypid IN ('bigint'::regtype, 'integer'::regtype)
WHERE n.nspname = current_schema() AND c.relname IN ('users', 'namespaces') AND c.relkind IN ('r', 'p')
  AND ` + readableSQL + `
ORDER BY c.relname`

// keptChildrenSQL finds the tables $2 in the schemas $1 that our role may read.
const keptChildrenSQL = `
SELECT w.n::int - 1, c.oid FROM unnest($1::name[], $2::name[]) WITH ORDINALITY AS w (schema, name, n)
JOIN pg_namespace s ON s.nspname = w.schema JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = w.name
WHERE ` + readableSQL

// keptColumn is a column of a table.
type keptColumn struct {
	oid               uint32
	table             Table
	readable, indexed bool
	Column
}

// cascadingKey is a foreign key that cascades.
type cascadingKey struct {
	Child      uint32
	Columns    []int16
	Parent     uint32
	References []int16
}

// columnNumber is a column of a table.
type columnNumber struct {
	table  uint32
	number int16
}

// read reads the cascades.
func (k *keeper) read(ctx context.Context, steps []JobCascade, keys []keptKeys) error {
	var tables, columns []string
	for _, s := range steps {
		tables = append(tables, s.Child, s.Parent, s.Child)
		columns = append(columns, s.Column, s.ParentColumn, s.OnlyColumn)
	}
	batch := &pgx.Batch{}
	ofSteps := make([]*keptColumn, len(tables))
	batch.Queue(stepColumnsSQL, tables, columns).Query(func(rows pgx.Rows) error {
		var place int
		var c keptColumn
		_, err := pgx.ForEachRow(rows, []any{
			&place, &c.oid, &c.table.Schema, &c.table.Name, &c.readable, &c.indexed, &c.Name, &c.Type,
		}, func() error {
			found := c
			ofSteps[place] = &found
			return nil
		})
		return err
	})
	ofKeys := map[columnNumber]keptColumn{}
	batch.Queue(cascadingColumnsSQL).Query(func(rows pgx.Rows) error {
		var c keptColumn
		var n int16
		_, err := pgx.ForEachRow(rows, []any{
			&c.oid, &c.table.Schema, &c.table.Name, &c.readable, &n, &c.Name, &c.Type,
		}, func() error {
			ofKeys[columnNumber{c.oid, n}] = c
			return nil
		})
		return err
	})
	var all []cascadingKey
	batch.Queue(cascadingKeysSQL).Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[cascadingKey])
		return err
	})
	k.readTables(batch, keys)
	if err := k.tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	k.addKeys(all, ofKeys, k.addSteps(steps, ofSteps))
	for table, above := range k.above {
		for _, a := range above {
			if len(k.own[table]) > 0 {
				k.below[a] = append(k.below[a], table)
			}
		}
	}
	return nil
}

// addKeys adds the foreign keys whose tables our role may read, but for the ways that are known.
func (k *keeper) addKeys(
	all []cascadingKey, columns map[columnNumber]keptColumn, known map[string]bool,
) {
	var found []*cascade
	for _, key := range all {
		var children, parents []keptColumn
		for i := range key.Columns {
			children = append(children, columns[columnNumber{key.Child, key.Columns[i]}])
			parents = append(parents, columns[columnNumber{key.Parent, key.References[i]}])
		}
		// A key whose columns were not found is that of no table.
		if children[0].oid != 0 && parents[0].readable {
			found = append(found, newCascade(children, parents))
		}
	}
	slices.SortFunc(found, func(a, b *cascade) int {
		return cmp.Or(cmp.Compare(a.childTable.Schema, b.childTable.Schema),
			cmp.Compare(a.childTable.Name, b.childTable.Name), slices.CompareFunc(a.columns, b.columns, byName))
	})
	for _, c := range found {
		if !known[c.way()] {
			k.add(c)
		}
	}
}

func byName(a, b Column) int { return cmp.Compare(a.Name, b.Name) }

// newCascade is that of a reference from some columns to others.
func newCascade(children, parents []keptColumn) *cascade {
	c := &cascade{
		child: children[0].oid, childTable: children[0].table, parent: parents[0].oid, parentTable: parents[0].table,
	}
	for i := range children {
		c.columns, c.parentColumns = append(c.columns, children[i].Column), append(c.parentColumns, parents[i].Column)
	}
	return c
}

// way is what a cascade has in common with another one of the same columns.
func (c *cascade) way() string { return fmt.Sprint(c.child, c.parent, c.columns, c.parentColumns) }

func (k *keeper) add(c *cascade) {
	k.own[c.child] = append(k.own[c.child], c)
	k.tables[c.child], k.tables[c.parent] = c.childTable, c.parentTable
}

// addSteps adds the steps whose tables and columns exist, as integers. It leaves out tables that our role may
// not read, and columns without an index. Of a foreign key that is a step, too, the step counts: it returns
// the ways of these.
func (k *keeper) addSteps(steps []JobCascade, columns []*keptColumn) map[string]bool {
	known := map[string]bool{}
	for i, step := range steps {
		child, parent, only := columns[3*i], columns[3*i+1], columns[3*i+2]
		if child == nil || parent == nil || step.OnlyColumn != "" && only == nil || !parent.readable || !parent.indexed ||
			child.comparedAs() != "bigint" || parent.comparedAs() != "bigint" {
			continue
		}
		c := newCascade([]keptColumn{*child}, []keptColumn{*parent})
		c.contains = step.contains
		known[c.way()] = known[c.way()] || step.Only == ""
		if step.Spared {
			continue
		}
		if step.Only != "" {
			c.only = "t." + quote(step.OnlyColumn) + " " + step.Only
		}
		k.add(c)
	}
	return known
}

// readTables reads the tables of users and groups, and from which tables others inherit, and finds those of
// the children whose keys are asked for.
func (k *keeper) readTables(batch *pgx.Batch, keys []keptKeys) {
	k.readChildren(batch, keys)
	batch.Queue(ancestorsSQL).Query(func(rows pgx.Rows) error {
		var table, above uint32
		_, err := pgx.ForEachRow(rows, []any{&table, &above}, func() error {
			k.above[table] = append(k.above[table], above)
			return nil
		})
		return err
	})
	batch.Queue(keptTablesSQL).Query(func(rows pgx.Rows) error {
		var oid uint32
		var t Table
		_, err := pgx.ForEachRow(rows, []any{&oid, &t.Schema, &t.Name}, func() error {
			k.tables[oid], k.kinds[oid] = t, KindUser
			if t.Name == "namespaces" {
				k.kinds[oid] = KindGroup
			}
			return nil
		})
		return err
	})
}

// readChildren finds the tables of children whose keys are asked for.
func (k *keeper) readChildren(batch *pgx.Batch, keys []keptKeys) {
	if len(keys) == 0 {
		return
	}
	var schemas, names []string
	for _, key := range keys {
		table := key.child.Table()
		schemas, names = append(schemas, table.Schema), append(names, table.Name)
	}
	batch.Queue(keptChildrenSQL, schemas, names).Query(func(rows pgx.Rows) error {
		var place int
		var oid uint32
		_, err := pgx.ForEachRow(rows, []any{&place, &oid}, func() error {
			way := &cascade{child: oid, childTable: keys[place].child.Table(), keys: &keys[place]}
			for _, name := range way.keys.child.Key.Columns {
				way.columns = append(way.columns, Column{Name: name})
			}
			k.own[oid], k.tables[oid] = append(k.own[oid], way), way.childTable
			return nil
		})
		return err
	})
}

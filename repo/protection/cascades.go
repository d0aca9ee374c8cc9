package protection

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// ancestorsSQL finds the parents, as far as our role may read them, of inheriting tables that have
// foreign keys or may be protected.
const ancestorsSQL = `
WITH RECURSIVE own (oid) AS (
  SELECT conrelid FROM pg_constraint WHERE contype = 'f' AND conparentid = 0
  UNION
  SELECT confrelid FROM pg_constraint WHERE contype = 'f' AND conparentid = 0
  UNION
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = current_schema() AND c.relname IN ('users', 'namespaces')
), up (oid, above) AS (
  SELECT i.inhrelid, i.inhparent FROM pg_inherits i JOIN own ON own.oid = i.inhrelid
  UNION
  SELECT up.oid, i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.above
)
SELECT n.nspname, c.relname, an.nspname, a.relname
FROM up
JOIN pg_class c ON c.oid = up.oid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class a ON a.oid = up.above JOIN pg_namespace an ON an.oid = a.relnamespace
WHERE has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE') AND NOT row_security_active(c.oid)
ORDER BY 1, 2, 3, 4`

// read reads the cascades. It reads tables, foreign keys and inheritance in one round trip, in the
// keeper's transaction. steps are the cascades of jobs. keys are the loose foreign keys whose kept
// keys the caller collects.
func (k *keeper) read(ctx context.Context, d *pg.Database, steps []pg.JobCascade, keys []keptKeys) error {
	// 1. Collect the tables and columns of the steps.
	wanted := map[string][]string{"users": {"id"}, "namespaces": {"id"}}
	for _, s := range steps {
		wanted[s.Child] = append(wanted[s.Child], s.Column, s.OnlyColumn)
		wanted[s.Parent] = append(wanted[s.Parent], s.ParentColumn)
	}
	// 2. Read them, all foreign keys, and the tables that inherit.
	tables := catalog.NewCatalog(d)
	tables.UncheckedRights = true
	batch := &pgx.Batch{}
	tables.QueueTables(batch, wanted)
	tables.QueueKeys(batch, catalog.OnDeleteCascade+catalog.OnDeleteSetDefault)
	batch.Queue(ancestorsSQL).Query(func(rows pgx.Rows) error {
		var table, above catalog.Table
		_, err := pgx.ForEachRow(rows, []any{
			&table.Schema, &table.Name, &above.Schema, &above.Name,
		}, func() error {
			k.above[table] = append(k.above[table], above)
			return nil
		})
		return err
	})
	if err := k.tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	// 3. Users and groups must be readable tables with an integer id.
	for name, kind := range map[string]string{"users": control.KindUser, "namespaces": control.KindGroup} {
		t := tables.Table(name)
		id, _ := t.Column("id")
		if slices.Contains([]string{"bigint", "integer"}, id.Type) && t.Readable {
			k.kinds[t.Table] = kind
		}
	}
	// 4. Add the cascades: loose foreign keys, steps, foreign keys that no step replaces.
	for i, key := range keys {
		way := &cascade{child: key.child.Table(), keys: &keys[i]}
		for _, name := range key.child.Key.Columns {
			way.columns = append(way.columns, catalog.Column{Name: name})
		}
		k.add(way)
	}
	k.addKeys(tables, k.addSteps(steps, tables))
	// 5. Record for each table the inheriting tables that have cascades of their own.
	for table, above := range k.above {
		for _, a := range above {
			if len(k.own[table]) > 0 {
				k.below[a] = append(k.below[a], table)
			}
		}
	}
	return nil
}

// addKeys adds readable foreign keys that cascade, or set the id of a user or group to its default,
// unless their way is known. known are the ways of the steps, which replace foreign keys.
func (k *keeper) addKeys(tables *catalog.Catalog, known map[way]bool) {
	for _, key := range tables.Keys {
		_, isTarget := k.kinds[key.Child]
		cascades := key.OnDelete == catalog.OnDeleteCascade || key.OnDelete == catalog.OnDeleteSetDefault && isTarget &&
			slices.ContainsFunc(key.Columns, func(c catalog.Column) bool { return c.Name == "id" })
		c := &cascade{
			child: key.Child, parent: key.Parent, columns: key.Columns, parentColumns: key.ParentColumns,
		}
		if cascades && key.Readable && !known[c.way()] {
			k.add(c)
		}
	}
}

// way identifies cascades of the same columns.
type way struct {
	child, parent catalog.Table
	// columns and parentColumns are joined names, so that a way can be the key of a map.
	columns, parentColumns string
}

// way returns what identifies the cascade.
func (c *cascade) way() way {
	return way{c.child, c.parent, catalog.JoinColumns(c.columns), catalog.JoinColumns(c.parentColumns)}
}

// add adds a cascade to those of its child.
func (k *keeper) add(c *cascade) { k.own[c.child] = append(k.own[c.child], c) }

// addSteps adds the steps whose tables and columns exist, as integers. It skips tables that our
// role cannot read, and columns without an index. A step replaces a foreign key of the same
// columns: addSteps returns the ways of the steps.
func (k *keeper) addSteps(steps []pg.JobCascade, tables *catalog.Catalog) map[way]bool {
	known := map[way]bool{}
	for _, step := range steps {
		child, parent := tables.Table(step.Child), tables.Table(step.Parent)
		column, found := child.Column(step.Column)
		to, parentFound := parent.Column(step.ParentColumn)
		if !found || !parentFound || step.OnlyColumn != "" && !child.Has(step.OnlyColumn) || !parent.Readable ||
			!to.Indexed || column.ComparedAs() != "bigint" || to.ComparedAs() != "bigint" {
			continue
		}
		c := &cascade{
			child: child.Table, parent: parent.Table, columns: []catalog.Column{column}, parentColumns: []catalog.Column{to},
			contains: step.Contains,
		}
		known[c.way()] = known[c.way()] || step.Only == ""
		if step.Spared {
			continue
		}
		if step.Only != "" {
			c.only = "t." + stmt.Quote(step.OnlyColumn) + " " + step.Only
		}
		k.add(c)
	}
	return known
}

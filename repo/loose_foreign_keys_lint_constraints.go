package repo

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// InspectedForeignKey is a real foreign key to a table that definitions name.
type InspectedForeignKey struct {
	Name  string
	Table Table
	// Columns that refer.
	Columns []string
	// Child is the table of the definitions that the foreign key belongs to, or has below it; "": none.
	Child string
	// Parent is the table of the definitions that it refers to, itself or one of its partitions.
	Parent string
	// Blocks: a row that is referred to cannot be deleted. If it is deferrable that shows at the commit.
	Blocks bool
}

// String names it with its table.
func (f InspectedForeignKey) String() string {
	return f.Name + " on " + f.Table.Schema + "." + f.Table.Name
}

// realForeignKeysSQL: a foreign key of or to a partitioned table has copies for the partitions, which do not count. One that is
// not enforced (PostgreSQL 18) does nothing.
const realForeignKeysSQL = `
WITH RECURSIVE below (root, oid) AS (
  SELECT oid, oid FROM unnest($1::oid[]) AS t (oid)
  UNION ALL SELECT b.root, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid
)
SELECT k.conname, n.nspname, c.relname,
  ARRAY(SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS col (number, place)
        JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = col.number ORDER BY col.place),
  coalesce(child.root, 0), parent.root, k.confdeltype IN ('a', 'r')
FROM pg_constraint k
JOIN below parent ON parent.oid = k.confrelid
LEFT JOIN below child ON child.oid = k.conrelid
JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true)
ORDER BY n.nspname, c.relname, k.conname`

// inspectForeignKeys finds the real foreign keys to the tables that definitions name.
func inspectForeignKeys(ctx context.Context, tx pgx.Tx, homes map[string]relation) ([]InspectedForeignKey, error) {
	names, oids := map[uint32]string{}, []uint32{}
	for name, home := range homes {
		names[home.OID] = name
		oids = append(oids, home.OID)
	}
	slices.Sort(oids)
	rows, err := tx.Query(ctx, realForeignKeysSQL, oids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f InspectedForeignKey, err error) {
		var child, parent uint32
		err = row.Scan(&f.Name, &f.Table.Schema, &f.Table.Name, &f.Columns, &child, &parent, &f.Blocks)
		f.Child, f.Parent = names[child], names[parent]
		return f, err
	})
}

// inspectKeepers finds the triggers and rules of a child that may keep its rows.
func inspectKeepers(ctx context.Context, tx pgx.Tx, key LooseForeignKey, home relation) ([]KeepingTrigger, error) {
	rows, err := tx.Query(ctx, keepingTriggersSQL, keepingArgs(Table{home.Schema, home.Name}, key.changes() == "")...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanKeeping)
}

package catalog

import (
	"slices"

	"github.com/jackc/pgx/v5"
)

// foreignKeysSQL reads the foreign keys with these actions on delete, except those inherited by
// partitions. Columns are numbers, for numberedColumnsSQL: a join per key costs more than both
// statements.
const foreignKeysSQL = `
SELECT k.conname,
  (SELECT nspname FROM pg_namespace WHERE oid = c.relnamespace) AS schema, c.relname, c.relkind = 'p',
  (SELECT nspname FROM pg_namespace WHERE oid = pt.relnamespace), pt.relname, k.confdeltype::text,
  k.conrelid, k.confrelid, k.conkey, k.confkey,
  CASE WHEN k.confdeltype = 'n' AND cardinality(k.conkey) > 1 THEN ARRAY(
    SELECT jsonb_array_elements_text(nullif(to_jsonb(k) -> 'confdelsetcols', 'null'))::int2) END,
  (pk.indkey::int2[])[:pk.indnkeyatts - 1],
  has_table_privilege(pt.oid, 'SELECT') AND has_schema_privilege(pt.relnamespace, 'USAGE') AND NOT row_security_active(pt.oid),
  k.convalidated OR coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true)
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid JOIN pg_class pt ON pt.oid = k.confrelid
LEFT JOIN pg_index pk ON pk.indrelid = k.conrelid AND pk.indisprimary
WHERE k.contype = 'f' AND k.conparentid = 0 AND strpos($1::text, k.confdeltype::text) > 0
ORDER BY schema, c.relname, k.conname`

// numberedColumnsSQL reads the columns of these keys, and of the primary keys of their tables.
const numberedColumnsSQL = `
WITH k AS MATERIALIZED (
  SELECT conrelid, conkey, confrelid, confkey FROM pg_constraint
  WHERE contype = 'f' AND conparentid = 0 AND strpos($1::text, confdeltype::text) > 0
), place (oid, number) AS MATERIALIZED (
  SELECT conrelid, unnest(conkey) FROM k
  UNION SELECT confrelid, unnest(confkey) FROM k
  UNION SELECT indrelid, unnest(indkey::int2[]) FROM pg_index
  WHERE indisprimary AND indrelid IN (SELECT conrelid FROM k)
)
SELECT p.oid, p.number, a.attname, format_type(a.atttypid, -1), a.attnotnull
FROM place p
CROSS JOIN LATERAL (
  SELECT attname, atttypid, attnotnull FROM pg_attribute
  WHERE attrelid = p.oid AND attnum = p.number OFFSET 0) a`

// keyColumns are column numbers of a table.
type keyColumns struct {
	// table is the OID of the table, numbers are from pg_attribute.attnum.
	table   uint32
	numbers []int16
}

// numberedKey is a row of foreignKeysSQL.
type numberedKey struct {
	ForeignKey
	// child and parent are the columns of the reference.
	child, parent keyColumns
	// set are the columns that SET NULL clears, nil for all. primary are those of the child's
	// primary key.
	set, primary []int16
}

// AllActions are all actions on delete, as in pg_constraint.
const AllActions = "acdnr"

// QueueKeys adds to a batch the query for foreign keys with these actions on delete, one letter
// each. It queues two statements. c.Keys is complete once both results are read.
func (c *Catalog) QueueKeys(batch *pgx.Batch, actions string) {
	// The keys wait for the second statement, which reads the names of their columns.
	var keys []numberedKey
	batch.Queue(foreignKeysSQL, actions).Query(func(rows pgx.Rows) (err error) {
		keys, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (k numberedKey, err error) {
			err = row.Scan(
				&k.Name, &k.Child.Schema, &k.Child.Name, &k.Partitioned,
				&k.Parent.Schema, &k.Parent.Name, &k.OnDelete,
				&k.child.table, &k.parent.table, &k.child.numbers, &k.parent.numbers, &k.set, &k.primary,
				&k.Readable, &k.Enforced,
			)
			return k, err
		})
		return err
	})
	batch.Queue(numberedColumnsSQL, actions).Query(func(rows pgx.Rows) error {
		var table uint32
		var number int16
		var column Column
		columns := map[uint32]map[int16]Column{}
		_, err := pgx.ForEachRow(rows, []any{
			&table, &number, &column.Name, &column.Type, &column.NotNull,
		}, func() error {
			if columns[table] == nil {
				columns[table] = map[int16]Column{}
			}
			columns[table][number] = column
			return nil
		})
		for _, k := range keys {
			c.addKey(k, columns)
		}
		return err
	})
}

// addKey adds a foreign key with its columns. It skips a key that was dropped between the two
// statements. of contains the columns by the OID of their table and their number.
func (c *Catalog) addKey(k numberedKey, of map[uint32]map[int16]Column) {
	for i := range k.child.numbers {
		column, ok := of[k.child.table][k.child.numbers[i]]
		parent, parentOK := of[k.parent.table][k.parent.numbers[i]]
		if !ok || !parentOK {
			return
		}
		k.Columns = append(k.Columns, column)
		k.ParentColumns = append(k.ParentColumns, Column{Name: parent.Name, Type: parent.Type})
		if len(k.set) == 0 || slices.Contains(k.set, k.child.numbers[i]) {
			k.SetNull = append(k.SetNull, column.Name)
		}
	}
	k.Key = keyOf(k.primary, of[k.child.table])
	c.Keys = append(c.Keys, k.ForeignKey)
}

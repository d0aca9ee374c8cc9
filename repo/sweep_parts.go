package repo

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// part is a partition of a partitioned table, at the lowest level. Rows are changed where they stand, and a position
// means something within one partition only.
type part struct {
	table Table
	oid   uint32
	// direct: our role may change it by its own name; else it is reached through the partitioned table.
	direct bool
	// keys are the columns that decide on the partition of a row, "" if an expression does.
	keys []string
}

// moved is the part as it is reached where columns change that may take a row to another partition.
func (p *part) moved(columns []Column) *part {
	reached := *p
	for _, c := range columns {
		reached.direct = reached.direct && !slices.Contains(p.keys, c.Name) && !slices.Contains(p.keys, "")
	}
	return &reached
}

// condition keeps a statement that names the partitioned table to the partition.
func (p *part) condition(values *parameters) string {
	if p == nil || p.direct {
		return ""
	}
	return "t.tableoid = " + values.add(p.oid)
}

const partsSQL = `
SELECT n.nspname, c.relname, c.oid, has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')
  AND has_schema_privilege(n.oid, 'USAGE'), ARRAY(
    SELECT coalesce(a.attname::text, '')
    FROM pg_partition_tree(format('%I.%I', $1::text, $2::text)::regclass) level JOIN pg_partitioned_table k ON k.partrelid = level.relid
    CROSS JOIN unnest(k.partattrs::int2[]) AS key (n)
    LEFT JOIN pg_attribute a ON a.attrelid = k.partrelid AND a.attnum = key.n AND key.n > 0)
FROM pg_partition_tree(format('%I.%I', $1::text, $2::text)::regclass) t
JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf
ORDER BY n.nspname, c.relname`

// Parts are the rows as sweeps work on them: one for each partition that has any. Of a table without partitions they
// are the rows themselves, whether there are any or not.
func (c *Catalog) Parts(ctx context.Context, r Rows, l Limits) ([]Rows, error) {
	if !r.partitioned {
		return []Rows{r}, nil
	}
	parts, known := c.parts[r.Table]
	if !known {
		var err error
		parts, err = collect(ctx, c.Database, newQuery("list the partitions of "+r.Table.Name, partsSQL, r.Table.Schema, r.Table.Name), func(row pgx.CollectableRow) (p part, err error) {
			err = row.Scan(&p.table.Schema, &p.table.Name, &p.oid, &p.direct, &p.keys)
			return p, err
		})
		if err != nil {
			return nil, err
		}
		c.parts[r.Table] = parts
	}
	all := make([]Rows, len(parts))
	for i := range parts {
		all[i] = r
		all[i].partitioned, all[i].part = false, parts[i].moved(r.Match[0].Columns)
	}
	has, err := c.Database.Any(ctx, all, l)
	if err != nil {
		return nil, err
	}
	var some []Rows
	for i, r := range all {
		if has[i] {
			some = append(some, r)
		}
	}
	return some, nil
}

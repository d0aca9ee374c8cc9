package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A protection keeps more than its own target: whatever would take the protected row along is refused
// before anything is deleted. What that is, is found upwards from the protected rows, which are few: by
// foreign keys with ON DELETE CASCADE, by what jobs delete themselves, and by inheritance. Triggers and
// rules cannot be followed. Behind all this the post-condition of [Database.transaction] stays.

// JobCascade is what jobs do with rows of Child when rows of Parent are deleted to which they refer: they
// delete them. It is for what PostgreSQL does not know, or is not asked to do.
type JobCascade struct {
	Child, Column, Parent, ParentColumn string
	// OnlyColumn limits it to the rows in which that column is Only, in SQL; "": to none.
	OnlyColumn, Only string
	// Spared: the rows are not deleted. They have been given to another parent before, even where a
	// foreign key would cascade.
	Spared bool
	// queued: a job of its own deletes the row of Child. contains: Child is a part of Parent, which no
	// message has to explain.
	queued, contains bool
}

// baseCascades are those of groups and projects, and of the user's own namespace.
func baseCascades() []JobCascade {
	all := []JobCascade{
		{Child: "namespaces", Column: "parent_id", Parent: "namespaces", ParentColumn: "id"},
		{
			Child: "namespaces", Column: "owner_id", Parent: "users", ParentColumn: "id",
			OnlyColumn: "type", Only: "= 'User'",
		},
		{Child: "projects", Column: "namespace_id", Parent: "namespaces", ParentColumn: "id"},
		{
			Child: "namespaces", Column: "id", Parent: "projects", ParentColumn: "project_namespace_id",
			OnlyColumn: "type", Only: "= 'Project'",
		},
		{Child: "members", Column: "member_namespace_id", Parent: "namespaces", ParentColumn: "id"},
		{
			Child: "users", Column: "id", Parent: "members", ParentColumn: "user_id",
			OnlyColumn: "user_type", Only: "= 6", queued: true,
		},
	}
	for _, child := range []string{"namespace_details", "group_deletion_schedules"} {
		column := map[bool]string{true: "namespace_id", false: "group_id"}[child == "namespace_details"]
		all = append(all, JobCascade{Child: child, Column: column, Parent: "namespaces", ParentColumn: "id"})
	}
	for i := range all {
		all[i].contains = true
	}
	return all
}

const inForceTargetsSQL = `
SELECT ` + protectionColumns + ` FROM maintenance.protected_targets p
WHERE ` + inForceSQL + ` ORDER BY p.kind, p.id`

// keptCascadesSQL reads the foreign keys that cascade, with the number 0, and those of the steps $1 to $5
// whose tables and columns exist, as integers, with their numbers. It leaves out tables that our role may
// not read, and columns without an index.
const keptCascadesSQL = `
SELECT k.n, c.oid, cn.nspname, c.relname, child.names, child.types, pt.oid, pn.nspname, pt.relname, parent.names, parent.types
FROM (
  SELECT 0 AS n, k.conrelid, k.conkey, k.confrelid, k.confkey FROM pg_constraint k
  WHERE k.contype = 'f' AND k.confdeltype = 'c' AND k.conparentid = 0
  UNION ALL
  SELECT j.n::int, ca.attrelid, ARRAY[ca.attnum], pa.attrelid, ARRAY[pa.attnum]
  FROM unnest($1::name[], $2::name[], $3::name[], $4::name[], $5::name[]) WITH ORDINALITY
    AS j (child, col, parent, parent_col, only_col, n)
  JOIN pg_namespace s ON s.nspname = current_schema()
  JOIN pg_class c ON c.relname = j.child AND c.relnamespace = s.oid
  JOIN pg_class p ON p.relname = j.parent AND p.relnamespace = s.oid
  JOIN pg_attribute ca ON ca.attrelid = c.oid AND ca.attname = j.col AND ca.attnum > 0
  JOIN pg_attribute pa ON pa.attrelid = p.oid AND pa.attname = j.parent_col AND pa.attnum > 0
  WHERE ca.atttypid = ANY ('{int2,int4,int8}'::regtype[]) AND pa.atttypid = ANY ('{int2,int4,int8}'::regtype[])
    AND (j.only_col = '' OR EXISTS (SELECT FROM pg_attribute o WHERE o.attrelid = c.oid AND o.attname = j.only_col))
    AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = p.oid AND i.indkey[0] = pa.attnum AND i.indisvalid AND i.indpred IS NULL)
) k
JOIN pg_class c ON c.oid = k.conrelid AND c.relkind IN ('r', 'p') JOIN pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_class pt ON pt.oid = k.confrelid AND pt.relkind IN ('r', 'p') JOIN pg_namespace pn ON pn.oid = pt.relnamespace
CROSS JOIN LATERAL (
  SELECT array_agg(a.attname::text ORDER BY u.i) AS names, array_agg(format_type(a.atttypid, -1) ORDER BY u.i) AS types
  FROM unnest(k.conkey) WITH ORDINALITY AS u (n, i) JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.n) child
CROSS JOIN LATERAL (
  SELECT array_agg(a.attname::text ORDER BY u.i) AS names, array_agg(format_type(a.atttypid, -1) ORDER BY u.i) AS types
  FROM unnest(k.confkey) WITH ORDINALITY AS u (n, i) JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = u.n) parent
WHERE has_table_privilege(pt.oid, 'SELECT') AND has_schema_privilege(pn.oid, 'USAGE') AND NOT row_security_active(pt.oid)
ORDER BY k.n = 0, k.n, cn.nspname, c.relname, child.names`

// ancestorsSQL reads from which tables those inherit that have a part in foreign keys that cascade, or
// may be protected, and which our role may read.
const ancestorsSQL = `
WITH RECURSIVE own (oid) AS (
  SELECT k.conrelid FROM pg_constraint k WHERE k.contype = 'f' AND k.confdeltype = 'c' AND k.conparentid = 0
  UNION
  SELECT k.confrelid FROM pg_constraint k WHERE k.contype = 'f' AND k.confdeltype = 'c' AND k.conparentid = 0
  UNION
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = current_schema() AND c.relname IN ('users', 'namespaces')
), up (oid, above) AS (
  SELECT i.inhrelid, i.inhparent FROM pg_inherits i JOIN own ON own.oid = i.inhrelid
  UNION
  SELECT up.oid, i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.above
)
SELECT up.oid, above FROM up JOIN pg_class c ON c.oid = up.oid
WHERE has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(c.relnamespace, 'USAGE') AND NOT row_security_active(c.oid)
ORDER BY up.oid, above`

// keptTablesSQL are the tables of users and groups, as far as protections can be of their ids.
const keptTablesSQL = `
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND a.atttypid IN ('bigint'::regtype, 'integer'::regtype)
WHERE n.nspname = current_schema() AND c.relname IN ('users', 'namespaces') AND c.relkind IN ('r', 'p')
  AND has_table_privilege(c.oid, 'SELECT') AND NOT row_security_active(c.oid)
ORDER BY c.relname`

// keptChildrenSQL finds the tables $2 in the schemas $1 that our role may read.
const keptChildrenSQL = `
SELECT w.n::int - 1, c.oid FROM unnest($1::name[], $2::name[]) WITH ORDINALITY AS w (schema, name, n)
JOIN pg_namespace s ON s.nspname = w.schema JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = w.name
WHERE has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(s.oid, 'USAGE') AND NOT row_security_active(c.oid)`

// target is a user or group.
type target struct {
	kind string
	id   int64
}

// Keeping are the users and groups that protections keep: their own, and those of others that would be
// deleted with them.
type Keeping map[target]*Protection

// Of is the protection that keeps a user or group, nil if none does.
func (k Keeping) Of(kind string, id int64) *Protection { return k[target{kind, id}] }

// steps are what jobs delete. begun: jobs that delete other targets do not count, as they decide for
// themselves.
func (d *Database) steps(begun bool) []JobCascade {
	return slices.DeleteFunc(slices.Concat(baseCascades(), d.JobCascades), func(c JobCascade) bool {
		return begun && c.queued
	})
}

// keptKeys are the keys in rows of a child that protections keep.
type keptKeys struct {
	child *Child
	found map[Key]*Protection
}

// keep finds what the protections in force keep, in a transaction.
func keep(ctx context.Context, tx pgx.Tx, steps []JobCascade, keys ...keptKeys) (Keeping, error) {
	rows, _ := tx.Query(ctx, inForceTargetsSQL)
	all, err := pgx.CollectRows(rows, scanProtection)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	k := &keeper{
		tx: tx, own: map[uint32][]*cascade{}, above: map[uint32][]uint32{}, below: map[uint32][]uint32{},
		tables: map[uint32]Table{}, kinds: map[uint32]string{}, kept: Keeping{}, seen: map[string]bool{},
	}
	if err := k.read(ctx, steps, keys); err != nil {
		return nil, err
	}
	return k.kept, k.climb(ctx, all)
}

// Keeping reads what the protections in force keep.
func (d *Database) Keeping(ctx context.Context, l Limits) (Keeping, error) {
	return d.keeping(ctx, d.steps(false), l)
}

// KeptKeys reads the recorded keys in rows of children that PostgreSQL cannot delete without a protected
// row, each with the protection, in the order of the children. What only triggers delete is not found. A
// child that fails a statement, as without a column of its definition, has none: its deletions fail, too.
func (d *Database) KeptKeys(
	ctx context.Context, children []*Child, l Limits,
) (kept []map[Key]*Protection, err error) {
	var keys []keptKeys
	for _, c := range children {
		found := map[Key]*Protection{}
		kept, keys = append(kept, found), append(keys, keptKeys{c, found})
	}
	_, err = d.keeping(ctx, nil, l, keys...)
	refused, ok := errors.AsType[*Error](err)
	switch {
	case !ok || refused.SQLState == "" || refused.Class() == ClassLock || refused.Class() == ClassTimeout:
		return kept, err
	case len(children) == 1:
		_, err = d.keeping(ctx, nil, l)
		return []map[Key]*Protection{{}}, err
	}
	half := len(children) / 2
	if kept, err = d.KeptKeys(ctx, children[:half], l); err != nil {
		return nil, err
	}
	others, err := d.KeptKeys(ctx, children[half:], l)
	return append(kept, others...), err
}

// keeping is keep in a transaction of its own, for reads. It takes one statement where nothing is
// protected.
func (d *Database) keeping(
	ctx context.Context, steps []JobCascade, l Limits, keys ...keptKeys,
) (kept Keeping, err error) {
	q := newQuery("look for protections", inForceTargetsSQL)
	found, err := readRows(ctx, d, l, q, scanProtection)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	l.ReadOnly = true
	err = d.transaction(ctx, "look for what protections keep", Permit{Limits: l},
		func(ctx context.Context, tx *changing) (err error) {
			kept, err = keep(ctx, tx, steps, keys...)
			return err
		})
	return kept, err
}

// read reads the cascades.
func (k *keeper) read(ctx context.Context, steps []JobCascade, keys []keptKeys) error {
	var children, columns, parents, parentColumns, only []string
	for _, s := range steps {
		children, columns, only = append(children, s.Child), append(columns, s.Column), append(only, s.OnlyColumn)
		parents, parentColumns = append(parents, s.Parent), append(parentColumns, s.ParentColumn)
	}
	batch := &pgx.Batch{}
	// Of a foreign key that is a step, too, the step counts: it comes first.
	known := map[string]bool{}
	batch.Queue(keptCascadesSQL, children, columns, parents, parentColumns, only).Query(func(rows pgx.Rows) error {
		var c cascade
		var names, types, parentNames, parentTypes []string
		_, err := pgx.ForEachRow(rows, []any{
			&c.n, &c.child, &c.childTable.Schema, &c.childTable.Name, &names, &types,
			&c.parent, &c.parentTable.Schema, &c.parentTable.Name, &parentNames, &parentTypes,
		}, func() error {
			found := c
			found.columns, found.parentColumns = pairColumns(names, types), pairColumns(parentNames, parentTypes)
			way := fmt.Sprint(c.child, c.parent, names, parentNames)
			switch {
			case c.n == 0 && known[way]:
				return nil
			case c.n > 0:
				step := steps[c.n-1]
				found.contains = step.contains
				known[way] = known[way] || step.Only == ""
				if step.Spared {
					return nil
				}
				if step.Only != "" {
					found.only = "t." + quote(step.OnlyColumn) + " " + step.Only
				}
			}
			k.own[c.child] = append(k.own[c.child], &found)
			k.tables[c.child], k.tables[c.parent] = c.childTable, c.parentTable
			return nil
		})
		return err
	})
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
	if err := k.tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	for table, above := range k.above {
		for _, a := range above {
			if len(k.own[table]) > 0 {
				k.below[a] = append(k.below[a], table)
			}
		}
	}
	return nil
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

package admin

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
)

// Kinds of relations, as in PostgreSQL's relkind.
const (
	kindTable       = "r"
	kindPartitioned = "p"
	kindForeign     = "f"
)

// relation is a table named by an operator or a definition, or a table below it.
type relation struct {
	catalog.Table
	OID  uint32
	Kind string
	// Partition means a partition of Parent, its topmost partitioned table. Otherwise Parent is the
	// name of the table itself. The name has no schema if that is the application's.
	Partition bool
	Parent    string
	// ParentHere means that the parent is in the application schema.
	ParentHere bool
	// Protected means that an enabled trigger refuses every write.
	Protected bool
	// Above is the table directly above it, 0 if none.
	Above uint32
	// Inherited means a child by INHERITS, which is a table of its own.
	Inherited bool
	// Replicated means that a logical replication subscription fills it, or one of pglogical may.
	Replicated bool
	// exact means that it is not a partition found by its own name alone.
	exact bool
}

func (r relation) String() string { return r.Schema + "." + r.Name }

// relationsSQL finds relations by their names $1 in commands and definitions, with their schemas
// $2, empty for the application's, and their names there $3. Otherwise it finds a partition of a
// table of the application schema by its own name.
const relationsSQL = `
SELECT w.written, c.oid, n.nspname, c.relname, c.relkind::text, c.relispartition,
  CASE WHEN rn.nspname = current_schema() THEN root.relname::text ELSE rn.nspname || '.' || root.relname END,
  rn.nspname = current_schema(), ` + catalog.ProtectedSQL + `, x.exact
FROM (SELECT DISTINCT written, schema, name FROM unnest($1::text[], $2::text[], $3::text[]) AS w (written, schema, name)) w
JOIN pg_class c ON c.relname = w.name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class root ON root.oid = coalesce(pg_partition_root(c.oid), c.oid)
JOIN pg_namespace rn ON rn.oid = root.relnamespace
CROSS JOIN LATERAL (SELECT n.nspname = coalesce(nullif(w.schema, ''), current_schema())) x (exact)
WHERE x.exact OR w.schema = '' AND c.relispartition AND rn.nspname = current_schema()
ORDER BY w.written, n.nspname, c.relname`

// named finds relations by their names. Only a name of partitions can have several.
func named(ctx context.Context, tx pgx.Tx, names ...string) (map[string][]relation, error) {
	var written, schemas, tables []string
	for _, name := range names {
		if t, err := catalog.ParseTable(name); err == nil {
			written, schemas, tables = append(written, name), append(schemas, t.Schema), append(tables, t.Name)
		}
	}
	found := map[string][]relation{}
	_, err := list(ctx, tx, func(row pgx.CollectableRow) (r relation, err error) {
		var name string
		err = row.Scan(&name, &r.OID, &r.Schema, &r.Name, &r.Kind, &r.Partition, &r.Parent, &r.ParentHere,
			&r.Protected, &r.exact)
		found[name] = append(found[name], r)
		return r, err
	}, relationsSQL, written, schemas, tables)
	for name, some := range found {
		if i := slices.IndexFunc(some, func(r relation) bool { return r.exact }); i >= 0 {
			found[name] = some[i : i+1]
		}
	}
	return found, err
}

// locate finds the one table that an operator has named.
func (a Admin) locate(ctx context.Context, tx pgx.Tx, name string) (relation, error) {
	if err := checkName(a, name); err != nil {
		return relation{}, err
	}
	all, err := named(ctx, tx, name)
	found := all[name]
	switch {
	case err != nil:
		return relation{}, err
	case len(found) == 0:
		return relation{}, &RefusedError{
			Database: a.database.Name, Reason: "unknown table " + name, NoTable: true,
		}
	case len(found) > 1:
		return relation{}, a.refuse("the name %[3]s matches both %[1]s and %[2]s: specify the schema",
			found[0], found[1], name)
	}
	return found[0], nil
}

// checkName refuses a table name that cannot be parsed.
func checkName(a Admin, name string) error {
	if _, err := catalog.ParseTable(name); err != nil {
		return a.misnamed("the name %s %s", name, err)
	}
	return nil
}

// HasTable reports whether the database has a relation of that name for a command: a table, a
// partition, or a view. Write-protected leftovers do not count.
func (a Admin) HasTable(ctx context.Context, name string) (has bool, err error) {
	if err := checkName(a, name); err != nil {
		return false, err
	}
	err = a.read(ctx, "find "+name, func(ctx context.Context, tx pgx.Tx) error {
		found, err := named(ctx, tx, name)
		has = len(found[name]) > 0 && !found[name][0].Protected
		return err
	})
	return has, err
}

// tableNamesSQL reads the tables that a command may name. Tables of the application schema come
// first, without their schema.
const tableNamesSQL = `
SELECT CASE WHEN n.nspname = current_schema() THEN '' ELSE n.nspname END, c.relname, ` + catalog.ProtectedSQL + `
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p')
  AND n.nspname NOT IN ('maintenance', 'information_schema') AND n.nspname NOT LIKE 'pg\_%'
ORDER BY 1, 2`

// NamedTable is a table that the operator may have meant.
type NamedTable struct {
	catalog.Table
	// Protected means that it is a write-protected leftover.
	Protected bool
}

// TableNames returns the tables that a command may name, for a hint about an unknown name.
func (a Admin) TableNames(ctx context.Context) (tables []NamedTable, err error) {
	err = a.read(ctx, "read the names of tables", func(ctx context.Context, tx pgx.Tx) error {
		tables, err = list(ctx, tx, func(row pgx.CollectableRow) (t NamedTable, err error) {
			err = row.Scan(&t.Schema, &t.Name, &t.Protected)
			return t, err
		}, tableNamesSQL)
		return err
	})
	return tables, err
}

// belowSQL finds tables and all tables below each, its partitions level by level. Any role may read
// which of them a subscription fills. A subscription of pglogical may fill any table: no catalogue
// of the subscriber lists those that the provider adds without a copy. Its replication origin has
// the database's name, of which a long one is cut to 8 bytes and a hash.
const belowSQL = `
WITH RECURSIVE below (root, oid, above, inherited, level) AS (
  SELECT oid, oid, 0::oid, false, 0 FROM unnest($1::oid[]) AS t (oid)
  UNION ALL
  SELECT b.root, c.oid, b.oid, b.inherited OR NOT c.relispartition, b.level + 1
  FROM below b JOIN pg_inherits i ON i.inhparent = b.oid AND NOT i.inhdetachpending
  JOIN pg_class c ON c.oid = i.inhrelid
)
SELECT DISTINCT ON (b.root, b.level, n.nspname, c.relname)
  b.root, c.oid, n.nspname, c.relname, c.relkind::text, b.above, b.inherited,
  EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid) OR EXISTS (
    SELECT FROM pg_extension x
    JOIN pg_replication_origin o ON starts_with(o.roname, 'pgl_' || left(current_database(), 8))
    WHERE x.extname = 'pglogical')
FROM below b JOIN pg_class c ON c.oid = b.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY b.root, b.level, n.nspname, c.relname`

// trees are tables with all tables below each, the table first.
type trees map[uint32][]relation

func readTrees(ctx context.Context, tx pgx.Tx, roots ...uint32) (trees, error) {
	trees := trees{}
	_, err := list(ctx, tx, func(row pgx.CollectableRow) (r relation, err error) {
		var root uint32
		err = row.Scan(&root, &r.OID, &r.Schema, &r.Name, &r.Kind, &r.Above, &r.Inherited, &r.Replicated)
		trees[root] = append(trees[root], r)
		return r, err
	}, belowSQL, roots)
	return trees, err
}

// members returns all tables of some trees, by their OIDs, with the root of each.
func (t trees) members(roots []uint32) (of, oids []uint32) {
	for _, root := range roots {
		for _, r := range t[root] {
			of, oids = append(of, root), append(oids, r.OID)
		}
	}
	return of, oids
}

// replicated reports whether logical replication fills a table or one of its partitions.
func replicated(tree []relation) bool {
	return slices.ContainsFunc(tree, func(r relation) bool { return r.Replicated && !r.Inherited })
}

package repo

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Kinds of relations: PostgreSQL's relkind.
const (
	kindTable       = "r"
	kindPartitioned = "p"
	kindForeign     = "f"
)

// relation is a table as an operator or a definition named it, or one below it.
type relation struct {
	OID          uint32
	Schema, Name string
	Kind         string
	// Partition of Parent, its topmost partitioned table; otherwise Parent is the name of the table itself.
	Partition bool
	Parent    string
	// ParentHere: the parent is in the application schema.
	ParentHere bool
	// Protected: an enabled trigger refuses every write.
	Protected bool
	// Inherited is a child by INHERITS, which is a table of its own.
	Inherited bool
}

func (r relation) String() string { return r.Schema + "." + r.Name }

func (r relation) sql() string { return quote(r.Schema, r.Name) }

// protectedSQL: GitLab leaves such triggers on the tables that a split has left behind.
const protectedSQL = `EXISTS (
  SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
  WHERE t.tgrelid = c.oid AND t.tgenabled IN ('O', 'A') AND p.proname = 'gitlab_schema_prevent_write')`

// locateSQL: a table of the application schema by its literal name; else schema and name; else a partition of a table
// of the application schema by its own name. The comparison is by text: a name of 64 bytes would be cut to 63.
const locateSQL = `
SELECT oid, schema, name, kind, partition, parent, here, protected FROM (
  SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.relispartition AS partition,
    CASE WHEN rn.nspname = current_schema() THEN root.relname::text ELSE rn.nspname || '.' || root.relname END AS parent,
    rn.nspname = current_schema() AS here, ` + protectedSQL + ` AS protected,
    rank() OVER (ORDER BY n.nspname = current_schema() AND c.relname::text = $1 DESC, n.nspname || '.' || c.relname = $1 DESC)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class root ON root.oid = coalesce(pg_partition_root(c.oid), c.oid)
  JOIN pg_namespace rn ON rn.oid = root.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND (
    (n.nspname = current_schema() AND c.relname::text = $1) OR n.nspname || '.' || c.relname = $1
    OR (c.relispartition AND c.relname::text = $1 AND rn.nspname = current_schema()))
) found WHERE rank = 1 ORDER BY schema, name`

// locate finds what an operator called a table. More than one is ambiguous.
func locate(ctx context.Context, tx pgx.Tx, name string) ([]relation, error) {
	rows, err := tx.Query(ctx, locateSQL, name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r relation, err error) {
		err = row.Scan(&r.OID, &r.Schema, &r.Name, &r.Kind, &r.Partition, &r.Parent, &r.ParentHere, &r.Protected)
		return r, err
	})
}

// HasTable says whether there is something of that name here that a command could be about: a table that is not a
// write-protected leftover, a partition, a view.
func (d *Database) HasTable(ctx context.Context, name string) (has bool, err error) {
	err = d.readOnly(ctx, "look for "+name, func(tx pgx.Tx) error {
		found, err := locate(ctx, tx, name)
		has = len(found) > 0 && !found[0].Protected
		return err
	})
	return has, err
}

// belowSQL is a table and all that is below it, its partitions level by level.
const belowSQL = `
WITH RECURSIVE below (oid, inherited, level) AS (
  SELECT $1::oid, false, 0
  UNION ALL
  SELECT c.oid, b.inherited OR NOT c.relispartition, b.level + 1
  FROM below b JOIN pg_inherits i ON i.inhparent = b.oid AND NOT i.inhdetachpending JOIN pg_class c ON c.oid = i.inhrelid
)
SELECT DISTINCT ON (b.level, n.nspname, c.relname) c.oid, n.nspname, c.relname, c.relkind::text, b.inherited
FROM below b JOIN pg_class c ON c.oid = b.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY b.level, n.nspname, c.relname`

// partitionTree reads a table and all below it, the table first.
func partitionTree(ctx context.Context, tx pgx.Tx, root uint32) ([]relation, error) {
	rows, err := tx.Query(ctx, belowSQL, root)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r relation, err error) {
		err = row.Scan(&r.OID, &r.Schema, &r.Name, &r.Kind, &r.Inherited)
		return r, err
	})
}

// joined shows the arguments of a trigger.
func joined(arguments []string) string {
	quoted := make([]string, len(arguments))
	for i, a := range arguments {
		quoted[i] = literal(a)
	}
	return strings.Join(quoted, ", ")
}

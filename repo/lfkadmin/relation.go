package lfkadmin

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
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
	// Partition of Parent, its topmost partitioned table; otherwise Parent is the name of the table
	// itself.
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

// locateSQL: a table of the application schema by its literal name; else schema and name; else a
// partition of a table of the application schema by its own name. The comparison is by text: a name
// of 64 bytes would be cut to 63.
const locateSQL = `
SELECT oid, schema, name, kind, partition, parent, here, protected FROM (
  SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
    c.relispartition AS partition,
    CASE WHEN rn.nspname = current_schema() THEN root.relname::text
      ELSE rn.nspname || '.' || root.relname END AS parent,
    rn.nspname = current_schema() AS here, ` + repo.ProtectedSQL + ` AS protected,
    rank() OVER (ORDER BY n.nspname = current_schema() AND c.relname::text = $1 DESC,
      n.nspname || '.' || c.relname = $1 DESC)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class root ON root.oid = coalesce(pg_partition_root(c.oid), c.oid)
  JOIN pg_namespace rn ON rn.oid = root.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND (
    (n.nspname = current_schema() AND c.relname::text = $1) OR n.nspname || '.' || c.relname = $1
    OR (c.relispartition AND c.relname::text = $1 AND rn.nspname = current_schema()))
) found WHERE rank = 1 ORDER BY schema, name`

// locate finds the one table that an operator has named.
func (a Admin) locate(ctx context.Context, tx pgx.Tx, name string) (relation, error) {
	found, err := named(ctx, tx, name)
	switch {
	case err != nil:
		return relation{}, err
	case len(found) == 0:
		return relation{}, &RefusedError{
			Database: a.database.Name, Reason: "there is no table " + name, NoTable: true,
		}
	case len(found) > 1:
		return relation{}, a.refuse("%s and %s are both called %s: say which, with its schema",
			found[0], found[1], name)
	}
	return found[0], nil
}

func named(ctx context.Context, tx pgx.Tx, name string) ([]relation, error) {
	return list(ctx, tx, func(row pgx.CollectableRow) (r relation, err error) {
		err = row.Scan(&r.OID, &r.Schema, &r.Name, &r.Kind, &r.Partition, &r.Parent, &r.ParentHere,
			&r.Protected)
		return r, err
	}, locateSQL, name)
}

// HasTable says whether there is something of that name here that a command could be about: a table
// that is not a write-protected leftover, a partition, a view.
func (a Admin) HasTable(ctx context.Context, name string) (has bool, err error) {
	err = a.read(ctx, "look for "+name, func(ctx context.Context, tx pgx.Tx) error {
		found, err := named(ctx, tx, name)
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
  FROM below b JOIN pg_inherits i ON i.inhparent = b.oid AND NOT i.inhdetachpending
  JOIN pg_class c ON c.oid = i.inhrelid
)
SELECT DISTINCT ON (b.level, n.nspname, c.relname)
  c.oid, n.nspname, c.relname, c.relkind::text, b.inherited
FROM below b JOIN pg_class c ON c.oid = b.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY b.level, n.nspname, c.relname`

// partitionTree reads a table and all below it, the table first.
func partitionTree(ctx context.Context, tx pgx.Tx, root uint32) ([]relation, error) {
	return list(ctx, tx, func(row pgx.CollectableRow) (r relation, err error) {
		err = row.Scan(&r.OID, &r.Schema, &r.Name, &r.Kind, &r.Inherited)
		return r, err
	}, belowSQL, root)
}

// integerTypesSQL are the types a key can have: integers of whatever size, and domains over them.
const integerTypesSQL = `integers (oid) AS (
  SELECT type::oid FROM unnest(ARRAY['smallint', 'integer', 'bigint']::regtype[]) AS i (type)
  UNION SELECT t.oid FROM integers i JOIN pg_type t ON t.typbasetype = i.oid AND t.typtype = 'd'
)`

// keyColumnSQL says of a column whether it can be a key, and whether it alone is the primary key or
// under an index that allows no two equal values at any time.
const keyColumnSQL = `
WITH RECURSIVE ` + integerTypesSQL + `
SELECT format_type(a.atttypid, a.atttypmod), a.atttypid IN (SELECT oid FROM integers),
  EXISTS (
    SELECT FROM pg_index i
    WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
      AND (i.indisprimary OR i.indimmediate) AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
FROM pg_attribute a
WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0 AND NOT a.attisdropped`

// keyColumn is a column that may identify deleted rows.
type keyColumn struct {
	kind            string
	integer, unique bool
}

// readKeyColumn finds a column by its literal name; [pgx.ErrNoRows]: there is none.
func readKeyColumn(
	ctx context.Context, tx pgx.Tx, table uint32, name string,
) (k keyColumn, err error) {
	if len(name) > maxNameBytes {
		return k, pgx.ErrNoRows
	}
	err = tx.QueryRow(ctx, keyColumnSQL, table, name).Scan(&k.kind, &k.integer, &k.unique)
	return k, err
}

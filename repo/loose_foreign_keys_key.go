package repo

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// integerTypesSQL are the types a key can have: integers of whatever size, and domains over them.
const integerTypesSQL = `integers (oid) AS (
  SELECT type::oid FROM unnest(ARRAY['smallint', 'integer', 'bigint']::regtype[]) AS i (type)
  UNION SELECT t.oid FROM integers i JOIN pg_type t ON t.typbasetype = i.oid AND t.typtype = 'd'
)`

// keyColumnSQL says of a column whether it can be a key, and whether it alone is the primary key or under an index that
// allows no two equal values at any time.
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
func readKeyColumn(ctx context.Context, tx pgx.Tx, table uint32, name string) (k keyColumn, err error) {
	if len(name) > maxNameBytes {
		return k, pgx.ErrNoRows
	}
	err = tx.QueryRow(ctx, keyColumnSQL, table, name).Scan(&k.kind, &k.integer, &k.unique)
	return k, err
}

// parent finds the table to be tracked.
func (r tracking) parent(ctx context.Context, tx pgx.Tx) (relation, error) {
	found, err := locate(ctx, tx, r.table)
	if err != nil {
		return relation{}, err
	}
	if len(found) == 0 {
		return relation{}, r.d.refuse("there is no table %s", r.table)
	}
	switch t := found[0]; {
	case len(found) > 1:
		return t, r.d.refuse("%s and %s are both called %s: say which, with its schema", t, found[1], r.table)
	case t.Partition:
		return t, r.d.refuse("%s is a partition of %s: track that, and its partitions with it", t, t.Parent)
	case t.Kind != kindTable && t.Kind != kindPartitioned:
		return t, r.d.refuse("%s is a view or a foreign table: only tables can be tracked", t)
	case !t.ParentHere:
		return t, r.d.refuse("%s is not in the application schema, which definitions stand for: connect with another search_path", t)
	case t.Name == queueTable:
		return t, r.d.refuse("%s is the queue itself", t)
	case t.Protected:
		return t, r.d.refuse("%s is write-protected here, a leftover of a split database: track it where it lives", t)
	default:
		return t, nil
	}
}

// choose says how a table is to be tracked, or why it cannot be. The key must be unique among the living: a second row
// of the same key would lose its children with the first. The id of a partitioned table is taken for unique, because
// no index could say so.
func (r tracking) choose(ctx context.Context, tx pgx.Tx, q Queue, t relation) (captureFunction, error) {
	f := columnFunction(r.column)
	byID := r.column == "" || r.column == "id"
	if byID {
		f = plainFunction()
		if t.Kind == kindPartitioned {
			f = overrideFunction()
		}
	}
	key, err := readKeyColumn(ctx, tx, t.OID, f.column)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && r.column == "":
		return f, r.d.refuse("%s has no column id: name the key with --column", t)
	case errors.Is(err, pgx.ErrNoRows):
		return f, r.d.refuse("%s has no column %s", t, f.column)
	case err != nil:
		return f, err
	case !key.integer:
		return f, r.d.refuse("the key %s of %s is of type %s: only smallint, integer and bigint can be recorded", f.column, t, key.kind)
	case !key.unique && !(byID && t.Kind == kindPartitioned):
		return f, r.d.refuse("%s of %s is neither the primary key nor alone in a valid unique index that is neither partial nor deferrable: "+
			"another row of the same key would lose its children", f.column, t)
	}
	if byID {
		exists, err := f.exists(ctx, tx, q)
		if err == nil && !exists {
			err = r.d.refuse("the function %s is missing: the queue was not made by `caretaker lfk install`, nor by a GitLab that has it", f.sql(q))
		}
		return f, err
	}
	return f, nil
}

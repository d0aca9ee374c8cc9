package admin

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk/capture"
)

// RealKey is a real foreign key of a table, for `caretaker lfk adopt` and `revert`.
type RealKey struct {
	// OID of the constraint. 0 means that [Admin.Drop] has dropped it and recorded these fields.
	OID uint32
	// Table has the constraint. Columns refer to ParentColumns of Parent.
	Table, Parent          catalog.Table
	Name                   string
	Columns, ParentColumns []string
	// Definition is PostgreSQL's, with all names qualified.
	Definition string
	// OnDelete and OnUpdate are letters of pg_constraint: a, r (no action, restrict), c (cascade),
	// n, d (set null, set default). SomeColumns means that SET NULL is for some columns only.
	OnDelete, OnUpdate string
	SomeColumns        bool
	// Valid means that all rows have been checked.
	Valid bool
	// CopyOf names the partitioned table whose constraint was copied, "" if none.
	CopyOf string
	// Partitioned means that the table is partitioned.
	Partitioned bool
	// Adopted means that [Admin.Drop] once dropped the key and recorded its definition.
	Adopted bool
	// Rows is the planner's estimate of the table's rows, negative if unknown.
	Rows int64
}

// add returns the SQL that adds the constraint, not valid if requested and possible.
func (k *RealKey) add(valid bool) string {
	definition, _ := strings.CutSuffix(k.Definition, " NOT VALID")
	sql := "ALTER TABLE " + quote(k.Table.Schema, k.Table.Name) + " ADD CONSTRAINT " + quote(k.Name) +
		" " + definition
	if !valid {
		sql += " NOT VALID"
	}
	return sql
}

// DropSQL returns the statement that drops the foreign key.
func (k *RealKey) DropSQL() string {
	return "ALTER TABLE " + quote(k.Table.Schema, k.Table.Name) + " DROP CONSTRAINT " + quote(k.Name)
}

// AddSQL returns the statement that adds the key again. It does not check existing rows, unless the
// table is partitioned: before version 18 PostgreSQL has no NOT VALID constraints there.
func (k *RealKey) AddSQL() string { return k.add(k.Partitioned) }

// ValidateSQL returns the statement that checks the rows.
func (k *RealKey) ValidateSQL() string {
	return "ALTER TABLE " + quote(k.Table.Schema, k.Table.Name) + " VALIDATE CONSTRAINT " +
		quote(k.Name)
}

// WasValid reports whether the key was valid before it was dropped.
func (k *RealKey) WasValid() bool { return !strings.HasSuffix(k.Definition, " NOT VALID") }

// fullNamesSQL makes PostgreSQL write all names with their schemas.
const fullNamesSQL = `SELECT set_config('search_path', 'pg_catalog', true)`

// realKeysSQL finds the foreign keys of the table $1, or of all tables if it is NULL. It includes a partition's copies of its
// table's keys, but not those that PostgreSQL makes for partitions of a parent. Dropped keys that
// are still missing follow. A key that was dropped and added again counts as not dropped.
const realKeysSQL = `
SELECT k.oid, n.nspname, c.relname, pn.nspname, p.relname, k.conname::text,
  ARRAY(
    SELECT a.attname::text FROM unnest(k.conkey) WITH ORDINALITY AS col (number, place)
    JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = col.number ORDER BY col.place),
  ARRAY(
    SELECT a.attname::text FROM unnest(k.confkey) WITH ORDINALITY AS col (number, place)
    JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = col.number ORDER BY col.place),
  coalesce(f.definition, pg_get_constraintdef(k.oid)), k.confdeltype::text, k.confupdtype::text,
  coalesce(to_jsonb(k) ->> 'confdelsetcols', '{}') NOT IN ('{}', '[]'), k.convalidated,
  coalesce(above.conrelid::regclass::text, ''), c.relkind = 'p', f.name IS NOT NULL,
  CASE WHEN c.relkind <> 'p' THEN c.reltuples ELSE (
    SELECT coalesce(sum(greatest(leaf.reltuples, 0)), 0) FROM pg_partition_tree(c.oid) part
    JOIN pg_class leaf ON leaf.oid = part.relid WHERE part.isleaf) END::bigint
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class p ON p.oid = k.confrelid
JOIN pg_namespace pn ON pn.oid = p.relnamespace
LEFT JOIN pg_constraint above ON above.oid = k.conparentid
LEFT JOIN maintenance.adopted_foreign_keys f
  ON f.schema = n.nspname AND f."table" = c.relname AND f.name = k.conname::text
WHERE k.contype = 'f' AND ($1::oid IS NULL OR k.conrelid = $1) AND above.conrelid IS DISTINCT FROM k.conrelid
UNION ALL
SELECT 0, f.schema, f."table", f.parent_schema, f.parent, f.name, f.columns, '{}', f.definition, '',
  '', false, false, '', c.relkind = 'p', true, -1
FROM maintenance.adopted_foreign_keys f
JOIN pg_namespace n ON n.nspname = f.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = f."table"
WHERE ($1::oid IS NULL OR c.oid = $1) AND NOT EXISTS (
  SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.conname::text = f.name)
ORDER BY 2, 3, 6`

func scanRealKey(row pgx.CollectableRow) (k RealKey, err error) {
	err = row.Scan(&k.OID, &k.Table.Schema, &k.Table.Name, &k.Parent.Schema, &k.Parent.Name, &k.Name,
		&k.Columns, &k.ParentColumns, &k.Definition, &k.OnDelete, &k.OnUpdate, &k.SomeColumns, &k.Valid,
		&k.CopyOf, &k.Partitioned, &k.Adopted, &k.Rows)
	if k.OID == 0 {
		k.ParentColumns = capture.ReferencedColumns(k.Definition)
	}
	return k, err
}

// RealKeys returns the foreign keys of a table, or of all tables ("") by table and name. They include
// those that [Admin.Drop] has dropped.
func (a Admin) RealKeys(ctx context.Context, table string) (keys []RealKey, err error) {
	operation := strings.TrimSpace("find foreign keys " + table)
	err = a.read(ctx, operation, func(ctx context.Context, tx pgx.Tx) error {
		var oid *uint32
		if table != "" {
			found, err := a.locate(ctx, tx, table)
			if err != nil {
				return err
			}
			oid = &found.OID
		}
		if err := run(ctx, tx, fullNamesSQL); err != nil {
			return err
		}
		keys, err = list(ctx, tx, scanRealKey, realKeysSQL, oid)
		return err
	})
	return keys, err
}

// TrackingSQL returns the statements that Track would run, none if the table is already tracked.
func (a Admin) TrackingSQL(
	ctx context.Context, table string, columns ...string,
) (sql []string, err error) {
	request := tracking{Admin: a, table: table, columns: columns}
	err = a.read(ctx, "read "+table, func(ctx context.Context, tx pgx.Tx) error {
		plan, err := request.plan(ctx, tx)
		if err == nil {
			sql = plan.sql()
		}
		return err
	})
	return sql, err
}

// shortLockSQL bounds how long our lock requests delay other transactions on the tables.
const shortLockSQL = `SELECT set_config('lock_timeout', '200ms', true)`

// leaseHeldSQL keeps the lease until the end of the transaction.
const leaseHeldSQL = `
SELECT EXISTS (
  SELECT FROM maintenance.leases
  WHERE name = $1 AND holder = $2 AND epoch = $3 AND expires_at > clock_timestamp()
  FOR SHARE)`

// rememberKeySQL records the constraint. It replaces the row of an earlier adoption.
const rememberKeySQL = `
INSERT INTO maintenance.adopted_foreign_keys AS f
  (schema, "table", name, definition, columns, parent_schema, parent)
SELECT $2, $3, k.conname::text, pg_get_constraintdef(k.oid), $4, $5, $6
FROM pg_constraint k WHERE k.oid = $1 AND k.contype = 'f'
ON CONFLICT (schema, "table", name) DO UPDATE
SET definition = EXCLUDED.definition, columns = EXCLUDED.columns,
  parent_schema = EXCLUDED.parent_schema, parent = EXCLUDED.parent, adopted_at = clock_timestamp()`

// Drop drops a foreign key and records it, in one transaction that waits at most 200 ms for each
// lock. It requires the worker's lease on this database: a run that started with definitions
// without the key must not see the deletions that follow.
func (a Admin) Drop(ctx context.Context, k RealKey, lease fencing.Fence) error {
	return a.write(ctx, "drop foreign key "+k.Name, func(ctx context.Context, tx pgx.Tx) error {
		var held bool
		err := tx.QueryRow(ctx, leaseHeldSQL, lease.Name, lease.Holder, lease.Epoch).Scan(&held)
		switch {
		case err != nil:
			return err
		case !held:
			return dberr.ErrLeaseLost
		}
		for _, sql := range []string{shortLockSQL, fullNamesSQL} {
			if err := run(ctx, tx, sql); err != nil {
				return err
			}
		}
		tag, err := tx.Exec(ctx, rememberKeySQL, k.OID, k.Table.Schema, k.Table.Name, k.Columns,
			k.Parent.Schema, k.Parent.Name)
		if err == nil && tag.RowsAffected() == 0 {
			err = a.refuse("foreign key %s on %s has changed in the meantime: try again", k.Name, k.Table.Written())
		}
		if err != nil {
			return err
		}
		return run(ctx, tx, k.DropSQL())
	})
}

// Restore adds a dropped foreign key again: see [RealKey.AddSQL].
func (a Admin) Restore(ctx context.Context, k RealKey) error {
	return a.withoutTimeout().write(ctx, "add foreign key "+k.Name, func(ctx context.Context, tx pgx.Tx) error {
		if err := run(ctx, tx, shortLockSQL); err != nil {
			return err
		}
		return run(ctx, tx, k.AddSQL())
	})
}

// Validate checks the rows of a foreign key that Restore has added, for as long as that takes.
// Reads and writes of the table continue. The error 23503 means that rows without a parent exist.
func (a Admin) Validate(ctx context.Context, k RealKey) error {
	return a.withoutTimeout().write(ctx, "validate "+k.Name, func(ctx context.Context, tx pgx.Tx) error {
		return run(ctx, tx, k.ValidateSQL())
	})
}

const forgetKeySQL = `
DELETE FROM maintenance.adopted_foreign_keys WHERE schema = $1 AND "table" = $2 AND name = $3`

// Forget deletes the record of a dropped foreign key that exists again.
func (a Admin) Forget(ctx context.Context, k RealKey) error {
	return a.write(ctx, "forget "+k.Name, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, forgetKeySQL, k.Table.Schema, k.Table.Name, k.Name)
		return err
	})
}

// Violated reports whether rows without a parent prevent adding or checking a foreign key.
func Violated(err error) bool {
	failed, ok := errors.AsType[*dberr.Error](err)
	return ok && failed.SQLState == "23503"
}

// Locked reports whether a lock timeout on a table ended the change. Nothing was changed.
func Locked(err error) bool {
	failed, ok := errors.AsType[*dberr.Error](err)
	return ok && failed.Class() == dberr.ClassLock
}

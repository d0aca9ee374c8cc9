package repo

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Protection is a post-condition: no transaction of a run or a job commits in main while a protected
// user or group is missing that existed when the transaction began, whatever deleted the row. A
// statement deletes more than it names: foreign keys cascade over any number of tables and columns,
// inheritance, triggers and rules delete what they like.

// missingTargetsSQL are the protected users and groups that do not exist, without those that were
// missing before ($1). The conditions {users} and {namespaces} are those of tables that exist.
const missingTargetsSQL = `
SELECT ` + protectionColumns + ` FROM maintenance.protected_targets p
WHERE ` + inForceSQL + ` AND NOT p.kind || ' ' || p.id = ANY ($1::text[])
  AND CASE p.kind WHEN 'user' THEN {users} ELSE {namespaces} END
ORDER BY p.kind, p.id`

const (
	noUserSQL  = `NOT EXISTS (SELECT FROM users t WHERE t.id = p.id)`
	noGroupSQL = `NOT EXISTS (SELECT FROM namespaces t WHERE t.id = p.id)`
)

// mayHaveTargetsSQL is false where the application schema has no table of targets, or where no
// protection was ever possible.
const mayHaveTargetsSQL = `
SELECT to_regclass('maintenance.protected_targets') IS NOT NULL
  AND (current_schema() IS NULL OR EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname IN ('users', 'namespaces') AND n.nspname = current_schema()))`

// missingTargets returns missingTargetsSQL for this database. It returns "" for databases without
// protections: all but main, and main if it is used for loose foreign keys alone and no server that
// serves GitLab's workers, too, has been there. Such a server looks once a run.
func (d *Database) missingTargets(ctx context.Context) (string, error) {
	if d.Name != "main" {
		return "", nil
	}
	if sql := d.targets.Load(); sql != nil {
		return *sql, nil
	}
	return d.readTargets(ctx)
}

func (d *Database) readTargets(ctx context.Context) (sql string, err error) {
	// A database without these tables is asked again each time: they may be created.
	var may bool
	err = d.queryRoutine(ctx, "read the catalogue", &may, mayHaveTargetsSQL)
	if err != nil {
		return "", err
	}
	users, groups := "false", "false"
	if may {
		tables, err := d.presence(ctx, referencesOf("users", "id", "namespaces", "id"))
		if err != nil {
			return "", err
		}
		// Protections are of integers: a table of that name with another id is not GitLab's.
		if id, ok := tables.Table("users").Column("id"); ok && id.comparedAs() == "bigint" {
			users = noUserSQL
		}
		if id, ok := tables.Table("namespaces").Column("id"); ok && id.comparedAs() == "bigint" {
			groups = noGroupSQL
		}
		sql = fill(missingTargetsSQL, "{users}", users, "{namespaces}", groups)
	}
	if d.LooseForeignKeysOnly || users == noUserSQL && groups == noGroupSQL {
		d.targets.Store(&sql)
	}
	return sql, nil
}

// checkProtected is the end of a transaction of a run or a job. A target may have been protected
// since the transaction began. Constraint triggers that are deferred fire first, behind the receipts,
// as they would at the commit.
func (tx *changing) checkProtected(ctx context.Context) (err error) {
	if tx.targetsSQL == "" {
		return nil
	}
	batch := &pgx.Batch{}
	batch.Queue(constraintsSQL)
	batch.Queue(tx.targetsSQL, tx.missing).Query(func(rows pgx.Rows) error {
		missing, err := pgx.CollectRows(rows, scanProtection)
		if err == nil && len(missing) > 0 {
			err = &ProtectedError{Protection: missing[0], By: tx.changed}
		}
		return err
	})
	return tx.SendBatch(ctx, batch).Close()
}

// touches notes that the transaction changes rows of a table, or that triggers do so instead.
func (tx *changing) touches(table string) {
	if !slices.Contains(tx.changed, table) {
		tx.changed = append(tx.changed, table)
	}
}

// touchedSQL counts the rows of users and namespaces that the transaction has deleted or updated, by whatever
// path, as PostgreSQL does for its statistics. TRUNCATE gives a table another file.
const touchedSQL = `(
  WITH RECURSIVE target (oid) AS (
    SELECT unnest(ARRAY[to_regclass('users'), to_regclass('namespaces')])::oid
    UNION
    SELECT i.inhrelid FROM target t JOIN pg_inherits i ON i.inhparent = t.oid
  )
  SELECT string_agg(concat_ws(' ', oid, pg_relation_filenode(oid),
    pg_stat_get_xact_tuples_deleted(oid), pg_stat_get_xact_tuples_updated(oid)), ',' ORDER BY oid)
  FROM target)`

// A statement that is watched has watchSQL before it and unwatch behind it, in its transaction, which fails if
// something is protected and rows of users or namespaces were touched. Deferred constraint triggers fire before
// that; a plain SET CONSTRAINTS would be a warning in the log of some releases of PostgreSQL.
const (
	watchSQL           = settingsSQL + `, set_config('caretaker.touched', ` + touchedSQL + `, true)`
	fireConstraintsSQL = `
DO 'BEGIN ` + constraintsSQL + `; END'`
	unwatchSQL = `SELECT (CASE
  WHEN (NOT current_setting('track_counts')::boolean
      OR current_setting('caretaker.touched', true) IS DISTINCT FROM ` + touchedSQL + `)
    AND EXISTS (SELECT FROM maintenance.protected_targets p WHERE ` + inForceSQL + `)
  THEN '` + touchedText + `' END)::int`
	touchedText = "users or namespaces were changed"
)

func unwatch() []statement { return []statement{{sql: fireConstraintsSQL}, {sql: unwatchSQL}} }

// errTouched means that a statement needs the whole post-condition. The transaction changed nothing.
const errTouched = textError(touchedText)

// watched sends a statement that fails with [errTouched] if it may have deleted protected rows. It is not sent at
// all if the operation has done so before.
func (d *Database) watched(
	ctx context.Context, p Permit, operation string, send func(Permit) error,
) (err error) {
	if d.Name != "main" || !p.destroys() {
		return send(p)
	}
	p.watch = true
	if d.LooseForeignKeysOnly {
		sql, err := d.missingTargets(ctx)
		if err != nil {
			return err
		}
		p.watch = sql != ""
	}
	if _, known := d.touching.Load(operation); known && p.watch {
		return errTouched
	}
	if err = send(p); errors.Is(err, errTouched) {
		d.touching.Store(operation, true)
	}
	return err
}

// writeProtected is [Database.write] as a transaction of its own with the post-condition.
func (d *Database) writeProtected(ctx context.Context, p Permit, q query, into ...any) error {
	p.Transaction = p.Statement + p.Lock + netTime
	ctx, into = withAffected(ctx, into)
	return d.transaction(ctx, q.operation, p, func(ctx context.Context, tx *changing) error {
		var held bool
		change := p.fill(q.statement)
		err := tx.QueryRow(ctx, change.sql, change.args...).Scan(append([]any{&held}, into...)...)
		if err == nil && !held {
			err = p.refused(ctx, tx)
		}
		if q.table != "" {
			tx.touches(q.table)
		}
		if err == nil && q.check != nil {
			_, err = tx.Exec(ctx, q.check.sql, q.check.args...)
			err = meant(err)
		}
		if err != nil || q.receipt == nil {
			return err
		}
		_, err = tx.Exec(ctx, q.receipt.sql, q.receipt.args...)
		return err
	})
}

// renewTargets lets a server that is used for loose foreign keys alone look again whether there may be
// protections.
func (d *Database) renewTargets(ctx context.Context) (err error) {
	if d.LooseForeignKeysOnly && d.Name == "main" {
		_, err = d.readTargets(ctx)
	}
	return err
}

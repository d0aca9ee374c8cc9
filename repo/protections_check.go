package repo

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

const protectsSQL = `EXISTS (SELECT FROM maintenance.protected_targets p WHERE ` + inForceSQL + `)`

const anyInForceSQL = `SELECT ` + protectsSQL

// missingTargets returns missingTargetsSQL for this database. It returns "" for databases without
// protections: all but main, and main if it is used for loose foreign keys alone and no server that
// serves GitLab's workers, too, has made any. Such a server reads that with the paths, once a run.
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
	if err == nil && may && d.LooseForeignKeysOnly {
		err = d.queryRoutine(ctx, "look for protections", &may, anyInForceSQL)
	}
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
    SELECT c.oid FROM pg_class c
    WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
      AND c.relname IN ('users', 'namespaces')
    UNION
    SELECT i.inhrelid FROM target t JOIN pg_inherits i ON i.inhparent = t.oid
  )
  SELECT coalesce(string_agg(concat_ws(' ', oid, pg_relation_filenode(oid),
    pg_stat_get_xact_tuples_deleted(oid), pg_stat_get_xact_tuples_updated(oid)), ',' ORDER BY oid), '')
  FROM target)`

// watchSQL comes before a statement, unwatchSQL after it, in its transaction. unwatchSQL fails, and with it the
// transaction, if something is protected and rows of users or namespaces were touched.
const (
	watchSQL   = `SELECT set_config('caretaker.touched', ` + touchedSQL + `, true)`
	unwatchSQL = `
SELECT (CASE WHEN ` + protectsSQL + `
  AND (NOT current_setting('track_counts')::boolean OR nullif(current_setting('caretaker.touched', true), '') <> ` + touchedSQL + `)
  THEN '` + touchedText + `' END)::int`
	touchedText = "users or namespaces were changed"
)

// errTouched is what a failed unwatchSQL means: the statement needs the whole post-condition.
var errTouched = errors.New(touchedText)

func touchedError(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && strings.Contains(pgErr.Message, touchedText) {
		return check{err: errTouched}.meant(err)
	}
	return err
}

// watches reports whether single statements of the permit may delete protected rows. A server that is used for
// loose foreign keys alone reads once a run whether there are protections.
func (d *Database) watches(p Permit) bool {
	if d.Name != "main" || !p.destroys() {
		return false
	}
	sql := d.targets.Load()
	return !d.LooseForeignKeysOnly || sql != nil && *sql != ""
}

// touches reports whether an operation has changed users or namespaces before.
func (d *Database) touches(p Permit, operation string) bool {
	_, known := d.touching.Load(operation)
	return known && d.watches(p)
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
		for _, c := range q.checks {
			if err == nil {
				_, err = tx.Exec(ctx, c.sql, c.args...)
				err = c.meant(err)
			}
		}
		if err != nil || q.receipt == nil {
			return err
		}
		_, err = tx.Exec(ctx, q.receipt.sql, q.receipt.args...)
		return err
	})
}

// forgetTargets lets a server that is used for loose foreign keys alone read again whether there are
// protections.
func (d *Database) forgetTargets(ctx context.Context) error {
	if !d.LooseForeignKeysOnly {
		return nil
	}
	d.targets.Store(nil)
	_, err := d.missingTargets(ctx)
	return err
}

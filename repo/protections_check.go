package repo

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Protection is a post-condition: no transaction of a run or a job commits in main while a protected
// user or group is missing that existed when the transaction began, whatever deleted the row. A
// statement deletes more than it names: foreign keys cascade over any number of tables and columns,
// inheritance, triggers and rules delete what they like.

// targets are the tables of protected users and groups, by their names and schemas: search_path may change.
type targets struct {
	// missing is missingTargetsSQL; "": nothing was ever protected here.
	missing string
	// touched is touchedSQL; "": not both tables are known.
	touched string
}

// missingTargetsSQL are the protected users and groups that do not exist, without those that were
// missing before ($1). The conditions are {users} and {namespaces}.
const missingTargetsSQL = `
SELECT ` + protectionColumns + ` FROM maintenance.protected_targets p
WHERE CASE WHEN NOT ` + inForceSQL + ` OR p.kind || ' ' || p.id = ANY ($1::text[]) THEN false
  WHEN p.kind = 'user' THEN {users} ELSE {namespaces} END
ORDER BY p.kind, p.id`

const (
	missingTargetSQL = `NOT EXISTS (SELECT FROM {table} t WHERE t.id = p.id)`
	// noTableSQL fails: see [failIf].
	noTableSQL = `(CASE WHEN p.id IS NOT NULL THEN '` + noTargetTableText + `' END)::int IS NULL`
)

const noTargetTableText = "a protected user or group cannot be looked up: main has no table of users or namespaces " +
	"with an integer id in its search_path: restore the table, or end the protections with caretaker unprotect"

// errNoTargetTable means that a transaction changed nothing, because nobody could tell whether protected rows
// are there.
const errNoTargetTable = textError(noTargetTableText)

// targetTablesSQL finds the tables. Temporary ones hide them, and are none.
const targetTablesSQL = `
SELECT w.name, c.oid, n.nspname, c.relname
FROM unnest(ARRAY['users', 'namespaces']) AS w (name)
JOIN pg_class c ON c.oid = to_regclass(w.name) AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND NOT a.attisdropped
WHERE ` + KeyClassSQL + ` = '` + ClassInteger + `'`

const mayHaveTargetsSQL = `SELECT to_regclass('maintenance.protected_targets') IS NOT NULL`

// protectedTargets are those of this database: none but in main, and none in a main that no server with GitLab's
// workers has migrated.
func (d *Database) protectedTargets(ctx context.Context) (*targets, error) {
	if d.Name != "main" {
		return &targets{}, nil
	}
	if known := d.targets.Load(); known != nil {
		return known, nil
	}
	return d.readTargets(ctx)
}

// readTargets looks for the tables. What is not there yet is looked for again each time.
func (d *Database) readTargets(ctx context.Context) (*targets, error) {
	if d.LooseForeignKeysOnly {
		var may bool
		if err := d.queryRoutine(ctx, "look for protections", &may, mayHaveTargetsSQL); err != nil {
			return nil, err
		}
		if !may {
			none := &targets{}
			d.targets.Store(none)
			return none, nil
		}
	}
	type targetTable struct {
		Wanted string
		OID    uint32
		Table
	}
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	ctx, o := d.beginRoutine(ctx, "look for users and namespaces")
	rows, _ := d.pool.Query(ctx, targetTablesSQL)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[targetTable])
	o.end(ctx, err)
	if err != nil {
		return nil, d.wrap(ctx, "look for users and namespaces", err)
	}
	conditions := map[string]string{"users": noTableSQL, "namespaces": noTableSQL}
	var oids []string
	for _, t := range found {
		conditions[t.Wanted] = fill(missingTargetSQL, "{table}", t.sql())
		name := "to_regclass('" + strings.ReplaceAll(t.sql(), "'", "''") + "')::oid"
		oids = append(oids, strconv.FormatUint(uint64(t.OID), 10)+"::oid", name)
	}
	known := &targets{missing: fill(missingTargetsSQL, "{users}", conditions["users"], "{namespaces}", conditions["namespaces"])}
	if len(found) == len(conditions) {
		known.touched = fill(touchedSQL, "{tables}", strings.Join(oids, ", "))
	}
	if d.LooseForeignKeysOnly || known.touched != "" {
		d.targets.Store(known)
	}
	return known, nil
}

// end is the end of a transaction of a run or a job. Constraint triggers that are deferred fire behind the receipts,
// as they would at the commit. A target may have been protected since the transaction began.
func (tx *changing) end(ctx context.Context, p Permit) error {
	batch := &pgx.Batch{}
	if !p.DryRun {
		tx.queueReceipts(batch, p.Source)
	}
	if tx.targetsSQL != "" || p.DryRun {
		batch.Queue(constraintsSQL)
	}
	if tx.targetsSQL != "" {
		batch.Queue(tx.targetsSQL, tx.missing).Query(func(rows pgx.Rows) error {
			missing, err := pgx.CollectRows(rows, scanProtection)
			if err == nil && len(missing) > 0 {
				err = &ProtectedError{Protection: missing[0], By: tx.changed}
			}
			return err
		})
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// touches notes that the transaction changes rows of a table, or that triggers do so instead.
func (tx *changing) touches(table string) {
	if !slices.Contains(tx.changed, table) {
		tx.changed = append(tx.changed, table)
	}
}

// touchedSQL counts the rows of users and namespaces that the transaction has deleted or updated, by whatever
// path, as PostgreSQL does for its statistics. TRUNCATE gives a table another file. {tables} are theirs by oid,
// and those that have their names now.
const touchedSQL = `(
  WITH RECURSIVE target (oid) AS (
    SELECT unnest(ARRAY[{tables}])
    UNION
    SELECT i.inhrelid FROM target t JOIN pg_inherits i ON i.inhparent = t.oid
  )
  SELECT string_agg(concat_ws(' ', oid, pg_relation_filenode(oid),
    pg_stat_get_xact_tuples_deleted(oid), pg_stat_get_xact_tuples_updated(oid)), ',' ORDER BY oid)
  FROM target)`

// A statement that is watched has watchSQL in the settings before it and unwatchSQL behind it, in its
// transaction. That fails if something is protected and rows of users or namespaces were touched, or if nobody
// knows. Deferred constraint triggers fire before the receipt, so that its head waits for nobody; a plain SET
// CONSTRAINTS would be a warning in the log of some releases of PostgreSQL.
const (
	watchSQL           = `, set_config('caretaker.touched', {touched}, true)`
	fireConstraintsSQL = `
DO 'BEGIN ` + constraintsSQL + `; END'`
	unwatchSQL = `SELECT (CASE
  WHEN ({unknown} OR NOT current_setting('track_counts')::boolean
      OR current_setting('caretaker.touched', true) IS DISTINCT FROM {touched})
    AND EXISTS (SELECT FROM maintenance.protected_targets p WHERE ` + inForceSQL + `)
  THEN '` + touchedText + `' END)::int`
	touchedText = "users or namespaces were changed"
)

// settings are those of a statement, watched if t is not nil.
func (t *targets) settings() string {
	if t == nil || t.touched == "" {
		return settingsSQL
	}
	return settingsSQL + fill(watchSQL, "{touched}", t.touched)
}

// unwatch is what comes behind a watched statement.
func (t *targets) unwatch() []statement {
	if t == nil {
		return nil
	}
	unknown, touched := "false", t.touched
	if touched == "" {
		unknown, touched = "true", "''"
	}
	return []statement{{sql: fill(unwatchSQL, "{unknown}", unknown, "{touched}", touched)}}
}

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
	p.watch = d.targets.Load()
	switch {
	case p.watch == nil && d.LooseForeignKeysOnly:
		if p.watch, err = d.readTargets(ctx); err != nil {
			return err
		}
	case p.watch == nil:
		p.watch = &targets{missing: missingTargetsSQL}
	}
	if p.watch.missing == "" {
		p.watch = nil
	}
	if _, known := d.touching.Load(operation); known && p.watch != nil {
		return errTouched
	}
	if err = send(p); errors.Is(err, errTouched) && p.watch.touched != "" {
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
		}
		if err != nil || q.receipt == nil {
			return err
		}
		_, err = tx.Exec(ctx, q.receipt.sql, q.receipt.args...)
		return err
	})
}

// renewTargets looks for the tables at the start of a run, if they are not known. A server that is used for loose
// foreign keys alone always does: protections may have become possible.
func (d *Database) renewTargets(ctx context.Context) (err error) {
	if d.Name == "main" && (d.LooseForeignKeysOnly || d.targets.Load() == nil) {
		_, err = d.readTargets(ctx)
	}
	return err
}

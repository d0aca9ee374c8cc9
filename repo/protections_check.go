package repo

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Protection is a post-condition: no transaction of a run or a job commits in main while a protected
// user or group is missing that existed when the transaction began, whatever deleted the row. A
// statement deletes more than it names: foreign keys cascade over any number of tables and columns,
// inheritance, triggers and rules delete what they like.

// targets are the statements of the post-condition. They name tables with their schemas: search_path may change.
type targets struct {
	// note follows the settings of a transaction, and keeps which targets are missing already. check follows
	// what changes rows. Both are "" where nothing was ever protected.
	note, check string
	// incomplete: users or namespaces was not found.
	incomplete bool
}

// missingTargetsSQL: the protection p is in force, and its user or group does not exist.
const missingTargetsSQL = `CASE WHEN NOT ` + activeSQL + ` THEN false
  WHEN p.kind = 'user' THEN {users} ELSE {namespaces} END`

// anyInForceSQL comes first, so that users and namespaces are not locked where nothing is protected: PL/pgSQL
// plans what it executes, and no more.
const anyActiveSQL = `EXISTS (SELECT FROM maintenance.protected_targets p WHERE ` + activeSQL + `)`

const noteTargetsSQL = `DO $caretaker$
BEGIN
  IF ` + anyActiveSQL + ` THEN
    PERFORM set_config('caretaker.missing', (
      SELECT coalesce(string_agg(p.kind || ' ' || p.id, ','), '')
      FROM maintenance.protected_targets p WHERE {missing}), true);
  END IF;
END $caretaker$`

// checkTargetsSQL fails with the first protection whose target is missing since the note. Deferred constraint
// triggers fire before; in a single statement also before its receipt, so that the receipts' head waits for nobody.
const checkTargetsSQL = `DO $caretaker$
DECLARE
  lost json;
BEGIN
  ` + constraintsSQL + `;
  IF ` + anyActiveSQL + ` THEN
    SELECT json_build_object('Kind', p.kind, 'ID', p.id, 'Reason', p.reason, 'By', p.protected_by) INTO lost
    FROM maintenance.protected_targets p
    WHERE {missing} AND p.kind || ' ' || p.id <> ALL (
      (SELECT string_to_array(coalesce(current_setting('caretaker.missing', true), ''), ','))::text[])
    ORDER BY p.kind, p.id LIMIT 1;
    IF lost IS NOT NULL THEN
      RAISE '` + lostTargetMark + `%', lost USING ERRCODE = '22P02';
    END IF;
  END IF;
END $caretaker$`

// lostTargetMark is what comes before the protection, as JSON, in the message of PostgreSQL.
const lostTargetMark = "caretaker protects "

// lostTarget reads the protection from that message, nil if it has none.
func lostTarget(message string) *ProtectedError {
	_, text, found := strings.Cut(message, lostTargetMark)
	end := strings.LastIndex(text, "}") + 1
	e := &ProtectedError{}
	if found && json.Unmarshal([]byte(text[:end]), &e.Protection) == nil {
		return e
	}
	return nil
}

// protectedBy adds to an error about a lost target the tables with whose rows it was deleted.
func protectedBy(err error, tables ...string) error {
	if e, ok := errors.AsType[*ProtectedError](err); ok && e.By == nil && !slices.Contains(tables, "") {
		e.By = tables
	}
	return err
}

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

// targetTablesSQL finds the tables, and whether anything can be protected. Temporary tables hide them, and are none.
const targetTablesSQL = `
SELECT w.name, to_regclass('maintenance.protected_targets') IS NOT NULL, a.nspname, a.relname
FROM unnest(ARRAY['users', 'namespaces']) AS w (name)
LEFT JOIN LATERAL (
  SELECT n.nspname, c.relname, a.atttypid, a.attcollation
  FROM (SELECT to_regclass(w.name)::oid AS oid OFFSET 0) named
  JOIN pg_class c ON c.oid = named.oid AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' AND NOT a.attisdropped
  OFFSET 0 -- so that two rows are asked for their type, not the id of each table
) a ON ` + KeyClassSQL + ` = '` + ClassInteger + `'`

// targetTable is users or namespaces. Protects is the same for both: whether anything can be protected.
type targetTable struct {
	Wanted       string
	Protects     bool
	Schema, Name *string
}

// protectedTargets are those of this database: none but in main, and none in a main that no server with GitLab's
// workers has migrated.
func (d *Database) protectedTargets(ctx context.Context) (targets, error) {
	if d.Name != "main" {
		return targets{}, nil
	}
	if known := d.targets.Load(); known != nil {
		return *known, nil
	}
	return d.readTargets(ctx)
}

// readTargets looks for the tables. What is not there yet is looked for again each time.
func (d *Database) readTargets(ctx context.Context) (known targets, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statementTimeout, ErrUnreachable)
	defer cancel()
	ctx, o := d.beginRoutine(ctx, "look for users and namespaces")
	rows, _ := d.pool.Query(ctx, targetTablesSQL)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[targetTable])
	o.end(ctx, err)
	if err != nil {
		return known, d.wrap(ctx, "look for users and namespaces", err)
	}
	conditions := map[string]string{"users": noTableSQL, "namespaces": noTableSQL}
	var protects, missing bool
	for _, t := range found {
		protects, missing = t.Protects, missing || t.Name == nil
		if t.Name != nil {
			conditions[t.Wanted] = fill(missingTargetSQL, "{table}", quote(*t.Schema, *t.Name))
		}
	}
	if protects {
		lost := fill(missingTargetsSQL, "{users}", conditions["users"], "{namespaces}", conditions["namespaces"])
		known = targets{
			fill(noteTargetsSQL, "{missing}", lost), fill(checkTargetsSQL, "{missing}", lost), missing,
		}
	}
	if d.LooseForeignKeysOnly || protects {
		d.targets.Store(&known)
	}
	return known, nil
}

// watching is a permit whose statements check the post-condition.
func (d *Database) watching(ctx context.Context, p Permit) (_ Permit, err error) {
	if p.destroys() {
		p.targets, err = d.protectedTargets(ctx)
	}
	return p, err
}

// end is the end of a transaction of a run or a job. Constraint triggers that are deferred fire behind the receipts,
// as they would at the commit. A target may have been protected since the transaction began.
func (tx *changing) end(ctx context.Context, p Permit) error {
	batch := &pgx.Batch{}
	if !p.DryRun {
		tx.queueReceipts(batch, p.Source)
	}
	if p.targets.check != "" {
		batch.Queue(p.targets.check)
	} else if p.DryRun {
		batch.Queue(constraintsSQL)
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

// renewTargets looks for the tables at the start of a run, if they are not known. A server that is used for loose
// foreign keys alone always does: protections may have become possible.
func (d *Database) renewTargets(ctx context.Context) (err error) {
	known := d.targets.Load()
	if d.Name == "main" && (d.LooseForeignKeysOnly || known == nil || known.incomplete) {
		_, err = d.readTargets(ctx)
	}
	return err
}

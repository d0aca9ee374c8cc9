package pg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/reasons"
)

// Protection is a post-condition. No transaction of a run or a job commits in main if a protected
// user or group is missing that existed at its beginning. The cause of its deletion does not
// matter. A statement deletes more rows than it names. Foreign keys cascade over any number of
// tables and columns. Inheritance, triggers and rules delete any rows.

// missingTargetsSQL: the protection p is in force, and its user or group does not exist.
const missingTargetsSQL = `CASE WHEN NOT ` + ActiveSQL + ` THEN false
  WHEN p.kind = 'user' THEN {users} ELSE {namespaces} END`

// anyActiveSQL comes first, so that users and namespaces are not locked where nothing is protected:
// PL/pgSQL plans only what it executes.
const anyActiveSQL = `EXISTS (SELECT FROM maintenance.protected_targets p WHERE ` + ActiveSQL + `)`

const recordTargetsSQL = `DO $caretaker$
BEGIN
  IF ` + anyActiveSQL + ` THEN
    PERFORM set_config('caretaker.missing', (
      SELECT coalesce(string_agg(p.kind || ' ' || p.id, ','), '')
      FROM maintenance.protected_targets p WHERE {missing}), true);
  END IF;
END $caretaker$`

// checkTargetsSQL fails with the first protection whose target is missing since the note. Deferred
// constraint triggers fire before it. In a single statement it precedes the receipt, so the holder
// of the receipts' head waits for no transaction.
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

// lostTargetMark precedes the protection, as JSON, in the message of PostgreSQL.
const lostTargetMark = "caretaker protects "

// lostTarget parses the protection from that message, nil if it has none.
func lostTarget(message string) *ProtectedError {
	_, text, found := strings.Cut(message, lostTargetMark)
	end := strings.LastIndex(text, "}") + 1
	e := &ProtectedError{}
	if found && json.Unmarshal([]byte(text[:end]), &e.Protection) == nil {
		return e
	}
	return nil
}

// ProtectedBy adds to an error about a lost target the tables with whose rows it was deleted.
func ProtectedBy(err error, tables ...string) error {
	if e, ok := errors.AsType[*ProtectedError](err); ok && e.By == nil && !slices.Contains(tables, "") {
		e.By = tables
	}
	return err
}

const (
	missingTargetSQL = `NOT EXISTS (SELECT FROM {table} t WHERE t.id = p.id)`
	// noTableSQL fails: see [FailIf].
	noTableSQL = `(CASE WHEN p.id IS NOT NULL THEN '` + dberr.NoTargetTableText + `' END)::int IS NULL`
)

// targetTablesSQL finds the tables, and whether anything can be protected. Temporary tables hide
// the real ones, and do not count.
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

// targetTable is users or namespaces. Protects is the same for both: whether anything can be
// protected.
type targetTable struct {
	Table        string
	Protects     bool
	Schema, Name *string
}

// ProtectedTargets returns the targets of this database. Only main has targets, and only if a
// server with GitLab's workers has migrated it.
func ProtectedTargets(ctx context.Context, d *Database) (fencing.Targets, error) {
	if d.Name != "main" {
		return fencing.Targets{}, nil
	}
	if known := d.targets.Load(); known != nil {
		return *known, nil
	}
	return d.readTargets(ctx)
}

// readTargets finds the tables. It queries missing tables again each time.
func (d *Database) readTargets(ctx context.Context) (known fencing.Targets, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stmt.StatementTimeout, dberr.ErrUnreachable)
	defer cancel()
	ctx, o := BeginRoutine(ctx, d, "find users and namespaces")
	rows, _ := d.pool.Query(ctx, targetTablesSQL)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[targetTable])
	o.End(ctx, err)
	if err != nil {
		return known, Wrap(ctx, d, "find users and namespaces", err)
	}
	conditions := map[string]string{"users": noTableSQL, "namespaces": noTableSQL}
	var protects, missing bool
	for _, t := range found {
		protects, missing = t.Protects, missing || t.Name == nil
		if t.Name != nil {
			conditions[t.Table] = stmt.Fill(missingTargetSQL, "{table}", stmt.Quote(*t.Schema, *t.Name))
		}
	}
	if protects {
		lost := stmt.Fill(missingTargetsSQL, "{users}", conditions["users"], "{namespaces}", conditions["namespaces"])
		known = fencing.Targets{
			Record: stmt.Fill(recordTargetsSQL, "{missing}", lost), Check: stmt.Fill(checkTargetsSQL, "{missing}", lost), Incomplete: missing,
		}
	}
	if d.LooseForeignKeysOnly || protects {
		d.targets.Store(&known)
	}
	return known, nil
}

// Watching returns a permit whose statements check the post-condition.
func Watching(ctx context.Context, d *Database, p fencing.Permit) (_ fencing.Permit, err error) {
	if destroys(p) {
		p.Targets, err = ProtectedTargets(ctx, d)
	}
	return p, err
}

// end ends a transaction of a run or a job. Deferred constraint triggers fire after the receipts,
// as they would at the commit. A target may have been protected since the transaction began.
func (tx *Changing) end(ctx context.Context, p fencing.Permit) error {
	batch := &pgx.Batch{}
	if !p.DryRun {
		tx.queueReceipts(batch, p.Source)
	}
	if p.Targets.Check != "" {
		batch.Queue(p.Targets.Check)
	} else if p.DryRun {
		batch.Queue(constraintsSQL)
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// Touches records that the transaction changes rows of a table, or that triggers do so instead.
func (tx *Changing) Touches(table string) {
	if !slices.Contains(tx.changed, table) {
		tx.changed = append(tx.changed, table)
	}
}

// RenewTargets finds the tables at the start of a run, if they are unknown. A server for loose
// foreign keys alone always queries them: protections may have become possible.
func RenewTargets(ctx context.Context, d *Database) (err error) {
	known := d.targets.Load()
	if d.Name == "main" && (d.LooseForeignKeysOnly || known == nil || known.Incomplete) {
		_, err = d.readTargets(ctx)
	}
	return err
}

// ProtectedError means that a transaction was rolled back, or a deletion refused, because it would
// also have deleted a protected user or group.
type ProtectedError struct {
	Protection
	// By are the tables whose rows were deleted or updated, if the database itself deleted the
	// protected row with them.
	By []string
}

// Error names the protection and the fix.
func (e *ProtectedError) Error() string {
	by := ""
	if len(e.By) > 0 {
		by = " (would be deleted with rows of " + strings.Join(e.By, ", ") + ")"
	}
	return fmt.Sprintf("%s: %s%s; to end the protection, run `caretaker unprotect %s %d`",
		reasons.Protected, e.String(), by, e.Kind, e.ID)
}

// Public marks the text as fit for clients.
func (e *ProtectedError) Public() {}

// TypedReason returns PROTECTED.
func (e *ProtectedError) TypedReason() string { return reasons.Protected }

// Protection keeps a user or group from being deleted through caretaker: see
// maintenance.protected_targets.
type Protection struct {
	// Kind is [control.KindUser] or [control.KindGroup].
	Kind       string
	ID         int64
	Reason, By string
	Since      time.Time
	// Until is zero for a protection without an end.
	Until time.Time
	// Path are the references through which deleting the protected rows also deletes the target.
	Path []string `db:"-"`
}

// target names the protected user or group: "user 7".
func (p *Protection) target() string { return fmt.Sprintf("%s %d", p.Kind, p.ID) }

// String names the target, the author and the reason of the protection.
func (p *Protection) String() string {
	way := ""
	if len(p.Path) > 0 {
		way = " (would be deleted through " + strings.Join(p.Path, ", ") + ")"
	}
	return fmt.Sprintf("%s is protected by %s: %s%s", p.target(), p.By, p.Reason, way)
}

// ActiveSQL is true if the protection p has not expired.
const ActiveSQL = `(p.until IS NULL OR p.until > clock_timestamp())`

// ClassInteger is the class of smallint, integer and bigint.
const ClassInteger = "integer"

// KeyClassSQL is the class of a key's column a: 'integer', 'uuid', 'text' (also varchar) or
// 'character'. A domain has the class of its base type. It is empty for a type that cannot be in a
// key, such as texts whose collation makes different texts equal. Types without a collation come
// before the collation check. A class needs a text form that is the same exactly for equal values:
// [lfk.Key] compares it.
const KeyClassSQL = `coalesce((
  SELECT CASE
    WHEN t.oid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype) THEN '` + ClassInteger + `'
    WHEN t.oid = 'uuid'::regtype THEN 'uuid'
    WHEN NOT EXISTS (
      SELECT FROM pg_collation l WHERE l.oid = a.attcollation AND l.collisdeterministic) THEN ''
    WHEN t.oid IN ('text'::regtype, 'varchar'::regtype) THEN 'text'
    WHEN t.oid = 'bpchar'::regtype THEN 'character' END
  FROM ` + BaseTypeSQL + ` t (oid)), '')`

// BaseTypeSQL is the type of the column a, as t. For a domain it is the base type.
const BaseTypeSQL = `(
  WITH RECURSIVE base (oid) AS (
    SELECT a.atttypid
    UNION ALL
    SELECT t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
  )
  SELECT t.oid FROM base b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype <> 'd')`

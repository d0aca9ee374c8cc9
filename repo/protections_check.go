package repo

import (
	"context"
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

const anyInForceSQL = `
SELECT EXISTS (SELECT FROM maintenance.protected_targets p WHERE ` + inForceSQL + `)`

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

// checkProtected is the end of a transaction that has changed rows. A target may have been protected
// since the transaction began. Constraint triggers that are deferred fire first, behind the receipts,
// as they would at the commit.
func (tx *changing) checkProtected(ctx context.Context) (err error) {
	if tx.targetsSQL == "" || len(tx.changed) == 0 {
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

// changeProtected is [Database.change] for a statement on a table from which a chain leads to protected
// rows: it is a transaction of its own with the post-condition.
func (d *Database) changeProtected(
	ctx context.Context, p Permit, q query, r receipt, into ...any,
) error {
	p.Transaction = p.Statement + p.Lock + netTime
	ctx, into = withAffected(ctx, into)
	return d.transaction(ctx, q.operation, p, func(ctx context.Context, tx *changing) error {
		var held bool
		change := p.fill(q.statement)
		err := tx.QueryRow(ctx, change.sql, change.args...).Scan(append([]any{&held}, into...)...)
		if err == nil && !held {
			err = p.refused(ctx, tx)
		}
		if err != nil {
			return err
		}
		tx.touches(r.table)
		receipt := r.write(p.Source, nil)
		_, err = tx.Exec(ctx, receipt.sql, receipt.args...)
		return err
	})
}

// protectedPathsSQL are the tables from which a chain leads to users or namespaces: for a deletion
// (event d) or an update (u) of their rows. The chain begins at the two tables and what inherits from
// them, and at triggers and rules, which may do anything. It follows foreign keys from the child to the
// parent whose deletion or update changes the child, and inheritance upwards. Our own triggers and
// those that record deletions change neither table.
const protectedPathsSQL = `
WITH RECURSIVE target (oid) AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = current_schema() AND c.relname IN ('users', 'namespaces') AND c.relkind IN ('r', 'p')
  UNION
  SELECT i.inhrelid FROM target t JOIN pg_inherits i ON i.inhparent = t.oid
), leads (oid, event) AS (
  SELECT oid, 'd' FROM target
  UNION
  SELECT t.tgrelid, e.event FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
  CROSS JOIN (VALUES ('d', 8), ('u', 16)) AS e (event, bit)
  WHERE ` + userTriggerSQL + ` AND t.tgenabled IN ('O', 'A') AND t.tgtype & e.bit > 0
    AND NOT starts_with(p.proname, '` + TriggerFunctions + `')
    AND p.pronamespace <> (SELECT oid FROM pg_namespace WHERE nspname = 'maintenance')
  UNION
  SELECT r.ev_class, CASE r.ev_type WHEN '4' THEN 'd' ELSE 'u' END FROM pg_rewrite r
  WHERE r.ev_type IN ('2', '4')
  UNION
  SELECT up.oid, up.event FROM leads l CROSS JOIN LATERAL (
    SELECT k.confrelid, 'd' FROM pg_constraint k
    WHERE k.contype = 'f' AND k.conrelid = l.oid
      AND (l.event = 'd' AND k.confdeltype = 'c' OR l.event = 'u' AND k.confdeltype IN ('n', 'd'))
    UNION ALL
    SELECT k.confrelid, 'u' FROM pg_constraint k
    WHERE k.contype = 'f' AND k.conrelid = l.oid AND l.event = 'u' AND k.confupdtype IN ('c', 'n', 'd')
    UNION ALL
    SELECT i.inhparent, l.event FROM pg_inherits i WHERE i.inhrelid = l.oid
  ) AS up (oid, event)
)
SELECT n.nspname, c.relname, l.event FROM leads l
JOIN pg_class c ON c.oid = l.oid JOIN pg_namespace n ON n.oid = c.relnamespace`

// protectedPath is a row of protectedPathsSQL.
type protectedPath struct {
	Table
	event string
}

// paths are the tables from which a change may delete protected rows, for deletions and updates.
type paths map[protectedPath]bool

// leads reports whether deleting rows of a table, or else updating them, may delete protected rows.
func (p paths) leads(t Table, deletes bool) bool {
	if deletes {
		return p[protectedPath{t, "d"}]
	}
	return p[protectedPath{t, "u"}]
}

// protectedPaths reads the paths. Only main has protections.
func (d *Database) protectedPaths(ctx context.Context) (paths, error) {
	if d.LooseForeignKeysOnly {
		d.targets.Store(nil)
	}
	if sql, err := d.missingTargets(ctx); err != nil || sql == "" {
		return nil, err
	}
	all := paths{}
	found, err := collect(ctx, d, newQuery("find paths to protected rows", protectedPathsSQL),
		func(row pgx.CollectableRow) (p protectedPath, err error) {
			err = row.Scan(&p.Schema, &p.Name, &p.event)
			return p, err
		})
	for _, p := range found {
		all[p] = true
	}
	return all, err
}

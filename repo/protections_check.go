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

// changeProtected is [Database.change] for a statement on a table from which a chain leads to protected
// rows.
func (d *Database) changeProtected(
	ctx context.Context, p Permit, q query, r receipt, into ...any,
) error {
	q.receipt = new(r.write(p.Source, nil))
	return d.writeProtected(ctx, p, q, r.table, into...)
}

// writeProtected is [Database.write] as a transaction of its own with the post-condition.
func (d *Database) writeProtected(
	ctx context.Context, p Permit, q query, table string, into ...any,
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
		tx.touches(table)
		if err == nil && q.check != nil {
			_, err = tx.Exec(ctx, q.check.sql, q.check.args...)
			err = livingError(err)
		}
		if err != nil || q.receipt == nil {
			return err
		}
		_, err = tx.Exec(ctx, q.receipt.sql, q.receipt.args...)
		return err
	})
}

// bookkeeping are the application's tables in which runs keep account of their work.
func bookkeeping() []string {
	return append(QueueTables(), "ghost_user_migrations", "users_ghost_user_migrations")
}

// accountLeads returns a table of the bookkeeping from which a chain leads to protected rows, as far as
// is known; "": from none.
func (d *Database) accountLeads() string {
	if table := d.account.Load(); table != nil {
		return *table
	}
	return ""
}

// protectedPathsSQL are the tables from which a chain leads to users or namespaces, with the events of
// their rows that it begins with, as the bits of pg_trigger.tgtype: 4 for INSERT, 8 for DELETE, 16 for
// UPDATE, of any column or of the one named. The chain begins at
//   - the two tables and what inherits from them, where an update of the id loses a row, too
//   - triggers, except those that record deletions, and rules: they may do anything
//
// It follows foreign keys from the child to the parent whose deletion or update changes the child, and
// inheritance upwards. An update of a partition key moves rows: it deletes and inserts rows of partitions.
//
// A way has three bytes: what happens to the parent's row that a DELETE, an UPDATE or an INSERT of the
// child's stands for. The ways are aggregated by child, else the planner expects so many rows that it
// sorts all of them in each round. An id that is generated, and the expression of a partition key, change
// with any column.
const protectedPathsSQL = `
WITH RECURSIVE target (oid) AS (
  SELECT c.oid FROM pg_class c
  WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
    AND c.relname IN ('users', 'namespaces') AND c.relkind IN ('r', 'p')
  UNION
  SELECT i.inhrelid FROM target t JOIN pg_inherits i ON i.inhparent = t.oid
), keys (oid, n, col, moves) AS MATERIALIZED (
  SELECT t.oid, a.attnum, a.col, false
  FROM target t CROSS JOIN LATERAL (
    SELECT attnum, CASE attgenerated WHEN '' THEN attname::text ELSE '' END AS col
    FROM pg_attribute WHERE attrelid = t.oid AND attname = 'id' OFFSET 0) a
  UNION ALL
  SELECT partrelid, n, coalesce((
    SELECT attname::text FROM pg_attribute WHERE attrelid = partrelid AND attnum = n AND n > 0), ''), true
  FROM (SELECT partrelid, unnest(partattrs::int2[]) AS n FROM pg_partitioned_table) p
), leads (oid, events, col) AS (
  SELECT oid, bit_or(events), col FROM (
    SELECT oid, 8 AS events, '' AS col FROM target
    UNION ALL
    SELECT oid, 16, col FROM keys WHERE NOT moves
    UNION ALL
    SELECT t.tgrelid, t.tgtype & 28, '' FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE ` + userTriggerSQL + ` AND t.tgenabled <> 'D' AND NOT ` + recordsSQL + `
    UNION ALL
    SELECT ev_class, CASE ev_type WHEN '4' THEN 8 WHEN '2' THEN 16 ELSE 4 END, ''
    FROM pg_rewrite WHERE ev_type IN ('2', '3', '4')
  ) first GROUP BY oid, col
  UNION
  SELECT w.parent, w.events, coalesce(w.parent_col, w.own)
  FROM (
    SELECT way.parent, way.parent_col, l.col AS own, way.col,
      ((l.events >> 3 & 1) * way.way | (l.events >> 4 & 1) * (way.way >> 8) | (l.events >> 2 & 1) * (way.way >> 16)) & 28 AS events
    FROM leads l JOIN (
      SELECT oid, array_agg(parent) AS parents, array_agg(way) AS ways, array_agg(col) AS cols,
        array_agg(parent_col) AS parent_cols
      FROM (
        SELECT k.conrelid AS oid, k.confrelid AS parent,
          CASE WHEN k.confdeltype = 'c' THEN 8 WHEN k.confdeltype IN ('n', 'd') THEN 8 << 8 ELSE 0 END
            + CASE WHEN k.confupdtype IN ('c', 'n', 'd') THEN 16 << 8 ELSE 0 END AS way,
          coalesce(keys.col, '') AS col, '' AS parent_col
        FROM pg_constraint k LEFT JOIN keys ON keys.oid = k.conrelid AND keys.n = ANY (k.conkey)
        WHERE k.contype = 'f' AND (k.confdeltype NOT IN ('a', 'r') OR k.confupdtype NOT IN ('a', 'r'))
        UNION ALL
        SELECT inhrelid, inhparent, 8 + (16 << 8) + (4 << 16), NULL, NULL FROM pg_inherits
        UNION ALL
        SELECT i.inhrelid, i.inhparent, 16 + (16 << 16), NULL, keys.col
        FROM pg_inherits i JOIN keys ON keys.oid = i.inhparent AND keys.moves
      ) known GROUP BY oid
    ) up ON up.oid = l.oid
    CROSS JOIN LATERAL unnest(up.parents, up.ways, up.cols, up.parent_cols) AS way (parent, way, col, parent_col)
  ) w
  WHERE w.events > 0 AND (w.own = '' OR coalesce(w.col, w.own) = w.own)
)
SELECT n.nspname, c.relname, l.events, l.col FROM leads l
JOIN pg_class c ON c.oid = l.oid JOIN pg_namespace n ON n.oid = c.relnamespace`

// protectedPath is a row of protectedPathsSQL.
type protectedPath struct {
	Table
	column string
}

// paths are the tables from which a change may delete protected rows, with its events.
type paths map[protectedPath]int

// leads reports whether an update of these columns of a table may delete protected rows; without
// columns, whether deleting its rows may.
func (p paths) leads(t Table, updated []string) bool {
	if len(updated) == 0 {
		return p[protectedPath{t, ""}]&8 > 0
	}
	return p[protectedPath{t, ""}]&16 > 0 || slices.ContainsFunc(updated, func(column string) bool {
		return p[protectedPath{t, column}]&16 > 0
	})
}

// protectedPaths reads the paths. Only main has protections. If a path begins at the bookkeeping, each
// write of a run or a job has the post-condition from then on.
func (d *Database) protectedPaths(ctx context.Context) (paths, error) {
	if d.LooseForeignKeysOnly {
		d.targets.Store(nil)
	}
	account := ""
	if sql, err := d.missingTargets(ctx); err != nil || sql == "" {
		d.account.Store(&account)
		return nil, err
	}
	all := paths{}
	// readRows switches jit off: to compile this query takes seconds.
	_, err := readRows(ctx, d, Limits{Statement: statementTimeout, ReadOnly: true},
		newQuery("find paths to protected rows", protectedPathsSQL),
		func(row pgx.CollectableRow) (p protectedPath, err error) {
			var events int
			err = row.Scan(&p.Schema, &p.Name, &events, &p.column)
			all[p] |= events
			return p, err
		})
	if err != nil {
		return nil, err
	}
	for p := range all {
		if slices.Contains(bookkeeping(), p.Name) {
			account = max(account, p.Name)
		}
	}
	d.account.Store(&account)
	return all, nil
}

package gitlab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/rowset"
)

// Creating a ghost user for an organization without one.

// lockGhostSQL lets one transaction at a time create a ghost for an organization.
const lockGhostSQL = `
SELECT pg_advisory_xact_lock(
  hashtextextended('caretaker/ghost_user/' || coalesce($1::bigint::text, ''), 0))`

const findGhostSQL = `
SELECT id FROM users g WHERE g.user_type = 5 AND {same} ORDER BY g.id LIMIT 1`

// userColumnsSQL reads the columns of users: whether they need a value, whether they are times
// without a zone, their types. An enum for the state counts as a text if it has the state of a
// ghost.
const userColumnsSQL = `
SELECT a.attname,
  a.attnotnull AND NOT (a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> ''),
  a.atttypid = 'timestamp'::regtype, format_type(t.oid, -1),
  CASE WHEN a.attname = 'state' AND ` + catalog.HoldsSQL + ` THEN 'S' ELSE t.typcategory::text END
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = 'users'::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

// insertGhostSQL uses the first name that is free, regardless of case. It tries one name after the
// other with the indexes. OFFSET 0 keeps the planner from reading all of users to try them at once.
const insertGhostSQL = `
WITH RECURSIVE tried (n) AS (
  SELECT 0
  UNION ALL
  SELECT n + 1 FROM tried
  WHERE {taken}
)
INSERT INTO users ({columns})
SELECT {values}
FROM (SELECT 'ghost' || coalesce(nullif(max(n), 0)::text, '') AS username FROM tried) free
RETURNING id`

// ghostValue is SQL for a value of a ghost, and the category of types that it fits
// (pg_type.typcategory).
type ghostValue struct{ sql, category string }

// ghostValues are the known values of a ghost, by columns of users.
func ghostValues() map[string]ghostValue {
	return map[string]ghostValue{
		"user_type":       {"5", "N"},
		"organization_id": {"$1::bigint", "N"},
		"projects_limit":  {"0", "N"},
		"name":            {"'Ghost User'", "S"},
		"username":        {"free.username", "S"},
		"email":           {"free.username || '@noreply.invalid'", "S"},
		"state":           {"'active'", "S"},
		"admin":           {"false", "B"},
		"created_at":      {"{now}", "D"},
		"updated_at":      {"{now}", "D"},
	}
}

// UnknownColumnError is a column of users that requires a value for a ghost. caretaker has none or,
// with a Type, none of that type.
type UnknownColumnError struct{ Column, Type string }

// Error explains what to do.
func (e *UnknownColumnError) Error() string {
	why := "is NOT NULL without a default, and caretaker has no value for it"
	if e.Type != "" {
		why = "has type " + e.Type + ", for which caretaker has no value"
	}
	const text = "cannot create a ghost user, because column users.%s %s: create a user with user_type 5 manually"
	return fmt.Sprintf(text, e.Column, why)
}

// Public marks the text as fit for clients.
func (e *UnknownColumnError) Public() {}

// nameTaken returns SQL that reports whether a user has the username of number n, or its address.
// It compares as GitLab's indexes on both columns do. anyCase compares addresses without regard to
// case, as another kind of index may require.
func nameTaken(columns []string, anyCase bool) string {
	const exists = `EXISTS (SELECT FROM users u
    WHERE %s = 'ghost' || coalesce(nullif(n, 0)::text, '') || '%s' OFFSET 0)`
	email := "u.email"
	if anyCase {
		email = "lower(u.email)"
	}
	conditions := []string{"false"}
	if slices.Contains(columns, stmt.Quote("username")) {
		conditions = append(conditions, fmt.Sprintf(exists, "lower(u.username)", ""))
	}
	if slices.Contains(columns, stmt.Quote("email")) {
		conditions = append(conditions, fmt.Sprintf(exists, email, "@noreply.invalid"))
	}
	return strings.Join(conditions, " OR ")
}

// ghostTries is how often a ghost is searched and created. The application does not use our lock:
// it may create a ghost, or use the name, at the same moment.
const ghostTries = 3

// CreateGhost returns the id of the organization's ghost user, and creates one if there is still
// none. An error may be [*UnknownColumnError], or a [*rowset.KeptError].
func (d Ghosts) CreateGhost(
	ctx context.Context, p fencing.Permit, q GhostQueue, organization *int64,
) (id int64, err error) {
	for try := 1; ; try++ {
		err = pg.Transaction(ctx, d.db, "create a ghost user", p, func(ctx context.Context, tx *pg.Changing) error {
			id, err = createGhost(ctx, tx, q, organization, try > 1)
			return err
		})
		const uniqueViolation = "23505"
		refused, ok := errors.AsType[*dberr.Error](err)
		if !ok || refused.SQLState != uniqueViolation || try == ghostTries {
			return id, err
		}
	}
}

// CheckGhost checks, without writing, whether the columns of users allow creating a ghost. The
// error may be [*UnknownColumnError].
func (d Ghosts) CheckGhost(ctx context.Context, l fencing.Limits) error {
	l.ReadOnly = true
	check := func(ctx context.Context, tx *pg.Changing) error {
		_, _, err := ghostColumns(ctx, tx)
		return err
	}
	return pg.Transaction(ctx, d.db, "check the columns of users", fencing.Permit{Limits: l}, check)
}

func createGhost(
	ctx context.Context, tx pgx.Tx, q GhostQueue, organization *int64, anyCase bool,
) (id int64, err error) {
	if _, err := tx.Exec(ctx, lockGhostSQL, organization); err != nil {
		return 0, err
	}
	same, args := "true", []any(nil)
	if q.organization {
		same, args = "g.organization_id IS NOT DISTINCT FROM $1::bigint", []any{organization}
	}
	err = tx.QueryRow(ctx, stmt.Fill(findGhostSQL, "{same}", same), args...).Scan(&id)
	if !errors.Is(err, pgx.ErrNoRows) {
		return id, err
	}
	columns, values, err := ghostColumns(ctx, tx)
	if err != nil {
		return 0, err
	}
	sql := stmt.Fill(insertGhostSQL, "{columns}", strings.Join(columns, ", "),
		"{values}", strings.Join(values, ", "), "{taken}", nameTaken(columns, anyCase))
	err = tx.QueryRow(ctx, sql, args...).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = &rowset.KeptError{Rows: "users", Intended: rowset.ToAdd}
	}
	return id, pg.About("users", err)
}

// ghostColumns returns the columns of users with values for a ghost, and these values as SQL. If a
// ghost requires an unknown value, the error is an [*UnknownColumnError].
func ghostColumns(ctx context.Context, tx pgx.Tx) (columns, values []string, err error) {
	sql := stmt.Fill(userColumnsSQL, "{value}", "'active'")
	rows, _ := tx.Query(ctx, sql) //nolint:rowserrcheck // ForEachRow returns the errors
	known := ghostValues()
	var column, typeName, category string
	var required, zoneless bool
	into := []any{&column, &required, &zoneless, &typeName, &category}
	_, err = pgx.ForEachRow(rows, into, func() error {
		now := "now()"
		if zoneless {
			now = catalog.UtcNow
		}
		switch value, ok := known[column]; {
		case ok && value.category != category:
			return &UnknownColumnError{column, typeName}
		case ok:
			columns = append(columns, stmt.Quote(column))
			values = append(values, stmt.Fill(value.sql, "{now}", now))
		case required:
			return &UnknownColumnError{Column: column}
		}
		return nil
	})
	return columns, values, err
}

package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A ghost user for an organization that has none (ghost_user_migration.md section 5).

// lockGhostSQL lets one transaction at a time make a ghost for an organization.
const lockGhostSQL = `SELECT pg_advisory_xact_lock(hashtextextended('caretaker/ghost_user/' || coalesce($1::bigint::text, ''), 0))`

const findGhostSQL = `SELECT id FROM users g WHERE g.user_type = 5 AND {same} ORDER BY g.id LIMIT 1`

const userColumnsSQL = `
SELECT a.attname, a.attnotnull AND NOT (a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> ''), a.atttypid = 'timestamp'::regtype
FROM pg_attribute a
WHERE a.attrelid = 'users'::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum`

// insertGhostSQL takes the first name that nobody has, without regard to case. It looks for one name after the other,
// each a look into the indexes: OFFSET 0 keeps the planner from reading all of users to compare them at once.
const insertGhostSQL = `
WITH RECURSIVE tried (n) AS (
  SELECT 0
  UNION ALL
  SELECT n + 1 FROM tried
  WHERE {taken}
)
INSERT INTO users ({columns})
SELECT {values} FROM (SELECT 'ghost' || coalesce(nullif(max(n), 0)::text, '') AS username FROM tried) free
RETURNING id`

// ghostValues are what caretaker knows of a ghost: columns of users, and SQL for their values.
func ghostValues() map[string]string {
	return map[string]string{
		"user_type": "5", "organization_id": "$1::bigint", "name": "'Ghost User'", "username": "free.username",
		"email": "free.username || '@noreply.invalid'", "state": "'active'", "admin": "false", "projects_limit": "0",
		"created_at": "{now}", "updated_at": "{now}",
	}
}

// UnknownColumnError is a column of users that a ghost needs a value for, and caretaker has none.
type UnknownColumnError struct{ Column string }

// Error says what to do.
func (e *UnknownColumnError) Error() string {
	return fmt.Sprintf("no ghost user could be created: users.%s is NOT NULL, has no default, and caretaker does not know it; "+
		"create a user with user_type 5 by hand", e.Column)
}

// taken says that somebody has the name of number n, or its address: the way of the index that a GitLab has on each, or
// anyhow, where an index of another kind has shown that this was not enough.
func taken(columns []string, anyhow bool) string {
	var conditions []string
	for _, key := range []struct {
		column, suffix string
		lower          bool
	}{{"username", "", true}, {"email", "@noreply.invalid", anyhow}} {
		if !slices.Contains(columns, quote(key.column)) {
			continue
		}
		have := "u." + key.column
		if key.lower {
			have = "lower(" + have + ")"
		}
		conditions = append(conditions, fmt.Sprintf("EXISTS (SELECT FROM users u WHERE %s = 'ghost' || coalesce(nullif(n, 0)::text, '') || '%s' OFFSET 0)", have, key.suffix))
	}
	if conditions == nil {
		return "false"
	}
	return strings.Join(conditions, " OR ")
}

// ghostTries is how often a ghost is looked for and made: who else makes one at this moment may not wait for our lock.
const ghostTries = 3

// CreateGhost makes a ghost user for an organization, unless somebody else has done so meanwhile, and returns its id. An
// error may be [*UnknownColumnError], or a [*StubbornError].
func (d *Database) CreateGhost(ctx context.Context, f Fence, q GhostQueue, organization *int64, l Limits) (id int64, err error) {
	for try := 1; ; try++ {
		id, err = d.createGhost(ctx, f, q, organization, try > 1, l)
		if refused, is := errors.AsType[*Error](err); !is || refused.SQLState != "23505" || try == ghostTries {
			return id, err
		}
	}
}

func (d *Database) createGhost(ctx context.Context, f Fence, q GhostQueue, organization *int64, again bool, l Limits) (id int64, err error) {
	var unknown string
	err = d.fencedTx(ctx, "create a ghost user", f, l, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockGhostSQL, organization); err != nil {
			return err
		}
		same, args := "true", []any(nil)
		if q.organization {
			same, args = "g.organization_id IS NOT DISTINCT FROM $1::bigint", []any{organization}
		}
		err := tx.QueryRow(ctx, fill(findGhostSQL, "{same}", same), args...).Scan(&id)
		if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		var columns, values []string
		if columns, values, unknown, err = ghostColumns(ctx, tx); err != nil || unknown != "" {
			return err
		}
		err = tx.QueryRow(ctx, fill(insertGhostSQL, "{columns}", strings.Join(columns, ", "), "{values}", strings.Join(values, ", "),
			"{taken}", taken(columns, again)), args...).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			err = &StubbornError{Table: "users", Missing: true}
		}
		return err
	})
	if err == nil && unknown != "" {
		err = &UnknownColumnError{unknown}
	}
	return id, err
}

// ProbeGhost says whether a ghost could be created, as far as the columns of users tell: the error may be
// [*UnknownColumnError].
func (d *Database) ProbeGhost(ctx context.Context, l Limits) error {
	var unknown string
	err := d.limitedTx(ctx, "look at the columns of users", l, statementTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		_, _, unknown, err = ghostColumns(ctx, tx)
		return err
	})
	if err == nil && unknown != "" {
		err = &UnknownColumnError{unknown}
	}
	return err
}

// ghostColumns are the columns of users that a ghost gets values for, with these; unknown is the first that it needs and
// we do not know.
func ghostColumns(ctx context.Context, tx pgx.Tx) (columns, values []string, unknown string, err error) {
	rows, err := tx.Query(ctx, userColumnsSQL) //nolint:rowserrcheck // ForEachRow returns it
	if err != nil {
		return nil, nil, "", err
	}
	known := ghostValues()
	var column string
	var required, zoneless bool
	_, err = pgx.ForEachRow(rows, []any{&column, &required, &zoneless}, func() error {
		now := "now()"
		if zoneless {
			now = utcNow
		}
		if value, is := known[column]; is {
			columns, values = append(columns, quote(column)), append(values, fill(value, "{now}", now))
		} else if required && unknown == "" {
			unknown = column
		}
		return nil
	})
	return columns, values, unknown, err
}

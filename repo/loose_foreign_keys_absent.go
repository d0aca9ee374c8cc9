package repo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// AbsentChild is a child table that is in no configured database and whose definitions are skipped,
// because somebody has accepted that: a row of maintenance.absent_children, in main.
type AbsentChild struct {
	Child      string    `json:"child"`
	AcceptedAt time.Time `json:"accepted_at"`
	AcceptedBy string    `json:"accepted_by"`
}

const absentChildrenSQL = `
SELECT child, accepted_at, accepted_by FROM maintenance.absent_children ORDER BY child`

// AbsentChildren reads the accepted absent children by name.
func (d *Database) AbsentChildren(ctx context.Context) ([]AbsentChild, error) {
	return collect(ctx, d, newQuery("list accepted absent children", absentChildrenSQL),
		pgx.RowToStructByPos[AbsentChild])
}

// notTablesSQL finds what bears the name of a child and is no table.
const notTablesSQL = `
SELECT w.written, CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' ELSE 'foreign table' END
FROM ` + NamedSQL + `
WHERE c.relkind IN ('v', 'm', 'f')`

// NotTables returns the children that are a view, a materialized view or a foreign table here, with what
// to do about them. A run finds no table of that name: it holds the records.
func (d *Database) NotTables(ctx context.Context, children []string) (map[string]string, error) {
	schemas, names := splitNames(children)
	find := newQuery("find children that are no tables", notTablesSQL, children, schemas, names)
	found, err := collect(ctx, d, find, pgx.RowToStructByPos[struct{ Child, Kind string }])
	others := map[string]string{}
	for _, r := range found {
		others[r.Child] = fmt.Sprintf("%s is a %s on %s: name the table below it in the definition",
			r.Child, r.Kind, d.Name)
	}
	return others, err
}

const acceptAbsentSQL = `
INSERT INTO maintenance.absent_children (child, accepted_by)
SELECT child, $2 FROM unnest($1::text[]) AS c (child)
ON CONFLICT (child) DO NOTHING`

// AcceptAbsent accepts children as absent. One that is accepted already keeps its time and name.
func (d *Database) AcceptAbsent(ctx context.Context, children []string, by string) error {
	_, err := d.exec(ctx, "accept absent children", acceptAbsentSQL, children, by)
	return err
}

const endAbsenceSQL = `DELETE FROM maintenance.absent_children WHERE child = ANY ($1::text[])`

// EndAbsence ends the acceptance of children: they have been found, or somebody has revoked it.
func (d *Database) EndAbsence(ctx context.Context, children []string) error {
	_, err := d.exec(ctx, "end the acceptance of absent children", endAbsenceSQL, children)
	return err
}

// SeenChildren are the child tables that a configured database had when it last answered a run, and those
// that it had before and that nobody has accepted as absent: a row of maintenance.seen_children, in main.
type SeenChildren struct {
	Database string
	// Children that it had, of those that the run Asked for.
	Children, Asked []string
	// Fresh: that was less than an hour ago.
	Fresh bool
}

// MayHave reports whether the database may have a child table: it had the table, or was not asked
// for it. Nil means that the database never answered.
func (s *SeenChildren) MayHave(child string) bool {
	return s == nil || slices.Contains(s.Children, child) || !slices.Contains(s.Asked, child)
}

const seenChildrenSQL = `
SELECT database, children, asked, seen_at > clock_timestamp() - interval '1 hour'
FROM maintenance.seen_children`

// SeenChildren reads what all databases had, by their names.
func (d *Database) SeenChildren(ctx context.Context) (map[string]*SeenChildren, error) {
	all, err := collect(ctx, d, newQuery("list seen children", seenChildrenSQL),
		pgx.RowToAddrOfStructByPos[SeenChildren])
	seen := make(map[string]*SeenChildren, len(all))
	for _, s := range all {
		seen[s.Database] = s
	}
	return seen, err
}

const saveSeenChildrenSQL = `
INSERT INTO maintenance.seen_children (database, children, asked)
VALUES ($1, $2, $3)
ON CONFLICT (database) DO UPDATE
SET children = EXCLUDED.children, asked = EXCLUDED.asked, seen_at = EXCLUDED.seen_at`

// SaveSeenChildren remembers what a database has.
func (d *Database) SaveSeenChildren(ctx context.Context, s SeenChildren) error {
	_, err := d.exec(ctx, "save seen children", saveSeenChildrenSQL, s.Database, s.Children, s.Asked)
	return err
}

const leftoversSQL = `
SELECT w.written FROM ` + NamedSQL + ` WHERE c.relkind IN ('r', 'p') AND ` + ProtectedSQL

// Leftovers returns those of the children that a split of the database has left behind here, write-protected.
func (d *Database) Leftovers(ctx context.Context, children []string) ([]string, error) {
	schemas, names := splitNames(children)
	find := newQuery("find write-protected child tables", leftoversSQL, children, schemas, names)
	return collect(ctx, d, find, pgx.RowTo[string])
}

const forgetChildSQL = `
UPDATE maintenance.seen_children SET children = array_remove(children, $1::text)
WHERE database = ANY ($2::text[])`

// ForgetChild forgets that databases had a child table.
func (d *Database) ForgetChild(ctx context.Context, child string, databases []string) error {
	_, err := d.exec(ctx, "forget a seen child", forgetChildSQL, child, databases)
	return err
}

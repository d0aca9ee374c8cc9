package lfk

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// AbsentPlace names a child table and the database that does not have it.
type AbsentPlace struct {
	Child string `json:"child"`
	// Database no longer has the table, but others do. "" means that no configured database has it.
	Database string `json:"database"`
}

// String returns the name of the table, with the database.
func (p AbsentPlace) String() string {
	if p.Database == "" {
		return p.Child
	}
	return p.Child + " on " + p.Database
}

// AbsentChild is an accepted absent child table, whose definitions are skipped there: a row of
// maintenance.absent_children in main or, with a database, of maintenance.gone_children.
type AbsentChild struct {
	AbsentPlace
	AcceptedAt time.Time `json:"accepted_at"`
	AcceptedBy string    `json:"accepted_by"`
}

const absentChildrenSQL = `
SELECT child, '' AS database, accepted_at, accepted_by FROM maintenance.absent_children
UNION ALL SELECT child, database, accepted_at, accepted_by FROM maintenance.gone_children
ORDER BY child, database`

// AbsentChildren reads the accepted absent children by name.
func (d Children) AbsentChildren(ctx context.Context) ([]AbsentChild, error) {
	return pg.Collect(ctx, d.db, pg.NewQuery("list absent child tables", absentChildrenSQL),
		pgx.RowToStructByPos[AbsentChild])
}

// notTablesSQL finds relations that have the name of a child but are not tables.
const notTablesSQL = `
SELECT w.written, CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' ELSE 'foreign table' END
FROM ` + catalog.NamedSQL + `
WHERE c.relkind IN ('v', 'm', 'f')`

// NotTables returns the names that belong to a view, a materialized view or a foreign table in some
// databases, with the fix for each. A run finds no child of that name: it holds the records.
func NotTables(ctx context.Context, all []*pg.Database, written []string) (map[string]string, error) {
	others := map[string]string{}
	schemas, names := catalog.SplitNames(written)
	for _, d := range all {
		if len(written) == 0 {
			break
		}
		find := pg.NewQuery("find views and foreign tables", notTablesSQL, written, schemas, names)
		found, err := pg.Collect(ctx, d, find, pgx.RowToStructByPos[struct{ Name, Kind string }])
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			others[r.Name] = fmt.Sprintf("%s is a %s in database %s: use its underlying table in the definition",
				r.Name, r.Kind, d.Name)
		}
	}
	return others, nil
}

const acceptAbsentSQL = `
WITH p AS (SELECT child, database FROM unnest($1::text[], $2::text[]) AS p (child, database)),
gone AS (
  INSERT INTO maintenance.gone_children (child, database, accepted_by)
  SELECT child, database, $3 FROM p WHERE database <> '' ON CONFLICT DO NOTHING
)
INSERT INTO maintenance.absent_children (child, accepted_by)
SELECT child, $3 FROM p WHERE database = '' ON CONFLICT DO NOTHING`

// AcceptAbsent accepts children as absent. An accepted child keeps its time and name.
func (d Children) AcceptAbsent(ctx context.Context, places []AbsentPlace, by string) error {
	children, databases := splitPlaces(places)
	_, err := pg.Exec(ctx, d.db, "accept absent child tables", acceptAbsentSQL, children, databases, by)
	return err
}

const endAbsenceSQL = `
WITH p AS (SELECT child, database FROM unnest($1::text[], $2::text[]) AS p (child, database)),
gone AS (
  DELETE FROM maintenance.gone_children g USING p WHERE g.child = p.child AND g.database = p.database
)
DELETE FROM maintenance.absent_children a USING p WHERE a.child = p.child AND p.database = ''`

// EndAbsence ends the acceptance of children: a run has found them, or the operator has revoked it.
func (d Children) EndAbsence(ctx context.Context, places []AbsentPlace) error {
	children, databases := splitPlaces(places)
	_, err := pg.Exec(ctx, d.db, "end the acceptance of absent child tables", endAbsenceSQL, children, databases)
	return err
}

func splitPlaces(places []AbsentPlace) (children, databases []string) {
	for _, p := range places {
		children, databases = append(children, p.Child), append(databases, p.Database)
	}
	return children, databases
}

// SeenChildren is a row of maintenance.seen_children in main: the child tables that a configured
// database had when it last answered a run. It includes tables that the database had before, unless
// the operator has accepted them as absent.
type SeenChildren struct {
	Database string
	// Children that the database had, some unknown to a run with other definitions.
	Children []string
	// Asked lists the children that the last run checked.
	Asked []string
	// Fresh means that the last answer is less than an hour old.
	Fresh bool
}

// MayHave reports whether the database may have a child table: it had the table, or was not asked
// for it. A nil receiver means that the database never answered.
func (s *SeenChildren) MayHave(child string) bool {
	return s == nil || slices.Contains(s.Children, child) || !slices.Contains(s.Asked, child)
}

const seenChildrenSQL = `
SELECT s.database, ARRAY(
    SELECT c FROM unnest(s.children) AS c
    WHERE NOT EXISTS (SELECT FROM maintenance.absent_children a WHERE a.child = c)
      AND NOT EXISTS (SELECT FROM maintenance.gone_children g WHERE g.child = c AND g.database = s.database)),
  s.asked, s.seen_at > clock_timestamp() - interval '1 hour'
FROM maintenance.seen_children s`

// SeenChildren reads the children that each database had, by the database's name.
func (d Children) SeenChildren(ctx context.Context) (map[string]*SeenChildren, error) {
	all, err := pg.Collect(ctx, d.db, pg.NewQuery("list known child tables", seenChildrenSQL),
		pgx.RowToAddrOfStructByPos[SeenChildren])
	seen := make(map[string]*SeenChildren, len(all))
	for _, s := range all {
		seen[s.Database] = s
	}
	return seen, err
}

// saveSeenChildrenSQL keeps unchecked children: a server with other definitions needs them. Without
// a definition they have no effect. Nor has a child accepted as gone, until a revocation.
const saveSeenChildrenSQL = `
INSERT INTO maintenance.seen_children AS s (database, children, asked)
VALUES ($1, $2, $3)
ON CONFLICT (database) DO UPDATE
SET children = EXCLUDED.children || ARRAY(
    SELECT c FROM unnest(s.children) AS c
    WHERE NOT c = ANY (EXCLUDED.asked) OR NOT c = ANY (EXCLUDED.children) AND EXISTS (
      SELECT FROM maintenance.gone_children g WHERE g.child = c AND g.database = s.database)),
  asked = EXCLUDED.asked, seen_at = EXCLUDED.seen_at`

// SaveSeenChildren records the children that a database has.
func (d Children) SaveSeenChildren(ctx context.Context, s SeenChildren) error {
	_, err := pg.Exec(ctx, d.db, "save known child tables", saveSeenChildrenSQL, s.Database, s.Children, s.Asked)
	return err
}

const leftoversSQL = `
SELECT w.written FROM ` + catalog.NamedSQL + ` WHERE c.relkind IN ('r', 'p') AND ` + catalog.ProtectedSQL

// Leftovers returns the children that a split of the database has left here, write-protected.
func (d Children) Leftovers(ctx context.Context, children []string) ([]string, error) {
	schemas, names := catalog.SplitNames(children)
	find := pg.NewQuery("find write-protected child tables", leftoversSQL, children, schemas, names)
	return pg.Collect(ctx, d.db, find, pgx.RowTo[string])
}

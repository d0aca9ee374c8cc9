package repo

import (
	"context"
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

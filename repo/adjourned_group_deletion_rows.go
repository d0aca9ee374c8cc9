package repo

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// The last transactions of a project and of a group: the rows themselves.

// Removed is what the removal of a group has removed.
type Removed struct {
	// GroupID is the group whose removal it is; 0: none, nothing is recorded.
	GroupID int64
	// Groups, Projects, Rows of any table, and jobs queued for Bots.
	Groups, Projects, Rows, Bots int64
}

// ProjectToRemove is a project with its namespace, 0 if it has none. Routed: there are routes.
type ProjectToRemove struct {
	ID, NamespaceID int64
	Routed          bool
}

const projectToRemoveSQL = `
SELECT p.id, coalesce((SELECT n.id FROM namespaces n WHERE n.id = {namespace} AND n.type = 'Project'), 0), {routed} FROM projects p WHERE p.id = $1::bigint`

// ProjectTables are what [Catalog.ProjectToRemove] looks at besides the id of a project.
func ProjectTables() map[string][]string {
	return tablesOf(referencesOf("projects", "project_namespace_id", "routes", "source_id source_type"))
}

// ProjectToRemove looks for a project, or returns [ErrNotFound].
func (c *Catalog) ProjectToRemove(
	ctx context.Context, id int64, l Limits,
) (p ProjectToRemove, err error) {
	namespace, routed := "NULL::bigint", "false"
	if c.Table("projects").Has("project_namespace_id") {
		namespace = "p.project_namespace_id"
	}
	if c.Table("routes").Has("source_id", "source_type") {
		routed = "true"
	}
	sql := fill(projectToRemoveSQL, "{namespace}", namespace, "{routed}", routed)
	rows, err := readRows(ctx, c.Database, l, newQuery("look for the project", sql, id), pgx.RowToStructByPos[ProjectToRemove])
	if err == nil && len(rows) == 0 {
		return p, ErrNotFound
	}
	if err != nil {
		return p, err
	}
	return rows[0], nil
}

const (
	deleteProjectRouteSQL = `DELETE FROM routes WHERE source_type = 'Project' AND source_id = $1::bigint`

	deleteProjectSQL = `DELETE FROM projects WHERE id = $1::bigint`

	// deleteProjectNamespaceSQL finds nothing where a trigger on projects has been quicker.
	deleteProjectNamespaceSQL = `DELETE FROM namespaces WHERE id = $1::bigint AND type = 'Project'`

	deleteGroupRouteSQL = `DELETE FROM routes WHERE source_type = 'Namespace' AND source_id = $1::bigint`

	deleteGroupDetailsSQL = `DELETE FROM namespace_details WHERE namespace_id = $1::bigint`

	deleteGroupSQL = `DELETE FROM namespaces WHERE id = $1::bigint AND type = 'Group'`
)

// RemoveProject deletes a project's row, its route and its namespace, and records what has been
// removed, in one transaction.
func (d *Database) RemoveProject(
	ctx context.Context, p Permit, project ProjectToRemove, removed Removed,
) error {
	return d.transaction(ctx, "remove project", p, func(ctx context.Context, tx pgx.Tx) error {
		rows := []rowDeletion{
			{"projects", deleteProjectSQL, project.ID},
			{"namespaces", deleteProjectNamespaceSQL, project.NamespaceID},
		}
		route := ""
		if project.Routed {
			rows = append([]rowDeletion{{"routes", deleteProjectRouteSQL, project.ID}}, rows...)
			route = projectRouteStaysSQL
		}
		n, err := deleteRows(ctx, tx, rows...)
		if err == nil {
			stays := fill(projectStaysSQL, "{route}", route)
			err = refuseKept(ctx, tx, stays, project.ID, project.NamespaceID)
		}
		if err != nil {
			return err
		}
		all := removed
		all.Rows += n
		_, err = saveRemoved(ctx, tx, all)
		return err
	})
}

// RemoveGroup deletes a group's row with its marks, details and route, and records what has been
// removed, in one transaction. With the row of the group whose removal it is goes the record; the
// sums are returned.
func (d *Database) RemoveGroup(
	ctx context.Context, p Permit, s GroupStores, id int64, removed Removed,
) (total Removed, err error) {
	err = d.transaction(ctx, "remove group", p, func(ctx context.Context, tx pgx.Tx) error {
		var rows []rowDeletion
		schedule, details := "", ""
		if s.schedules {
			rows = append(rows, rowDeletion{"group_deletion_schedules", unscheduleSQL, id})
			schedule = scheduleStaysSQL
		}
		if s.details {
			rows = append(rows, rowDeletion{"namespace_details", deleteGroupDetailsSQL, id})
			details = detailsStaySQL
		}
		rows = append(rows, rowDeletion{"routes", deleteGroupRouteSQL, id},
			rowDeletion{"namespaces", deleteGroupSQL, id})
		n, err := deleteRows(ctx, tx, rows...)
		if err == nil {
			// With the marks gone nobody would look at a group that stays.
			err = refuseKept(ctx, tx, fill(groupStaysSQL, "{schedule}", schedule, "{details}", details), id)
		}
		if err != nil {
			return err
		}
		all := removed
		all.Rows += n
		if id != all.GroupID {
			if _, err := saveRemoved(ctx, tx, all); err != nil {
				return err
			}
			return forgetRemoval(ctx, tx, id)
		}
		total, err = endRemoval(ctx, tx, all)
		return err
	})
	return total, err
}

// The tables that still have a row that was deleted.
const (
	groupStaysSQL = `
SELECT 'namespaces' WHERE EXISTS (SELECT FROM namespaces WHERE id = $1::bigint AND type = 'Group')
UNION ALL
SELECT 'routes' WHERE EXISTS (SELECT FROM routes WHERE source_type = 'Namespace' AND source_id = $1::bigint){schedule}{details}
LIMIT 1`

	scheduleStaysSQL = `
UNION ALL
SELECT 'group_deletion_schedules' WHERE EXISTS (SELECT FROM group_deletion_schedules WHERE group_id = $1::bigint)`

	detailsStaySQL = `
UNION ALL
SELECT 'namespace_details' WHERE EXISTS (SELECT FROM namespace_details WHERE namespace_id = $1::bigint)`

	projectStaysSQL = `
SELECT 'projects' WHERE EXISTS (SELECT FROM projects WHERE id = $1::bigint)
UNION ALL
SELECT 'namespaces' WHERE EXISTS (SELECT FROM namespaces WHERE id = $2::bigint AND type = 'Project'){route}
LIMIT 1`

	projectRouteStaysSQL = `
UNION ALL
SELECT 'routes' WHERE EXISTS (SELECT FROM routes WHERE source_type = 'Project' AND source_id = $1::bigint)`
)

// rowDeletion is a statement that deletes what has an id from a table.
type rowDeletion struct {
	table, sql string
	id         int64
}

func deleteRows(ctx context.Context, tx pgx.Tx, deletions ...rowDeletion) (rows int64, err error) {
	for _, d := range deletions {
		tag, err := tx.Exec(ctx, d.sql, d.id)
		if err != nil {
			return rows, about(d.table, err)
		}
		rows += tag.RowsAffected()
	}
	return rows, nil
}

const saveRemovedSQL = `
UPDATE maintenance.group_removals
SET removed_groups = removed_groups + $2, removed_projects = removed_projects + $3, removed_rows = removed_rows + $4, queued_bots = queued_bots + $5
WHERE group_id = $1
RETURNING removed_groups, removed_projects, removed_rows, queued_bots`

// saveRemoved returns the sums, zero where there is no record.
func saveRemoved(ctx context.Context, tx pgx.Tx, r Removed) (total Removed, err error) {
	if r.GroupID == 0 {
		return total, nil
	}
	total.GroupID = r.GroupID
	err = tx.QueryRow(ctx, saveRemovedSQL, r.GroupID, r.Groups, r.Projects, r.Rows, r.Bots).
		Scan(&total.Groups, &total.Projects, &total.Rows, &total.Bots)
	if errors.Is(err, pgx.ErrNoRows) {
		return Removed{}, nil
	}
	return total, err
}

// SaveRemoved records what an attempt has removed since the last row of a project or group, and
// returns the sums of all attempts, zero where there is no record.
func (d *Database) SaveRemoved(
	ctx context.Context, p Permit, r Removed,
) (total Removed, err error) {
	err = d.transaction(ctx, "record what has been removed", p, func(ctx context.Context, tx pgx.Tx) error {
		total, err = saveRemoved(ctx, tx, r)
		return err
	})
	return total, err
}

// GroupRemoval is a removal that has begun, and what it has removed so far.
type GroupRemoval struct {
	Removed
	BegunAt time.Time
}

const groupRemovalsSQL = `
SELECT group_id, removed_groups, removed_projects, removed_rows, queued_bots, begun_at
FROM maintenance.group_removals ORDER BY begun_at, group_id LIMIT $1`

// GroupRemovals reads up to limit of the removals that have begun, the oldest first.
func (d *Database) GroupRemovals(ctx context.Context, limit int, l Limits) ([]GroupRemoval, error) {
	return readRows(ctx, d, l, newQuery("read the removals that have begun", groupRemovalsSQL, limit), func(row pgx.CollectableRow) (r GroupRemoval, err error) {
		err = row.Scan(&r.GroupID, &r.Groups, &r.Projects, &r.Rows, &r.Bots, &r.BegunAt)
		return r, err
	})
}

const endRemovalSQL = `
DELETE FROM maintenance.group_removals WHERE group_id = $1
RETURNING removed_groups + $2::bigint, removed_projects + $3::bigint, removed_rows + $4::bigint, queued_bots + $5::bigint`

func endRemoval(ctx context.Context, tx pgx.Tx, r Removed) (total Removed, err error) {
	total.GroupID = r.GroupID
	err = tx.QueryRow(ctx, endRemovalSQL, r.GroupID, r.Groups, r.Projects, r.Rows, r.Bots).Scan(&total.Groups, &total.Projects, &total.Rows, &total.Bots)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, nil
	}
	return total, err
}

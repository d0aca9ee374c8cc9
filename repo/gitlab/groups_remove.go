package gitlab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/rowset"
)

// The removal of a group's tree outside bounded removals: the contents of the tree, members, and
// the last transactions of projects and groups.

// groupChildrenSQL reads the next children of all parents by id. The comparison of rows keeps it on
// the index of parents.
const groupChildrenSQL = `
SELECT child.id FROM unnest($1::bigint[]) AS parent (id)
CROSS JOIN LATERAL (
  SELECT n.id FROM namespaces n
  WHERE (n.parent_id, n.id) > (parent.id, $2::bigint) AND n.parent_id <= parent.id
    AND n.type = 'Group'
  ORDER BY n.parent_id, n.id LIMIT $3) child
ORDER BY child.id LIMIT $3`

const (
	// childrenPage is the number of groups that are read at a time, parentsPage the number of parents.
	childrenPage = 1000
	parentsPage  = 100
)

// GroupTree reads the group and all groups below it in an order of removal: the deepest first, then
// by id. It takes 8 bytes of memory per group. It calls checkStop before every statement. An error
// of checkStop ends the work at once.
func (d Groups) GroupTree(
	ctx context.Context, root int64, l fencing.Limits, checkStop func() error,
) ([]int64, error) {
	levels := [][]int64{{root}}
	// Each pass reads one level. An empty level ends the walk.
	for len(levels[len(levels)-1]) > 0 {
		var below []int64
		for parents := range slices.Chunk(levels[len(levels)-1], parentsPage) {
			children, err := groupChildren(ctx, d.db, parents, l, checkStop)
			if err != nil {
				return nil, err
			}
			below = append(below, children...)
		}
		slices.Sort(below)
		if _, again := slices.BinarySearch(below, root); again {
			return nil, &GroupCycleError{root}
		}
		levels = append(levels, below)
	}
	slices.Reverse(levels)
	return slices.Concat(levels...), nil
}

// groupChildren reads the groups directly below some parents, [childrenPage] at a time. It calls
// checkStop before each page.
func groupChildren(
	ctx context.Context, d *pg.Database, parents []int64, l fencing.Limits, checkStop func() error,
) (children []int64, err error) {
	for after := int64(0); ; after = children[len(children)-1] {
		if err := checkStop(); err != nil {
			return nil, err
		}
		read := pg.NewQuery("read subgroups", groupChildrenSQL, parents, after, childrenPage)
		page, err := pg.ReadRows(ctx, d, l, read, pgx.RowTo[int64])
		children = append(children, page...)
		if err != nil || len(page) < childrenPage {
			return children, err
		}
	}
}

// groupProjectsSQL reads a page of the ids of projects directly in a namespace.
const groupProjectsSQL = `
SELECT id FROM projects WHERE namespace_id = $1::bigint AND id > $2::bigint ORDER BY id LIMIT $3`

// projectsPage is the number of project ids that are read at a time.
const projectsPage = 100

// GroupProjects reads the next ids, after the id after, of the projects in a namespace.
func (d Groups) GroupProjects(
	ctx context.Context, namespace, after int64, l fencing.Limits,
) ([]int64, error) {
	read := pg.NewQuery("read the group's projects", groupProjectsSQL, namespace, after, projectsPage)
	return pg.ReadRows(ctx, d.db, l, read, pgx.RowTo[int64])
}

// Memberships are the members rows of a group or project, or the rows that only have its namespace.
type Memberships struct {
	// SourceType is Namespace or Project, SourceID its id. With SourceType "" the id is in
	// member_namespace_id.
	SourceType string
	SourceID   int64
}

const (
	// sourceMembersSQL and namespaceMembersSQL select the rows of Memberships. Both use $1 and $2,
	// so that their callers pass the same arguments.
	sourceMembersSQL    = `m.source_type = $1 AND m.source_id = $2::bigint`
	namespaceMembersSQL = `$1 = '' AND m.member_namespace_id = $2::bigint`
)

// removeMembersSQL removes a page of members, and returns the project bots among them.
const removeMembersSQL = `
WITH picked AS MATERIALIZED (
  SELECT m.id FROM members m WHERE {which} LIMIT $3
),
changed AS (
  DELETE FROM members m USING picked WHERE m.id = picked.id AND {which}
  RETURNING m.id AS key, m.user_id
)
SELECT ARRAY(SELECT id FROM picked), (SELECT count(*) FROM changed),
  ARRAY(SELECT u.id FROM users u
    WHERE u.user_type = 6 AND u.id IN (SELECT user_id FROM changed) ORDER BY u.id), {summary}`

// memberBotsSQL reports whether there are project bots among them.
const memberBotsSQL = `
SELECT EXISTS (
  SELECT FROM members m JOIN users u ON u.id = m.user_id WHERE {which} AND u.user_type = 6)`

// HasBots reports whether [Groups.RemoveMembers] would queue the removal of project bots.
func (d Groups) HasBots(ctx context.Context, which Memberships, l fencing.Limits) (has bool, err error) {
	condition := sourceMembersSQL
	if which.SourceType == "" {
		condition = namespaceMembersSQL
	}
	q := pg.NewQuery("find project bots", stmt.Fill(memberBotsSQL, "{which}", condition),
		which.SourceType, which.SourceID)
	err = pg.ReadRow(ctx, d.db, l, q, &has)
	return has, err
}

// membersStaySQL checks again for members that were picked and not removed: another process may
// have removed them.
const membersStaySQL = `
SELECT 'members' FROM members m WHERE {which} AND m.id = ANY ($3::bigint[]) LIMIT 1`

// membersPage is the maximum number of members, and of jobs, in one transaction.
const membersPage = 500

// RemovedMembers is the result of a page of removed members.
type RemovedMembers struct {
	// Rows is the number of removed rows, Bots the number of jobs queued for project bots among them.
	Rows, Bots int64
	// More members may remain.
	More bool
}

// RemoveMembers removes a page of members and queues the removal of the project bots among them, in
// one transaction. job returns the job for a bot.
func (d Groups) RemoveMembers(
	ctx context.Context, p fencing.Permit, which Memberships, queue jobqueue.Queue, job func(bot int64) jobqueue.Job,
) (r RemovedMembers, err error) {
	condition := sourceMembersSQL
	if which.SourceType == "" {
		condition = namespaceMembersSQL
	}
	err = pg.Transaction(ctx, d.db, "remove members", p, func(ctx context.Context, tx *pg.Changing) error {
		var picked, bots []int64
		var summary []*string
		remove := pg.Summary(d.db, stmt.Fill(removeMembersSQL, "{which}", condition, "{summary}", pg.SummarySQL), "id", "true")
		err := tx.QueryRow(ctx, remove, which.SourceType, which.SourceID, membersPage).
			Scan(&picked, &r.Rows, &bots, &summary)
		tx.Record("members", pg.ReceiptDeleted, summary)
		// If none of the picked members was deleted, check whether a trigger keeps them.
		if err == nil && len(picked) > 0 && r.Rows == 0 {
			stay := stmt.Fill(membersStaySQL, "{which}", condition)
			err = rowset.RefuseKept(ctx, tx, stay, which.SourceType, which.SourceID, picked)
		}
		if r.More = len(picked) > 0; err != nil || len(bots) == 0 {
			return err
		}
		jobs := make([]jobqueue.Job, len(bots))
		for i, bot := range bots {
			jobs[i] = job(bot)
		}
		n, err := queue.InsertJobs(ctx, tx, jobs)
		r.Bots = int64(n)
		return err
	})
	return r, rowset.ExplainKept(ctx, d.db, err, catalog.Table{Name: "members"}, rowset.KeptError{Rows: "members", Intended: rowset.ToDelete})
}

// ProjectToRemove is a project with its namespace, 0 if it has none. Routed: routes exist.
type ProjectToRemove struct {
	ID, NamespaceID int64
	Routed          bool
}

// projectToRemoveSQL returns no row if the project does not exist.
const projectToRemoveSQL = `
SELECT p.id,
  coalesce((SELECT n.id FROM namespaces n WHERE n.id = {namespace} AND n.type = 'Project'), 0),
  {routed}
FROM projects p WHERE p.id = $1::bigint`

// ProjectTables are the tables that [Groups.FindProject] reads besides the id of a project.
func ProjectTables() map[string][]string {
	return catalog.TablesOf(catalog.ReferencesOf(
		"projects", "project_namespace_id", "routes", "source_id source_type"))
}

// FindProject reads a project of a catalogue, or returns [dberr.ErrNotFound].
func (Groups) FindProject(
	ctx context.Context, c *catalog.Catalog, id int64, l fencing.Limits,
) (p ProjectToRemove, err error) {
	namespace, routed := "NULL::bigint", "false"
	if c.Table("projects").Has("project_namespace_id") {
		namespace = "p.project_namespace_id"
	}
	if c.Table("routes").Has("source_id", "source_type") {
		routed = "true"
	}
	sql := stmt.Fill(projectToRemoveSQL, "{namespace}", namespace, "{routed}", routed)
	read := pg.NewQuery("find the project", sql, id)
	rows, err := pg.ReadRows(ctx, c.Database, l, read, pgx.RowToStructByPos[ProjectToRemove])
	if err == nil && len(rows) == 0 {
		return p, dberr.ErrNotFound
	}
	if err != nil {
		return p, err
	}
	return rows[0], nil
}

const (
	// deleteProjectRouteSQL and the statements below each delete the row of one project or group.
	deleteProjectRouteSQL = `DELETE FROM routes
WHERE source_type = 'Project' AND source_id = $1::bigint`

	deleteProjectSQL = `DELETE FROM projects WHERE id = $1::bigint`

	// deleteProjectNamespaceSQL finds nothing if a trigger on projects has already deleted it.
	deleteProjectNamespaceSQL = `DELETE FROM namespaces WHERE id = $1::bigint AND type = 'Project'`

	deleteGroupRouteSQL = `DELETE FROM routes
WHERE source_type = 'Namespace' AND source_id = $1::bigint`

	deleteGroupDetailsSQL = `DELETE FROM namespace_details WHERE namespace_id = $1::bigint`

	deleteGroupSQL = `DELETE FROM namespaces WHERE id = $1::bigint AND type = 'Group'`
)

// RemoveProject deletes a project's row, its route and its namespace, and records the removal, in
// one transaction.
func (d Groups) RemoveProject(
	ctx context.Context, p fencing.Permit, project ProjectToRemove, removed Removed,
) error {
	rows := []rowDeletion{
		{"projects", "id", deleteProjectSQL, project.ID},
		{"namespaces", "id", deleteProjectNamespaceSQL, project.NamespaceID},
	}
	if project.Routed {
		rows = slices.Insert(rows, 0, rowDeletion{"routes", "id", deleteProjectRouteSQL, project.ID})
	}
	return pg.Transaction(ctx, d.db, "remove project", p, func(ctx context.Context, tx *pg.Changing) error {
		n, err := deleteRows(ctx, tx, rows)
		if err != nil {
			return err
		}
		all := removed
		all.Rows += n
		_, err = saveRemoved(ctx, tx, all)
		return err
	})
}

// ErrNamespaceBelow means that a namespace below a group was created since the tree was read.
var ErrNamespaceBelow = errors.New("namespaces.parent_id still refers to the group")

// namespaceBelowSQL reports whether any namespace still has the group as its parent.
const namespaceBelowSQL = `SELECT EXISTS (SELECT FROM namespaces WHERE parent_id = $1::bigint)`

// RemoveGroup deletes a group's row with its marks, details and route, and records the removal, in
// one transaction. A namespace below the group keeps it: by the foreign key, or else by
// [ErrNamespaceBelow]. If it is the group of the removal, its record is deleted, and total counts
// what all attempts have removed. Without a record total counts this attempt.
func (d Groups) RemoveGroup(
	ctx context.Context, p fencing.Permit, s GroupStores, id int64, removed Removed,
) (total Removed, err error) {
	// The stores of marks are optional tables.
	var rows []rowDeletion
	if s.schedules {
		rows = append(rows, rowDeletion{"group_deletion_schedules", "group_id", unscheduleSQL, id})
	}
	if s.details {
		rows = append(rows, rowDeletion{"namespace_details", "namespace_id", deleteGroupDetailsSQL, id})
	}
	rows = append(rows, rowDeletion{"routes", "id", deleteGroupRouteSQL, id},
		rowDeletion{"namespaces", "id", deleteGroupSQL, id})
	err = pg.Transaction(ctx, d.db, "remove group", p, func(ctx context.Context, tx *pg.Changing) error {
		n, err := deleteRows(ctx, tx, rows)
		if err != nil {
			return err
		}
		// The check follows the deletion: a namespace below rolls it back.
		var below bool
		if err := tx.QueryRow(ctx, namespaceBelowSQL, id).Scan(&below); err != nil {
			return err
		}
		if below {
			return ErrNamespaceBelow
		}
		all := removed
		all.Rows += n
		if total, err = saveRemoved(ctx, tx, all); err != nil {
			return err
		}
		if total == (Removed{}) {
			total = all
		}
		return forgetRemoval(ctx, tx, id)
	})
	return total, err
}

// rowDeletion is a DELETE statement for the rows with an id in a table. key is the table's.
type rowDeletion struct {
	table, key, sql string
	id              int64
}

// deleteRows returns the number of deleted rows. If a trigger has kept a row, the error is a
// [*rowset.KeptError]: without its marks, no run would find a kept group.
func deleteRows(ctx context.Context, tx *pg.Changing, deletions []rowDeletion) (rows int64, err error) {
	var stays []string
	var ids []any
	for i, d := range deletions {
		n, err := tx.Change(ctx, pg.RowChange{Table: d.table, Action: pg.ReceiptDeleted, SQL: d.sql, Key: d.key, Args: []any{d.id}})
		if err != nil {
			return rows, pg.About(d.table, err)
		}
		rows += n
		// A row that the statement would still find was kept.
		find := strings.Replace(strings.TrimPrefix(d.sql, "DELETE"), "$1", "$"+strconv.Itoa(i+1), 1)
		stays = append(stays, fmt.Sprintf("SELECT '%s' WHERE EXISTS (SELECT%s)", d.table, find))
		ids = append(ids, d.id)
	}
	return rows, rowset.RefuseKept(ctx, tx, strings.Join(stays, " UNION ALL ")+" LIMIT 1", ids...)
}

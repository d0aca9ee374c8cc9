package repo

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// The steps of a group's removal that are no bounded removal.

// groupChildrenSQL reads the next children of all parents by id. The comparison of rows keeps it on
// the index of parents.
const groupChildrenSQL = `
SELECT child.id FROM unnest($1::bigint[]) AS parent (id)
CROSS JOIN LATERAL (
  SELECT n.id FROM namespaces n
  WHERE (n.parent_id, n.id) > (parent.id, $2::bigint) AND n.parent_id <= parent.id AND n.type = 'Group'
  ORDER BY n.parent_id, n.id LIMIT $3) child
ORDER BY child.id LIMIT $3`

const (
	// childrenPage is how many groups are read at a time, parentsPage of how many parents.
	childrenPage = 1000
	parentsPage  = 100
)

// GroupTree reads the groups of the tree below a group and the group itself in the order in which
// they can be removed: the deepest first, then by id. It takes 8 bytes of memory a group.
func (d *Database) GroupTree(ctx context.Context, root int64, l Limits) ([]int64, error) {
	levels := [][]int64{{root}}
	for len(levels[len(levels)-1]) > 0 {
		var below []int64
		for parents := range slices.Chunk(levels[len(levels)-1], parentsPage) {
			children, err := d.groupChildren(ctx, parents, l)
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

func (d *Database) groupChildren(
	ctx context.Context, parents []int64, l Limits,
) (children []int64, err error) {
	for after := int64(0); ; after = children[len(children)-1] {
		page, err := readRows(ctx, d, l, newQuery("read the groups below", groupChildrenSQL, parents, after, childrenPage), pgx.RowTo[int64])
		children = append(children, page...)
		if err != nil || len(page) < childrenPage {
			return children, err
		}
	}
}

const groupProjectsSQL = `SELECT id FROM projects WHERE namespace_id = $1::bigint AND id > $2::bigint ORDER BY id LIMIT $3`

// projectsPage is how many ids of projects are read at a time.
const projectsPage = 100

// GroupProjects reads the next ids, behind after, of the projects in a namespace.
func (d *Database) GroupProjects(
	ctx context.Context, namespace, after int64, l Limits,
) ([]int64, error) {
	return readRows(ctx, d, l, newQuery("read the group's projects", groupProjectsSQL, namespace, after, projectsPage), pgx.RowTo[int64])
}

// Memberships are the members rows of a group or project, or those that only say that they are in
// its namespace.
type Memberships struct {
	// SourceType is Namespace or Project, SourceID its id; with SourceType "" the id is in
	// member_namespace_id.
	SourceType string
	SourceID   int64
}

const (
	sourceMembersSQL    = `m.source_type = $1 AND m.source_id = $2::bigint`
	namespaceMembersSQL = `$1 = '' AND m.member_namespace_id = $2::bigint`
)

// removeMembersSQL removes a page of members, and returns the project bots among them.
const removeMembersSQL = `
WITH picked AS MATERIALIZED (
  SELECT m.id FROM members m WHERE {which} LIMIT $3
),
removed AS (
  DELETE FROM members m USING picked WHERE m.id = picked.id AND {which} RETURNING m.user_id
)
SELECT ARRAY(SELECT id FROM picked), (SELECT count(*) FROM removed),
  ARRAY(SELECT u.id FROM users u WHERE u.user_type = 6 AND u.id IN (SELECT user_id FROM removed) ORDER BY u.id)`

// membersStaySQL looks again for members that were picked and not removed: they may have been
// somebody else's to remove.
const membersStaySQL = `SELECT 'members' FROM members m WHERE {which} AND m.id = ANY ($3::bigint[]) LIMIT 1`

// membersPage is how many members, and at most as many jobs, one transaction takes.
const membersPage = 500

// RemovedMembers is what a page of removed members came to.
type RemovedMembers struct {
	// Rows removed, and jobs queued for the project bots among them.
	Rows, Bots int64
	// More may be left.
	More bool
}

// RemoveMembers removes a page of members and queues the removal of the project bots among them, in
// one transaction. job gives the job for a bot.
func (d *Database) RemoveMembers(
	ctx context.Context, p Permit, which Memberships, queue JobQueue, job func(bot int64) Job,
) (r RemovedMembers, err error) {
	condition := sourceMembersSQL
	if which.SourceType == "" {
		condition = namespaceMembersSQL
	}
	err = d.transaction(ctx, "remove members", p, func(ctx context.Context, tx pgx.Tx) error {
		var picked, bots []int64
		err := tx.QueryRow(ctx, fill(removeMembersSQL, "{which}", condition), which.SourceType, which.SourceID, membersPage).Scan(&picked, &r.Rows, &bots)
		if err == nil && len(picked) > 0 && r.Rows == 0 {
			err = refuseKept(ctx, tx, fill(membersStaySQL, "{which}", condition), which.SourceType, which.SourceID, picked)
		}
		if r.More = len(picked) > 0; err != nil || len(bots) == 0 {
			return err
		}
		jobs := make([]Job, len(bots))
		for i, bot := range bots {
			jobs[i] = job(bot)
		}
		n, err := queue.InsertJobs(ctx, tx, jobs)
		r.Bots = int64(n)
		return err
	})
	return r, d.ruled(ctx, err, Table{Name: "members"}, KeptError{Rows: "members", Wanted: toDelete})
}

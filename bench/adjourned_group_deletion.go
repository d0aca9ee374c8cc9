package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/service"
)

// pageOfGroups is how many groups are decided about at a time, and all that are due in (i).
const pageOfGroups = 100

// shape of the groups of (i): how many groups are above each, and how many members each of them has. As many have the
// groups that are invited, one to each.
type shape struct {
	template, name string
	depth, members int
}

func (l *lab) shapes() []shape {
	deep := shape{"deep_groups", "20 groups above each, 50 members and a group of 50 invited to each", 20, 50}
	if l.quick {
		deep.depth, deep.members = 3, 4
	}
	return []shape{{"flat_groups", "nothing above, nobody else", 0, 0}, deep}
}

// groupTables are due groups g × 100 below groups g × 100 + 1 and so on, whose uppermost one is the user's.
func groupTables(s shape) []string {
	return append(groundwork(),
		`INSERT INTO users (id, email, username, projects_limit, organization_id, state)
			SELECT i, i || '@example.com', 'user_' || i, 0, 1, 'active' FROM generate_series(100, 200) i`,
		fmt.Sprintf(`INSERT INTO namespaces (id, name, path, type, organization_id, parent_id, created_at, updated_at)
			SELECT 100 * g + n, 'group ' || n, 'group_' || 100 * g + n, 'Group', 1, CASE WHEN n < %[1]d THEN 100 * g + n + 1 END, now(), now()
			FROM generate_series(1, %[2]d) g, generate_series(0, %[1]d) n`, s.depth, pageOfGroups),
		fmt.Sprintf(`INSERT INTO namespaces (id, name, path, type, organization_id, created_at, updated_at)
			SELECT 1000000 + id, 'invited ' || id, 'invited_' || id, 'Group', 1, now(), now() FROM namespaces WHERE id >= 100 AND %d > 0`, s.members),
		`INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, created_at, updated_at)
			SELECT id - 1000000, id, 50, now(), now() FROM namespaces WHERE id > 1000000`,
		fmt.Sprintf(`INSERT INTO members (source_type, source_id, member_namespace_id, type, user_id, access_level)
			SELECT 'Namespace', id, id, 'GroupMember', 100 + m, 30 FROM namespaces, generate_series(1, %d) m WHERE id >= 100`, s.members),
		fmt.Sprintf(`INSERT INTO members (source_type, source_id, member_namespace_id, type, user_id, access_level)
			SELECT 'Namespace', 100 * g + %d, 100 * g + %[1]d, 'GroupMember', %d, 50 FROM generate_series(1, %d) g`, s.depth, leaving, pageOfGroups),
		fmt.Sprintf(`INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
			SELECT 100 * g, %d, current_date - 40 FROM generate_series(1, %d) g`, leaving, pageOfGroups))
}

// compareDecisions is (i): how many statements it takes to decide about a page of groups.
func compareDecisions(ctx context.Context, l *lab) (*report, error) {
	r := &report{header: []string{"groups", "way", "statements that decide", "their time", "statements of the run", "p99"}}
	var decisions []int
	for _, s := range l.shapes() {
		if err := l.buildMain(ctx, s.template, groupTables(s)...); err != nil {
			return nil, err
		}
		decide, err := l.decide(ctx, s, `mark\.ripe|WITH RECURSIVE`)
		if err != nil {
			return nil, err
		}
		whole, err := l.decide(ctx, s, `.`)
		if err != nil {
			return nil, err
		}
		decisions = append(decisions, len(decide))
		r.row(s.name, "caretaker", grouped(int64(len(decide))), milliseconds(sum(decide)), grouped(int64(len(whole))), milliseconds(percentile(whole, 99)))
		statements, took, err := l.groupByGroup(ctx, s)
		if err != nil {
			return nil, err
		}
		r.row(s.name, "group by group", grouped(int64(statements)), milliseconds(took), "", "")
	}
	l.target(r, "statements that decide about a page, whatever is above it and however many members there are,", "the same number",
		fmt.Sprintf("%d and %d", decisions[0], decisions[1]), decisions[0] == decisions[1])
	r.note("%d due groups, a page, each with a job in the end. The statements of the run are all: also those that begin and end "+
		"transactions, and a walk over all groups there are, a page at a time, for marks that were lost. By the server's log; for the other way by the client's clock.", pageOfGroups)
	return r, nil
}

// decide returns how long each statement of a run took whose text matches.
func (l *lab) decide(ctx context.Context, s shape, expression string) (took []time.Duration, err error) {
	d, err := l.fresh(ctx, s.template)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	return d.statementsOf(ctx, expression, func() error {
		worker, err := openService(ctx, d, service.Config{})
		if err != nil {
			return err
		}
		return runWorker(ctx, worker, "adjourned_group_deletion", map[string]int64{"scheduled_jobs": pageOfGroups})
	})
}

// groupByGroup is the reference. For each group and each one above it, it reads the members, the
// members by invitation and the parent.
func (l *lab) groupByGroup(ctx context.Context, s shape) (statements int, took time.Duration, err error) {
	d, err := l.fresh(ctx, s.template)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.settle(ctx); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	rows, err := d.conn.Query(ctx, `SELECT group_id FROM group_deletion_schedules WHERE marked_for_deletion_on <= current_date - 30 ORDER BY group_id`)
	if err != nil {
		return 0, 0, err
	}
	groups, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	statements++
	for _, group := range groups {
		n, allowed, err := d.mayRemove(ctx, group)
		if err != nil {
			return 0, 0, err
		}
		if statements += n; !allowed {
			return 0, 0, fmt.Errorf("nobody may remove group %d, whose user may", group)
		}
	}
	return statements, time.Since(start), err
}

// mayRemove searches for an owner's right from the group upwards.
func (d *database) mayRemove(ctx context.Context, group int64) (statements int, allowed bool, err error) {
	var active, owner, invited bool
	err = d.conn.QueryRow(ctx, `SELECT u.state = 'active' FROM users u JOIN group_deletion_schedules s ON s.user_id = u.id WHERE s.group_id = $1`, group).Scan(&active)
	statements++
	for above := new(group); err == nil && above != nil && !owner && !invited; statements += 3 {
		at := *above
		err = d.conn.QueryRow(ctx, `SELECT coalesce(max(access_level), 0) >= 50 FROM members
			WHERE source_type = 'Namespace' AND source_id = $1 AND user_id = $2 AND requested_at IS NULL`, at, leaving).Scan(&owner)
		if err != nil {
			break
		}
		err = d.conn.QueryRow(ctx, `SELECT coalesce(max(least(l.group_access, m.access_level)), 0) >= 50 FROM group_group_links l
			JOIN members m ON m.source_type = 'Namespace' AND m.source_id = l.shared_with_group_id
			WHERE l.shared_group_id = $1 AND m.user_id = $2 AND m.requested_at IS NULL`, at, leaving).Scan(&invited)
		if err != nil {
			break
		}
		err = d.conn.QueryRow(ctx, `SELECT parent_id FROM namespaces WHERE id = $1`, at).Scan(&above)
	}
	return statements, active && (owner || invited), err
}

func sum(of []time.Duration) (total time.Duration) {
	for _, d := range of {
		total += d
	}
	return total
}

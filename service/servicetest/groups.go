package servicetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
)

// Groups is main with groups, their people and marks. N is 14 days. user 1 is U, an active human.
type Groups struct {
	*Estate
	Service *service.Service
	Log     Buffer
}

// NewGroups makes them, with a service that has a queue and logs into g.Log.
func NewGroups(t *testing.T, change ...func(*service.Config)) *Groups {
	t.Helper()
	return New(t, "main", "main").Groups(change...)
}

// Groups makes them on an estate.
func (e *Estate) Groups(change ...func(*service.Config)) *Groups {
	e.T.Helper()
	g := &Groups{Estate: e}
	g.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	g.Exec("main", `INSERT INTO application_settings (id, deletion_adjourned_period) VALUES (1, 14)`)
	g.User(1)
	g.Serve(change...)
	return g
}

// Serve gives the groups a service that has a queue and logs into g.Log.
func (g *Groups) Serve(change ...func(*service.Config)) {
	g.T.Helper()
	g.Service = g.Estate.Service("", append([]func(*service.Config){g.WithQueue, g.Log.KeepAll}, change...)...)
}

// NewDemoGroups is the demo data, all in one database.
func NewDemoGroups(t *testing.T) *Groups {
	t.Helper()
	g := &Groups{Estate: New(t, "all")}
	g.Add("main", Databases.Clone(t, Demo()))
	g.Serve()
	return g
}

// User makes an active human. change is SQL such as "state = 'blocked'".
func (g *Groups) User(id int, change ...string) {
	g.T.Helper()
	g.Exec("main", `INSERT INTO users (id, name, username, email, projects_limit, organization_id, state, user_type)
		VALUES ($1::bigint, 'u', 'u' || $1::bigint, 'u' || $1::bigint, 0, 1, 'active', 0)`, id)
	for _, c := range change {
		g.Exec("main", fmt.Sprintf(`UPDATE users SET %s WHERE id = %d`, c, id))
	}
}

// Group makes a group below another one (0: none) with its route.
func (g *Groups) Group(id, parent int, path string) {
	g.T.Helper()
	g.Exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, traversal_ids, organization_id, created_at, updated_at)
		SELECT $1::bigint, upper(left($3::text, 1)) || substr($3::text, 2), $3::text, 'Group', nullif($2::bigint, 0), coalesce((SELECT traversal_ids FROM namespaces WHERE id = $2::bigint), '{}') || $1::bigint, 1, now(), now()`, id, parent, path)
	g.route("Namespace", id, id, parent, path)
}

// Project makes a project in a group, with its namespace, route and repository. Its namespace has the id 10000 + id.
func (g *Groups) Project(id, group int, path string) {
	g.T.Helper()
	g.Exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES (10000 + $1::bigint, upper(left($3::text, 1)) || substr($3::text, 2), $3::text, 'Project', $2, 1)`, id, group, path)
	g.Exec("main", `INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id)
		VALUES ($1::bigint, upper(left($3::text, 1)) || substr($3::text, 2), $3::text, $2, 10000 + $1::bigint, 1)`, id, group, path)
	g.Exec("main", `INSERT INTO project_repositories (project_id, disk_path) VALUES ($1::bigint, '@hashed/' || $1::bigint)`, id)
	g.route("Project", id, 10000+id, group, path)
}

func (g *Groups) route(kind string, id, namespace, parent int, path string) {
	g.T.Helper()
	g.Exec("main", `INSERT INTO routes (source_type, source_id, namespace_id, path, name)
		SELECT $1, $2, $3, concat_ws('/', p.path, $5::text), concat_ws(' / ', p.name, upper(left($5::text, 1)) || substr($5::text, 2))
		FROM (SELECT) x LEFT JOIN routes p ON p.source_type = 'Namespace' AND p.source_id = $4`, kind, id, namespace, parent, path)
}

// Member makes a user a direct member of a group. More is SQL such as "requested_at = now()".
func (g *Groups) Member(group, user, level int, more ...string) {
	g.T.Helper()
	id := g.Value("main", `nextval('members_id_seq')`)
	g.Exec("main", `INSERT INTO members (id, source_type, source_id, type, user_id, access_level, member_namespace_id)
		VALUES (`+id+`, 'Namespace', $1::bigint, 'GroupMember', $2, $3, $1::bigint)`, group, user, level)
	for _, m := range more {
		g.Exec("main", `UPDATE members SET `+m+` WHERE id = `+id)
	}
}

// Share invites a group to another one.
func (g *Groups) Share(group, invited, level int, more ...string) {
	g.T.Helper()
	g.Exec("main", `INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, created_at, updated_at)
		VALUES ($1, $2, $3, now(), now())`, group, invited, level)
	for _, m := range more {
		g.Exec("main", fmt.Sprintf(`UPDATE group_group_links SET %s WHERE shared_group_id = %d`, m, group))
	}
}

// Mark marks a group in the legacy store, some days ago.
func (g *Groups) Mark(group, user, days int) {
	g.T.Helper()
	g.Exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
		VALUES ($1::bigint, $2, (now() AT TIME ZONE 'UTC')::date - $3::integer)`, group, user, days)
}

// MarkDetails marks a group in the new store, some days ago, with its JSON.
func (g *Groups) MarkDetails(group, days int, metadata string) {
	g.T.Helper()
	g.Exec("main", `UPDATE namespace_details SET deletion_scheduled_at = now() - $2::integer * interval '1 day', state_metadata = $3::text::jsonb
		WHERE namespace_id = $1`, group, days, metadata)
}

// Owned makes a group on the first level that U owns and has marked some days ago.
func (g *Groups) Owned(id, days int) {
	g.T.Helper()
	g.Group(id, 0, fmt.Sprintf("g%d", id))
	g.Member(id, 1, 50)
	g.Mark(id, 1, days)
}

// Run runs the worker and fails the test unless the run succeeds with these counts.
func (g *Groups) Run(counts string) run.Run {
	g.T.Helper()
	r, err := g.Service.RunBatch(context.Background(), run.Request{Worker: AdjournedGroups})
	if err != nil {
		g.T.Fatal(err)
	}
	WantState(g.T, r, "succeeded")
	WantCounts(g.T, r, counts)
	return r
}

// DryRun is run for a dry run.
func (g *Groups) DryRun(counts string) run.Run {
	g.T.Helper()
	r, err := g.Service.RunBatch(context.Background(), run.Request{Worker: AdjournedGroups, DryRun: true})
	if err != nil {
		g.T.Fatal(err)
	}
	WantState(g.T, r, "succeeded")
	WantCounts(g.T, r, counts)
	return r
}

// WantJobs fails the test unless these removals are in the queue, "group:user@seconds after the last run's start".
func (g *Groups) WantJobs(want ...string) {
	g.T.Helper()
	g.Want("main", `SELECT coalesce(string_agg(format('%s:%s@%s', j.args ->> 'group_id', j.args ->> 'user_id',
			extract(epoch FROM j.scheduled_at - r.started_at)::float8), ' ' ORDER BY (j.args ->> 'group_id')::bigint), '')
		FROM maintenance.river_job j, (SELECT started_at FROM maintenance.runs WHERE worker = 'adjourned_group_deletion' ORDER BY id DESC LIMIT 1) r
		WHERE j.kind = 'destroy_group' AND j.state NOT IN ('completed', 'cancelled', 'discarded')`, strings.Join(want, " "))
}

// WantMarked fails the test unless exactly these groups are marked, in either store.
func (g *Groups) WantMarked(want string) {
	g.T.Helper()
	g.Want("main", `SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM (
		SELECT group_id AS id FROM group_deletion_schedules UNION SELECT namespace_id FROM namespace_details WHERE deletion_scheduled_at IS NOT NULL) m`, want)
}

// WantLog fails the test unless there are so many lines with all these words.
func (g *Groups) WantLog(times int, words ...string) {
	g.T.Helper()
	lines := g.Log.Lines(words[0])
	n := 0
	for _, line := range lines {
		all := true
		for _, w := range words[1:] {
			all = all && strings.Contains(line, w)
		}
		if all {
			n++
		}
	}
	if n != times {
		g.T.Errorf("%d lines with %q, want %d; with the first word: %q", n, words, times, lines)
	}
}

// Killed kills a process of which a statement stands before a gate, and waits until the server has noticed.
func (g *Groups) Killed(p *Process) {
	g.T.Helper()
	g.AtGate("main", "doomed")
	p.Kill()
	g.Lift("main", "doomed")
	g.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
}

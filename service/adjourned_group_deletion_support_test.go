package service_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
)

const groupWorker = "adjourned_group_deletion"

// groupEstate is main with groups, their people and marks. N is 14 days; user 1 is U, an active human.
type groupEstate struct {
	*estate
	service *service.Service
	log     logBook
}

func newGroups(t *testing.T, change ...func(*service.Config)) *groupEstate {
	t.Helper()
	g := &groupEstate{estate: newEstate(t, "main", "main")}
	g.exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	g.exec("main", `INSERT INTO application_settings (deletion_adjourned_period) VALUES (14)`)
	g.user(1)
	g.service = g.estate.service("", append([]func(*service.Config){g.withQueue, func(c *service.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&g.log, nil))
	}}, change...)...)
	return g
}

// user makes an active human; change is SQL such as "state = 'blocked'".
func (g *groupEstate) user(id int, change ...string) {
	g.t.Helper()
	g.exec("main", `INSERT INTO users (id, name, username, email, projects_limit, organization_id, state, user_type)
		VALUES ($1::bigint, 'u', 'u' || $1::bigint, 'u' || $1::bigint, 0, 1, 'active', 0)`, id)
	for _, c := range change {
		g.exec("main", fmt.Sprintf(`UPDATE users SET %s WHERE id = %d`, c, id))
	}
}

// group makes a group below another one (0: none) with its route.
func (g *groupEstate) group(id, parent int, path string) {
	g.t.Helper()
	g.exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, traversal_ids, organization_id, created_at, updated_at)
		SELECT $1::bigint, upper(left($3::text, 1)) || substr($3::text, 2), $3::text, 'Group', nullif($2::bigint, 0), coalesce((SELECT traversal_ids FROM namespaces WHERE id = $2::bigint), '{}') || $1::bigint, 1, now(), now()`, id, parent, path)
	g.route("Namespace", id, id, parent, path)
}

// project makes a project in a group, with its namespace, route and repository. Its namespace has the id 10000 + id.
func (g *groupEstate) project(id, group int, path string) {
	g.t.Helper()
	g.exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES (10000 + $1::bigint, upper(left($3::text, 1)) || substr($3::text, 2), $3::text, 'Project', $2, 1)`, id, group, path)
	g.exec("main", `INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id)
		VALUES ($1::bigint, upper(left($3::text, 1)) || substr($3::text, 2), $3::text, $2, 10000 + $1::bigint, 1)`, id, group, path)
	g.exec("main", `INSERT INTO project_repositories (project_id, disk_path) VALUES ($1::bigint, '@hashed/' || $1::bigint)`, id)
	g.route("Project", id, 10000+id, group, path)
}

func (g *groupEstate) route(kind string, id, namespace, parent int, path string) {
	g.t.Helper()
	g.exec("main", `INSERT INTO routes (source_type, source_id, namespace_id, path, name)
		SELECT $1, $2, $3, concat_ws('/', p.path, $5::text), concat_ws(' / ', p.name, upper(left($5::text, 1)) || substr($5::text, 2))
		FROM (SELECT) x LEFT JOIN routes p ON p.source_type = 'Namespace' AND p.source_id = $4`, kind, id, namespace, parent, path)
}

// member makes a user a direct member of a group; more is SQL such as "requested_at = now()".
func (g *groupEstate) member(group, user, level int, more ...string) {
	g.t.Helper()
	id := g.value("main", `nextval('members_id_seq')`)
	g.exec("main", `INSERT INTO members (id, source_type, source_id, type, user_id, access_level, member_namespace_id)
		VALUES (`+id+`, 'Namespace', $1::bigint, 'GroupMember', $2, $3, $1::bigint)`, group, user, level)
	for _, m := range more {
		g.exec("main", `UPDATE members SET `+m+` WHERE id = `+id)
	}
}

// share invites a group to another one.
func (g *groupEstate) share(group, invited, level int, more ...string) {
	g.t.Helper()
	g.exec("main", `INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, created_at, updated_at)
		VALUES ($1, $2, $3, now(), now())`, group, invited, level)
	for _, m := range more {
		g.exec("main", fmt.Sprintf(`UPDATE group_group_links SET %s WHERE shared_group_id = %d`, m, group))
	}
}

// mark marks a group in the legacy store, some days ago.
func (g *groupEstate) mark(group, user, days int) {
	g.t.Helper()
	g.exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
		VALUES ($1::bigint, $2, (now() AT TIME ZONE 'UTC')::date - $3::integer)`, group, user, days)
}

// markDetails marks a group in the new store, some days ago, with its JSON.
func (g *groupEstate) markDetails(group, days int, metadata string) {
	g.t.Helper()
	g.exec("main", `UPDATE namespace_details SET deletion_scheduled_at = now() - $2::integer * interval '1 day', state_metadata = $3::text::jsonb
		WHERE namespace_id = $1`, group, days, metadata)
}

// owned makes a group on the first level that U owns and has marked some days ago.
func (g *groupEstate) owned(id, days int) {
	g.t.Helper()
	g.group(id, 0, fmt.Sprintf("g%d", id))
	g.member(id, 1, 50)
	g.mark(id, 1, days)
}

// run runs the worker and fails the test unless the run succeeds with these counts.
func (g *groupEstate) run(counts string) service.Run {
	g.t.Helper()
	r, err := g.service.RunBatch(context.Background(), service.RunRequest{Worker: groupWorker})
	if err != nil {
		g.t.Fatal(err)
	}
	wantState(g.t, r, "succeeded")
	wantCounts(g.t, r, counts)
	return r
}

// wantJobs fails the test unless these removals are in the queue, "group:user@seconds after the last run's start".
func (g *groupEstate) wantJobs(want ...string) {
	g.t.Helper()
	g.want("main", `SELECT coalesce(string_agg(format('%s:%s@%s', j.args ->> 'group_id', j.args ->> 'user_id',
			extract(epoch FROM j.scheduled_at - r.started_at)::float8), ' ' ORDER BY (j.args ->> 'group_id')::bigint), '')
		FROM maintenance.river_job j, (SELECT started_at FROM maintenance.runs WHERE worker = 'adjourned_group_deletion' ORDER BY id DESC LIMIT 1) r
		WHERE j.kind = 'destroy_group' AND j.state NOT IN ('completed', 'cancelled', 'discarded')`, strings.Join(want, " "))
}

// wantMarked fails the test unless exactly these groups are marked, in either store.
func (g *groupEstate) wantMarked(want string) {
	g.t.Helper()
	g.want("main", `SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM (
		SELECT group_id AS id FROM group_deletion_schedules UNION SELECT namespace_id FROM namespace_details WHERE deletion_scheduled_at IS NOT NULL) m`, want)
}

// wantLog fails the test unless there are so many lines with all these words.
func (g *groupEstate) wantLog(times int, words ...string) {
	g.t.Helper()
	lines := g.log.lines(words[0])
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
		g.t.Errorf("%d lines with %q, want %d; with the first word: %q", n, words, times, lines)
	}
}

// dryRun is run for a dry run.
func (g *groupEstate) dryRun(counts string) service.Run {
	g.t.Helper()
	r, err := g.service.RunBatch(context.Background(), service.RunRequest{Worker: groupWorker, DryRun: true})
	if err != nil {
		g.t.Fatal(err)
	}
	wantState(g.t, r, "succeeded")
	wantCounts(g.t, r, counts)
	return r
}

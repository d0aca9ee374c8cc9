package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// level of a user in a group, by memberships and invitations of the group and all above it.
func (e *Estate) level(user, group int) (level int) {
	for g := group; g != 0; g = e.groupOf(g).parent {
		for _, x := range e.members {
			switch {
			case x.user != user || x.project:
			case x.source == g:
				level = max(level, x.level)
			case x.source == club:
				level = max(level, min(x.level, e.shares[g]))
			}
		}
	}
	return level
}

func (e *Estate) groupOf(id int) group {
	for _, g := range e.groups {
		if g.id == id {
			return g
		}
	}
	return group{}
}

func due(g group) bool { return g.marked && g.days >= 30 }

func (e *Estate) groupGone(id int) bool {
	if id == 0 {
		return false
	}
	g := e.groupOf(id)
	if id == protectedGroup {
		return false
	}
	allowed := g.by < nobody && g.by != blockedUser && (g.by == adminUser || e.level(g.by, id) >= 50)
	return due(g) && allowed || e.groupGone(g.parent)
}

// restored groups have their old path again.
func (e *Estate) restored(g group) bool {
	return due(g) && g.by < nobody && g.id != protectedGroup && !e.groupGone(g.id)
}

// Held is how many groups every run reports as held. They are marked by a missing user, named like
// a marked group without a mark, or protected.
func (e *Estate) Held() (n int64) {
	for _, g := range e.groups {
		if !e.groupGone(g.id) && (due(g) && g.by >= nobody || g.lost || g.by == marker || g.id == protectedGroup) {
			n++
		}
	}
	return n
}

func (e *Estate) projectGone(id int) bool {
	namespace := e.projects[id-1].namespace
	if namespace > 1000 {
		return e.userGone(namespace - 1000)
	}
	return e.groupGone(namespace)
}

// keeps reports whether a token keeps its bot: it expires by the day, and is revoked at a time of the day.
func (t token) keeps() bool {
	active := t.revoked == 0 && t.expired <= 0
	return active || t.expired > 0 && t.expired <= 30 || t.revoked > 0 && t.revoked < 30
}

func (e *Estate) userGone(id int) bool {
	if id == hardDeleted {
		return true
	}
	u := e.users[id-1]
	switch u.kind {
	case 0:
		return u.deletedBy != 0 && !slices.Contains([]int{soleOwner, unauthorized, protectedUser}, id)
	case 6:
		return id != soleBot && (e.inactive(u) || e.inGoneSource(id))
	case 15:
		return e.candidate(u) && !u.referenced
	}
	return false
}

func (e *Estate) inactive(u user) bool {
	for _, t := range u.tokens {
		if t.keeps() {
			return false
		}
	}
	return true
}

func (e *Estate) inGoneSource(user int) bool {
	for _, x := range e.members {
		if x.user == user && e.sourceGone(x) {
			return true
		}
	}
	return false
}

func (e *Estate) sourceGone(x member) bool {
	if x.project {
		return e.projectGone(x.source)
	}
	return e.groupGone(x.source)
}

func (e *Estate) candidate(u user) bool {
	return u.placed && (u.group == 0 || e.groupGone(u.group))
}

func (e *Estate) issueGone(i text) bool {
	return e.projectGone(i.project) || i.author == hardDeleted
}

func (e *Estate) noteGone(n text) bool {
	return n.author == hardDeleted || e.issueGone(e.issues[n.issue-1])
}

// author is the author of the remaining rows: a ghost of the organization for deleted users. It is
// also the ghost for the user whose contributions were moved before the blocking project was found.
func (e *Estate) author(id int) string {
	if e.userGone(id) || id == KeptByProject || id == ghostOne {
		return fmt.Sprintf("ghost%d", e.users[id-1].org)
	}
	return fmt.Sprint(id)
}

// Table is how to read what the model reports of one: each row is one text.
type Table struct {
	// Database it is in, where each has one of its own: main, ci or sec.
	Database, SQL string
}

// ghostOrUser is user_id in words. ci and sec have no users: the ghost user of organization 2 is
// the one that was added.
const ghostOrUser = `CASE WHEN user_id = 1 THEN 'ghost1' WHEN user_id > 100000 THEN 'ghost2' ELSE coalesce(user_id::text, 'nobody') END`

// Tables are all of which the model reports something.
func Tables() map[string]Table {
	const written = `SELECT concat_ws(' ', x.id, CASE WHEN u.user_type = 5 THEN 'ghost' || u.organization_id
		ELSE coalesce(u.id::text, 'nobody') END) FROM %s x LEFT JOIN users u ON u.id = x.author_id WHERE x.id < 60000`
	all := map[string]Table{
		"users":                 {"main", `SELECT concat_ws(' ', id, state, user_type) FROM users WHERE id <= 100000`},
		"tokens":                {"main", `SELECT concat_ws(' ', user_id, count(*), 'revoked', count(*) FILTER (WHERE revoked)) FROM personal_access_tokens GROUP BY user_id`},
		"placeholders":          {"main", `SELECT concat_ws(' ', placeholder_user_id, 'of', coalesce(namespace_id, 0), 'attempts', deletion_attempts) FROM import_placeholder_user_details`},
		"namespaces":            {"main", `SELECT concat_ws(' ', id, type, path) FROM namespaces`},
		"routes":                {"main", `SELECT concat_ws(' ', source_type, source_id, path) FROM routes`},
		"group links":           {"main", `SELECT concat_ws(' ', shared_group_id, group_access) FROM group_group_links`},
		"groups marked by date": {"main", `SELECT concat_ws(' ', group_id, 'by', user_id) FROM group_deletion_schedules`},
		"groups marked in details": {"main", `SELECT concat_ws(' ', namespace_id, 'by', state_metadata ->> 'deletion_scheduled_by_user_id') FROM namespace_details
			WHERE deletion_scheduled_at IS NOT NULL OR state_metadata ? 'deletion_scheduled_by_user_id'`},
		"projects":                 {"main", `SELECT id::text FROM projects`},
		"repositories":             {"main", `SELECT project_id::text FROM project_repositories`},
		"members":                  {"main", `SELECT id::text FROM members`},
		"issues":                   {"main", fmt.Sprintf(written, "issues")},
		"notes":                    {"main", fmt.Sprintf(written, "notes") + ` AND x.noteable_type = 'Issue'`},
		"merge requests":           {"main", fmt.Sprintf(written, "merge_requests")},
		"epics":                    {"main", fmt.Sprintf(written, "epics")},
		"ghost queue":              {"main", `SELECT user_id::text FROM ghost_user_migrations`},
		"mirrors":                  {"ci", `SELECT namespace_id::text FROM ci_namespace_mirrors`},
		"metadata":                 {"ci", `SELECT project_id::text FROM ci_pipeline_metadata`},
		"pipelines":                {"ci", `SELECT concat_ws(' ', id, ` + ghostOrUser + `, 'trigger', coalesce(trigger_id, 0)) FROM p_ci_pipelines WHERE id < 60000`},
		"builds":                   {"ci", `SELECT concat_ws(' ', id, ` + ghostOrUser + `) FROM p_ci_builds WHERE id < 60000`},
		"vulnerabilities":          {"sec", `SELECT concat_ws(' ', id, 'resolved by', coalesce(resolved_by_id, 0)) FROM vulnerabilities WHERE id < 60000`},
		"notes of vulnerabilities": {"main", `SELECT noteable_id::text FROM notes WHERE noteable_type = 'Vulnerability'`},
		"refusals": {"main", `SELECT DISTINCT concat_ws(' ', kind, coalesce(args ->> 'placeholder_user_id', args ->> 'group_id', args ->> 'user_id'), metadata ->> 'reason')
			FROM maintenance.river_job WHERE state NOT IN ('completed', 'available', 'scheduled', 'running', 'retryable')`},
	}
	maps.Copy(all, mentionTables())
	return all
}

// Rows are what must be in each of [Tables] at the end, and nothing else.
func (e *Estate) Rows() map[string][]string {
	r := map[string][]string{"ghost queue": {fmt.Sprint(supportBot), fmt.Sprint(KeptByProject)}}
	add := func(table string, values ...any) {
		r[table] = append(r[table], strings.TrimSpace(fmt.Sprintln(values...)))
	}
	e.addUsers(add)
	for _, g := range e.groups {
		if !e.groupGone(g.id) {
			e.addGroup(add, g)
		}
	}
	for _, p := range e.projects {
		if !e.projectGone(p.id) {
			add("projects", p.id)
			add("metadata", p.id)
			add("repositories", p.id)
			add("routes", "Project", p.id, fmt.Sprintf("x/p%d", p.id))
			add("namespaces", ofProject(p.id), "Project", fmt.Sprintf("p%d", p.id))
		}
	}
	for _, x := range e.members {
		if !e.sourceGone(x) && !e.userGone(x.user) && x.user != KeptByProject {
			add("members", x.id)
		}
	}
	for _, i := range e.issues {
		if !e.issueGone(i) {
			add("issues", i.id, e.author(i.author))
		}
	}
	for _, n := range e.notes {
		if !e.noteGone(n) {
			add("notes", n.id, e.author(n.author))
		}
	}
	e.addWork(add)
	e.addElsewhereRows(add)
	e.addMentionRows(add)
	return r
}

func (e *Estate) addGroup(add func(string, ...any), g group) {
	path := fmt.Sprintf("g%d", g.id)
	if (g.marked || g.lost) && !e.restored(g) {
		path += fmt.Sprintf("-deletion_scheduled-%d", g.id)
	}
	add("namespaces", g.id, "Group", path)
	add("routes", "Namespace", g.id, path)
	add("mirrors", g.id)
	if level := e.shares[g.id]; level > 0 {
		add("group links", g.id, level)
	}
	switch {
	case !g.marked || e.restored(g):
	case g.newStore:
		add("groups marked in details", g.id, "by", g.by)
	case !e.userGone(g.by): // the mark goes with the one who has set it
		add("groups marked by date", g.id, "by", g.by)
	}
}

func (e *Estate) addUsers(add func(string, ...any)) {
	for _, u := range e.users {
		if !e.userGone(u.id) {
			add("users", u.id, u.state, u.kind)
			e.addUsersBelongings(add, u)
			add("namespaces", Personal(u.id), "User", fmt.Sprintf("u%d", u.id))
		}
		if e.candidate(u) && u.referenced {
			add("refusals", "delete_placeholder_user", u.id, "STILL_REFERENCED")
		}
	}
	add("refusals", "delete_user", soleOwner, "SOLE_OWNER_OF_GROUP")
	add("refusals", "delete_user", soleBot, "SOLE_OWNER_OF_GROUP")
	add("refusals", "delete_user", unauthorized, "NOT_AUTHORIZED")
	add("refusals", "delete_user", protectedUser, "PROTECTED")
	add("refusals", "destroy_group", protectedGroup, "PROTECTED")
}

package service_test

import (
	"fmt"
	"strings"
)

// pipelineModel says from the generated estate alone what must be there at the end.
type pipelineModel struct {
	*pipelineEstate
}

// level of a user in a group, by memberships and invitations of the group and all above it.
func (m pipelineModel) level(user, group int) (level int) {
	for g := group; g != 0; g = m.groupOf(g).parent {
		for _, x := range m.members {
			switch {
			case x.user != user || x.project:
			case x.source == g:
				level = max(level, x.level)
			case x.source == club:
				level = max(level, min(x.level, m.shares[g]))
			}
		}
	}
	return level
}

func (m pipelineModel) groupOf(id int) pipelineGroup {
	for _, g := range m.groups {
		if g.id == id {
			return g
		}
	}
	return pipelineGroup{}
}

func due(g pipelineGroup) bool { return g.marked && g.days >= 30 }

func (m pipelineModel) groupGone(id int) bool {
	if id == 0 {
		return false
	}
	g := m.groupOf(id)
	allowed := g.by <= lastUser && g.by != blockedUser && (g.by == adminUser || m.level(g.by, id) >= 50)
	return due(g) && allowed || m.groupGone(g.parent)
}

// restored groups have their old path again.
func (m pipelineModel) restored(g pipelineGroup) bool {
	return due(g) && g.by <= lastUser && !m.groupGone(g.id)
}

// held groups are due for somebody who is not there, or look marked and are not.
func (m pipelineModel) held() (n int64) {
	for _, g := range m.groups {
		if !m.groupGone(g.id) && (due(g) && g.by > lastUser || g.lost || g.by == marker) {
			n++
		}
	}
	return n
}

func (m pipelineModel) projectGone(id int) bool {
	namespace := m.projects[id-1].namespace
	if namespace > 1000 {
		return m.userGone(namespace - 1000)
	}
	return m.groupGone(namespace)
}

// keeps says whether a token keeps its bot; all dates are far from the edges.
func (t pipelineToken) keeps() bool {
	active := t.revoked == 0 && t.expired <= 0
	return active || t.expired > 0 && t.expired < 30 || t.revoked > 0 && t.revoked < 30
}

func (m pipelineModel) userGone(id int) bool {
	if id == hardDeleted {
		return true
	}
	u := m.users[id-1]
	switch u.kind {
	case 0:
		return u.deletedBy != 0 && id != soleOwner && id != unauthorized
	case 6:
		return id != soleBot && (m.inactive(u) || m.inGoneSource(id))
	case 15:
		return m.candidate(u) && !u.referenced
	}
	return false
}

func (m pipelineModel) inactive(u pipelineUser) bool {
	for _, t := range u.tokens {
		if t.keeps() {
			return false
		}
	}
	return true
}

func (m pipelineModel) inGoneSource(user int) bool {
	for _, x := range m.members {
		if x.user == user && m.sourceGone(x) {
			return true
		}
	}
	return false
}

func (m pipelineModel) sourceGone(x pipelineMember) bool {
	if x.project {
		return m.projectGone(x.source)
	}
	return m.groupGone(x.source)
}

func (m pipelineModel) candidate(u pipelineUser) bool {
	return u.placed && (u.group == 0 || m.groupGone(u.group))
}

func (m pipelineModel) issueGone(i pipelineText) bool {
	return m.projectGone(i.project) || i.author == hardDeleted
}

func (m pipelineModel) noteGone(n pipelineText) bool {
	return n.author == hardDeleted || m.issueGone(m.issues[n.issue-1])
}

// author is who has written what is left: a ghost of the organization for those who are gone, and for the one whose
// contributions were moved before the project in the way was found.
func (m pipelineModel) author(id int) string {
	if m.userGone(id) || id == keptByProject || id == ghostOne {
		return fmt.Sprintf("ghost%d", m.users[id-1].org)
	}
	return fmt.Sprint(id)
}

// pipelineTables are the queries that read what the model says; each row is one text.
var pipelineTables = map[string]string{
	"users":       `SELECT id::text FROM users WHERE id <= 100000`,
	"namespaces":  `SELECT concat_ws(' ', id, type, path) FROM namespaces`,
	"projects":    `SELECT id::text FROM projects`,
	"members":     `SELECT id::text FROM members`,
	"issues":      `SELECT concat_ws(' ', x.id, CASE WHEN u.user_type = 5 THEN 'ghost' || u.organization_id ELSE coalesce(u.id::text, 'nobody') END) FROM issues x LEFT JOIN users u ON u.id = x.author_id`,
	"notes":       `SELECT concat_ws(' ', x.id, CASE WHEN u.user_type = 5 THEN 'ghost' || u.organization_id ELSE coalesce(u.id::text, 'nobody') END) FROM notes x LEFT JOIN users u ON u.id = x.author_id`,
	"ghost queue": `SELECT user_id::text FROM ghost_user_migrations`,
	"mirrors":     `SELECT namespace_id::text FROM ci_namespace_mirrors`,
	"metadata":    `SELECT project_id::text FROM ci_pipeline_metadata`,
	"refusals": `SELECT DISTINCT concat_ws(' ', kind, coalesce(args ->> 'placeholder_user_id', args ->> 'user_id'), metadata ->> 'reason')
		FROM maintenance.river_job WHERE state NOT IN ('completed', 'available', 'scheduled')`,
}

// rows are what the model says of each of these tables.
func (m pipelineModel) rows() map[string][]string {
	r := map[string][]string{"ghost queue": {fmt.Sprint(supportBot), fmt.Sprint(keptByProject)}}
	add := func(table string, values ...any) {
		r[table] = append(r[table], strings.TrimSpace(fmt.Sprintln(values...)))
	}
	m.addUsers(add)
	for _, g := range m.groups {
		if m.groupGone(g.id) {
			continue
		}
		path := fmt.Sprintf("g%d", g.id)
		if (g.marked || g.lost) && !m.restored(g) {
			path += fmt.Sprintf("-deletion_scheduled-%d", g.id)
		}
		add("namespaces", g.id, "Group", path)
		add("mirrors", g.id)
	}
	for _, p := range m.projects {
		if !m.projectGone(p.id) {
			add("projects", p.id)
			add("metadata", p.id)
			add("namespaces", 5000+p.id, "Project", fmt.Sprintf("p%d", p.id))
		}
	}
	for _, x := range m.members {
		if !m.sourceGone(x) && !m.userGone(x.user) && x.user != keptByProject {
			add("members", x.id)
		}
	}
	for _, i := range m.issues {
		if !m.issueGone(i) {
			add("issues", i.id, m.author(i.author))
		}
	}
	for _, n := range m.notes {
		if !m.noteGone(n) {
			add("notes", n.id, m.author(n.author))
		}
	}
	return r
}

func (m pipelineModel) addUsers(add func(string, ...any)) {
	for _, u := range m.users {
		if !m.userGone(u.id) {
			add("users", u.id)
			add("namespaces", personal(u.id), "User", fmt.Sprintf("u%d", u.id))
		}
		if m.candidate(u) && u.referenced {
			add("refusals", "delete_placeholder_user", u.id, "STILL_REFERENCED")
		}
	}
	add("refusals", "delete_user", soleOwner, "SOLE_OWNER_OF_GROUP")
	add("refusals", "delete_user", soleBot, "SOLE_OWNER_OF_GROUP")
	add("refusals", "delete_user", unauthorized, "NOT_AUTHORIZED")
}

package oracle

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Databases are connections to those of an estate, which may be one and the same.
type Databases struct{ Main, CI, Sec *pgx.Conn }

func (d Databases) of(name string) *pgx.Conn {
	return map[string]*pgx.Conn{"main": d.Main, "ci": d.CI, "sec": d.Sec}[name]
}

// writer collects statements for each database.
type writer struct{ main, ci, sec pgx.Batch }

// send sends the statements, main's first.
func (w *writer) send(ctx context.Context, to Databases) error {
	return errors.Join(to.Main.SendBatch(ctx, &w.main).Close(), to.CI.SendBatch(ctx, &w.ci).Close(), to.Sec.SendBatch(ctx, &w.sec).Close())
}

// Load writes the estate's rows into databases that are empty but for caretaker's own tables. [Estate.Jobs] are left to the caller.
func (e *Estate) Load(ctx context.Context, to Databases) error {
	w := &writer{}
	w.main.Queue(`INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'one', now(), now()), (2, 'two', now(), now())`)
	w.main.Queue(`INSERT INTO application_settings (deletion_adjourned_period) VALUES (30)`)
	w.main.Queue(`SELECT setval('users_id_seq', 100000), setval('namespaces_id_seq', 100000)`)
	for _, u := range e.users {
		w.user(u)
	}
	for _, g := range e.groups {
		w.group(g)
	}
	for _, u := range e.users {
		if u.placed {
			w.main.Queue(`INSERT INTO import_placeholder_user_details (placeholder_user_id, namespace_id, organization_id, created_at, updated_at)
				VALUES ($1, nullif($2::bigint, 0), $3, now(), now())`, u.id, u.group, u.org)
		}
	}
	for group, level := range e.shares {
		w.main.Queue(`INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, created_at, updated_at)
			VALUES ($1, $2, $3, now(), now())`, group, club, level)
	}
	for _, p := range e.projects {
		w.project(p, 1+e.Random.IntN(e.lastUser))
	}
	for _, m := range e.members {
		w.member(m)
	}
	for _, i := range e.issues {
		w.main.Queue(`INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES ($1, 'i', $2, $3, $4, $5)`,
			i.id, i.author, i.project, ofProject(i.project), i.id)
	}
	for _, n := range e.notes {
		w.main.Queue(`INSERT INTO notes (id, noteable_type, noteable_id, author_id, project_id) VALUES ($1, 'Issue', $2, $3, $4)`,
			n.id, n.issue, n.author, n.project)
	}
	w.main.Queue(`INSERT INTO ghost_user_migrations (user_id, hard_delete, created_at, updated_at)
		VALUES ($1, false, now(), now()), ($2, false, now(), now()), ($3, true, now(), now())`, supportBot, KeptByProject, hardDeleted)
	w.main.Queue(`INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by)
		VALUES ('user', $1, 'kept', 'oracle'), ('group', $2, 'kept', 'oracle')`, protectedUser, protectedGroup)
	e.loadElsewhere(w)
	e.loadBelongings(w)
	if err := w.send(ctx, to); err != nil {
		return err
	}
	return e.loadMentions(ctx, to)
}

// LoadMarkedGroup adds a group that is due, which the model does not know.
func (e *Estate) LoadMarkedGroup(ctx context.Context, to Databases, id int) error {
	w := &writer{}
	w.group(group{id: id, marked: true, days: 60, by: Owner})
	return w.send(ctx, to)
}

func (w *writer) user(u user) {
	name := fmt.Sprintf("u%d", u.id)
	w.main.Queue(`INSERT INTO users (id, email, username, projects_limit, state, user_type, organization_id, admin)
		VALUES ($1, $2, $3, 0, $4, $5, $6, $7)`, u.id, name+"@x", name, u.state, u.kind, u.org, u.id == adminUser)
	w.main.Queue(`INSERT INTO namespaces (id, name, path, type, organization_id, owner_id) VALUES ($1, 'u', $2, 'User', $3, $4)`,
		Personal(u.id), name, u.org, u.id)
	for _, t := range u.tokens {
		w.main.Queue(`INSERT INTO personal_access_tokens (user_id, name, organization_id, expires_at, revoked, created_at, updated_at)
			VALUES ($1, 't', $2, (now() AT TIME ZONE 'UTC')::date - nullif($3::integer, 0), $4::integer > 0, now(), (now() AT TIME ZONE 'UTC') - $4 * interval '1 day')`,
			u.id, u.org, t.expired, t.revoked)
	}
}

func (w *writer) group(g group) {
	path := fmt.Sprintf("g%d", g.id)
	if g.marked || g.lost {
		path += fmt.Sprintf("-deletion_scheduled-%d", g.id)
	}
	w.main.Queue(`INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES ($1, $2, $2, 'Group', nullif($3::bigint, 0), 1)`,
		g.id, path, g.parent)
	w.main.Queue(`INSERT INTO routes (source_type, source_id, namespace_id, path) VALUES ('Namespace', $1, $1, $2)`, g.id, path)
	w.ci.Queue(`INSERT INTO ci_namespace_mirrors (namespace_id, traversal_ids) VALUES ($1, '{}')`, g.id)
	switch {
	case g.marked && g.newStore:
		w.main.Queue(`UPDATE namespace_details SET deletion_scheduled_at = now() - $2::integer * interval '1 day',
			state_metadata = jsonb_build_object('deletion_scheduled_by_user_id', $3::bigint) WHERE namespace_id = $1`, g.id, g.days, g.by)
	case g.marked:
		w.main.Queue(`INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
			VALUES ($1, $2, (now() AT TIME ZONE 'UTC')::date - $3::integer)`, g.id, g.by, g.days)
	}
}

func (w *writer) project(p project, creator int) {
	name := fmt.Sprintf("p%d", p.id)
	w.main.Queue(`INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES ($1, $2, $2, 'Project', $3, $4)`,
		ofProject(p.id), name, p.namespace, p.org)
	w.main.Queue(`INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id, creator_id) VALUES ($1, 'p', 'p', $2, $3, $4, $5)`,
		p.id, p.namespace, ofProject(p.id), p.org, creator)
	w.main.Queue(`INSERT INTO routes (source_type, source_id, namespace_id, path) VALUES ('Project', $1, $2, $3)`, p.id, ofProject(p.id), "x/"+name)
	w.main.Queue(`INSERT INTO project_repositories (project_id, disk_path) VALUES ($1, $2)`, p.id, fmt.Sprintf("@hashed/%d", p.id))
	w.ci.Queue(`INSERT INTO ci_pipeline_metadata (pipeline_id, project_id) VALUES ($1, $1)`, p.id)
}

func (w *writer) member(m member) {
	source, kind, namespace := "Namespace", "GroupMember", m.source
	if m.project {
		source, kind, namespace = "Project", "ProjectMember", ofProject(m.source)
	}
	w.main.Queue(`INSERT INTO members (id, user_id, source_id, source_type, type, access_level, member_namespace_id) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		m.id, m.user, m.source, source, kind, m.level, namespace)
}

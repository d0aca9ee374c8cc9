package service_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// The estate of the pipeline's oracle: what is generated, and its rows. Who is below lastCast has a part of its own.

const (
	ghostOne, adminUser, blockedUser, supportBot, owner, second, clubOwner = 1, 2, 3, 4, 5, 6, 7
	soleOwner, unauthorized, keptByProject, hardDeleted                    = 8, 9, 10, 11
	marker, soleBot, lastCast                                              = 12, 13, 20
	lastUser, firstGroup, lastGroup                                        = 70, 100, 115
	club, soleGroup, botGroup, markerGroup                                 = 120, 121, 122, 123
)

type pipelineUser struct {
	id, org, kind int
	state         string
	// deletedBy asks for the deletion; 0: nobody does.
	deletedBy int
	tokens    []pipelineToken
	// placed is whether the user is a placeholder with details, of a group or of none (0).
	placed     bool
	group      int
	referenced bool
}

// pipelineToken has dates as days before today, negative in the future; 0 for none.
type pipelineToken struct{ expired, revoked int }

type pipelineGroup struct {
	id, parent int
	marked     bool
	days, by   int
	newStore   bool
	// lost is a name that says marked, without a mark.
	lost bool
}

type pipelineProject struct{ id, namespace, org int }

type pipelineMember struct {
	id, user, source, level int
	project                 bool
}

type pipelineText struct{ id, author, project, issue int }

type pipelineEstate struct {
	random   *rand.Rand
	users    []pipelineUser
	groups   []pipelineGroup
	shares   map[int]int
	projects []pipelineProject
	members  []pipelineMember
	issues   []pipelineText
	notes    []pipelineText
}

func generatePipeline(seed uint64) *pipelineEstate {
	p := &pipelineEstate{random: rand.New(rand.NewPCG(seed, 51)), shares: map[int]int{}}
	for id := 1; id <= lastUser; id++ {
		p.users = append(p.users, p.user(id))
	}
	for id := firstGroup; id <= lastGroup; id++ {
		p.groups = append(p.groups, p.group(id))
		if p.random.IntN(4) == 0 {
			p.shares[id] = []int{30, 50}[p.random.IntN(2)]
		}
	}
	p.groups = append(p.groups, pipelineGroup{id: club}, pipelineGroup{id: soleGroup}, pipelineGroup{id: botGroup},
		pipelineGroup{id: markerGroup, marked: true, days: 2, by: marker})
	p.addProjects()
	p.addMembers()
	p.addTexts()
	return p
}

// user of any kind; only the cast is never at random.
func (p *pipelineEstate) user(id int) pipelineUser {
	u := pipelineUser{id: id, org: 1 + p.random.IntN(2), state: "active"}
	switch id {
	case ghostOne:
		u.kind, u.org = 5, 1
	case supportBot:
		u.kind = 1
	case blockedUser:
		u.state = "blocked"
	case soleOwner, marker:
		u.deletedBy = adminUser
	case unauthorized:
		u.deletedBy = owner
	case soleBot:
		u.kind, u.tokens = 6, []pipelineToken{{expired: 90}}
	}
	if id < lastCast {
		return u
	}
	u.kind = []int{0, 6, 6, 13, 15}[id%5]
	u.tokens = p.tokens()
	switch u.kind {
	case 0:
		u.deletedBy = []int{0, 0, id, adminUser}[p.random.IntN(4)]
	case 15:
		u.tokens, u.placed, u.referenced = nil, p.random.IntN(5) > 0, p.random.IntN(3) == 0
		if p.random.IntN(2) == 0 {
			u.group = firstGroup + p.random.IntN(lastGroup-firstGroup+1)
		}
	}
	return u
}

func (p *pipelineEstate) tokens() (tokens []pipelineToken) {
	all := []pipelineToken{{}, {expired: -20}, {expired: 5}, {expired: 90}, {expired: 90}, {revoked: 90}, {revoked: 4}, {expired: 90, revoked: 3}, {expired: 7, revoked: 80}, {expired: -60, revoked: 70}, {expired: 200}}
	for range p.random.IntN(3) {
		tokens = append(tokens, all[p.random.IntN(len(all))])
	}
	return tokens
}

// group: the first stays and is on the first level.
func (p *pipelineEstate) group(id int) pipelineGroup {
	g := pipelineGroup{id: id}
	if id == firstGroup {
		return g
	}
	if p.random.IntN(5) < 3 {
		g.parent = firstGroup + p.random.IntN(id-firstGroup)
	}
	switch p.random.IntN(6) {
	case 0:
		g.lost = p.random.IntN(2) == 0
	case 1:
	default:
		g.marked, g.newStore, g.days = true, p.random.IntN(2) == 0, []int{2, 40, 60, 90}[p.random.IntN(4)]
		g.by = []int{owner, adminUser, blockedUser, clubOwner, keptByProject + 80000}[p.random.IntN(5)]
		g.newStore = g.newStore || g.by > lastUser
	}
	return g
}

func (p *pipelineEstate) addProjects() {
	add := func(namespace, org int) {
		p.projects = append(p.projects, pipelineProject{len(p.projects) + 1, namespace, org})
	}
	add(firstGroup, 1)
	for range 24 {
		add(firstGroup+p.random.IntN(lastGroup-firstGroup+1), 1)
	}
	for _, u := range p.users {
		if u.id == keptByProject || u.id >= lastCast && u.kind == 0 && p.random.IntN(3) == 0 {
			add(personal(u.id), u.org)
		}
	}
}

// personal is the id of a user's namespace.
func personal(user int) int { return 1000 + user }

func (p *pipelineEstate) addMembers() {
	add := func(user, source, level int, project bool) {
		p.members = append(p.members, pipelineMember{len(p.members) + 1, user, source, level, project})
	}
	for _, g := range p.groups[:lastGroup-firstGroup+1] {
		if g.parent == 0 {
			add(owner, g.id, 50, false)
			add(blockedUser, g.id, 50, false)
		}
		add(second, g.id, 50, false)
		add(clubOwner, g.id, 40, false)
	}
	add(clubOwner, club, 50, false)
	add(soleOwner, soleGroup, 50, false)
	add(soleBot, botGroup, 50, false)
	add(second, markerGroup, 50, false)
	add(keptByProject, club, 30, false)
	for _, u := range p.users[lastCast-1:] {
		for range p.random.IntN(3) {
			if p.random.IntN(2) == 0 {
				add(u.id, firstGroup+p.random.IntN(lastGroup-firstGroup+1), 30, false)
			} else {
				add(u.id, 1+p.random.IntN(len(p.projects)), 30, true)
			}
		}
	}
}

// addTexts adds issues and notes; placeholders write in the first issue only, which stays.
func (p *pipelineEstate) addTexts() {
	p.issues = append(p.issues, pipelineText{id: 1, author: owner, project: 1})
	anybody := func() int {
		for {
			if u := p.users[p.random.IntN(lastUser)]; u.kind != 15 {
				return u.id
			}
		}
	}
	for id := 2; id <= 160; id++ {
		i := pipelineText{id: id, author: anybody(), project: 1 + p.random.IntN(len(p.projects))}
		if id < 6 {
			i.author, i.project = []int{hardDeleted, keptByProject}[id%2], 1
		}
		p.issues = append(p.issues, i)
	}
	note := func(author int, i pipelineText) {
		p.notes = append(p.notes, pipelineText{len(p.notes) + 1, author, i.project, i.id})
	}
	note(hardDeleted, p.issues[0])
	for range 300 {
		note(anybody(), p.issues[p.random.IntN(len(p.issues))])
	}
	for _, u := range p.users {
		if u.referenced {
			note(u.id, p.issues[0])
		}
	}
}

// load writes the estate's rows.
func (p *pipelineEstate) load(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'one', now(), now()), (2, 'two', now(), now());
		INSERT INTO application_settings (deletion_adjourned_period) VALUES (30);
		SELECT setval('users_id_seq', 100000), setval('namespaces_id_seq', 100000)`)
	for _, u := range p.users {
		u.load(e)
	}
	for _, g := range p.groups {
		p.loadGroup(e, g)
	}
	for _, u := range p.users {
		if u.placed {
			e.Exec("main", `INSERT INTO import_placeholder_user_details (placeholder_user_id, namespace_id, organization_id, created_at, updated_at)
				VALUES ($1, nullif($2::bigint, 0), $3, now(), now())`, u.id, u.group, u.org)
		}
	}
	for group, level := range p.shares {
		e.Exec("main", `INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, created_at, updated_at)
			VALUES ($1, $2, $3, now(), now())`, group, club, level)
	}
	for _, j := range p.projects {
		e.Exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES (5000 + $1::bigint, 'p' || $1, 'p' || $1, 'Project', $2, $3)`, j.id, j.namespace, j.org)
		e.Exec("main", `INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id, creator_id) VALUES ($1::bigint, 'p', 'p', $2, 5000 + $1::bigint, $3, $4)`,
			j.id, j.namespace, j.org, 1+p.random.IntN(lastUser))
		e.Exec("main", `INSERT INTO routes (source_type, source_id, namespace_id, path) VALUES ('Project', $1::bigint, 5000 + $1::bigint, 'x/p' || $1::bigint)`, j.id)
		e.Exec("main", `INSERT INTO ci_pipeline_metadata (pipeline_id, project_id) VALUES ($1, $1)`, j.id)
	}
	for _, m := range p.members {
		source, kind, namespace := "Namespace", "GroupMember", m.source
		if m.project {
			source, kind, namespace = "Project", "ProjectMember", 5000+m.source
		}
		e.Exec("main", `INSERT INTO members (id, user_id, source_id, source_type, type, access_level, member_namespace_id) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			m.id, m.user, m.source, source, kind, m.level, namespace)
	}
	for _, i := range p.issues {
		e.Exec("main", `INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES ($1::bigint, 'i', $2, $3::bigint, 5000 + $3::bigint, $1::integer)`, i.id, i.author, i.project)
	}
	for _, n := range p.notes {
		e.Exec("main", `INSERT INTO notes (id, noteable_type, noteable_id, author_id, project_id) VALUES ($1, 'Issue', $2, $3, $4)`, n.id, n.issue, n.author, n.project)
	}
	e.Exec("main", `INSERT INTO ghost_user_migrations (user_id, hard_delete, created_at, updated_at)
		VALUES ($1, false, now(), now()), ($2, false, now(), now()), ($3, true, now(), now())`, supportBot, keptByProject, hardDeleted)
}

func (u *pipelineUser) load(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `INSERT INTO users (id, email, username, projects_limit, state, user_type, organization_id, admin)
		VALUES ($1::bigint, 'u' || $1 || '@x', 'u' || $1, 0, $2, $3, $4, $5)`, u.id, u.state, u.kind, u.org, u.id == adminUser)
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id, owner_id) VALUES ($1, 'u', 'u' || $2::bigint, 'User', $3, $2)`, personal(u.id), u.id, u.org)
	for _, t := range u.tokens {
		e.Exec("main", `INSERT INTO personal_access_tokens (user_id, name, organization_id, expires_at, revoked, created_at, updated_at)
			VALUES ($1, 't', $2, (now() AT TIME ZONE 'UTC')::date - nullif($3::integer, 0), $4::integer > 0, now(), (now() AT TIME ZONE 'UTC') - $4 * interval '1 day')`,
			u.id, u.org, t.expired, t.revoked)
	}
	if u.deletedBy > 0 {
		e.Insert(repo.Job{Args: repo.DeleteUser{UserID: int64(u.id), DeletedByID: new(int64(u.deletedBy)), Reason: "asked for"}})
	}
}

func (p *pipelineEstate) loadGroup(e *servicetest.Estate, g pipelineGroup) {
	e.T.Helper()
	path := fmt.Sprintf("g%d", g.id)
	if g.marked || g.lost {
		path += fmt.Sprintf("-deletion_scheduled-%d", g.id)
	}
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES ($1, $2, $2, 'Group', nullif($3::bigint, 0), 1)`, g.id, path, g.parent)
	e.Exec("main", `INSERT INTO routes (source_type, source_id, namespace_id, path) VALUES ('Namespace', $1, $1, $2)`, g.id, path)
	e.Exec("main", `INSERT INTO ci_namespace_mirrors (namespace_id, traversal_ids) VALUES ($1, '{}')`, g.id)
	switch {
	case g.marked && g.newStore:
		e.Exec("main", `UPDATE namespace_details SET deletion_scheduled_at = now() - $2::integer * interval '1 day',
			state_metadata = jsonb_build_object('deletion_scheduled_by_user_id', $3::bigint) WHERE namespace_id = $1`, g.id, g.days, g.by)
	case g.marked:
		e.Exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
			VALUES ($1, $2, (now() AT TIME ZONE 'UTC')::date - $3::integer)`, g.id, g.by, g.days)
	}
}

package oracle

import (
	"math/rand/v2"
	"time"
)

// Users that the model treats by name. Those after lastCast are generated at random.
const (
	ghostOne     = 1 // the ghost user of organization 1.
	adminUser    = 2 // may delete every user and group.
	blockedUser  = 3 // owns groups, but is blocked: groups marked by this user are restored.
	supportBot   = 4 // in the queue of the ghost migration, but of an internal type: stays there.
	Owner        = 5 // owns every group of the first level.
	Second       = 6 // owns every group, so that no other user is the only owner.
	clubOwner    = 7 // maintainer of every group, owner of those shared with the group club at level 50.
	soleOwner    = 8 // the only owner of soleGroup: cannot be deleted.
	unauthorized = 9 // whose deletion is requested without the right to delete.
	// KeptByProject has a personal project: the contributions move to the ghost, the user stays.
	KeptByProject = 10
	hardDeleted   = 11     // goes with all contributions.
	marker        = 12     // has marked markerGroup and goes: the group is held.
	soleBot       = 13     // a bot without a live token, the only owner of botGroup: cannot be deleted.
	protectedUser = 14     // whose deletion is asked for, and whom a protection keeps.
	lastCast      = 20     // the last id of users by name.
	nobody        = 80_000 // ids from here on are of missing users.
)

// Groups with a part of their own, and where the ids of the others begin. Namespaces of users and
// projects have ids after those of all groups: see Personal and ofProject.
const (
	club, soleGroup, botGroup, markerGroup, protectedGroup = 50, 51, 52, 53, 54
	FirstGroup                                             = 100
)

// MaxSize is the greatest size of an estate: with more the ranges of ids would overlap. Namespaces
// of groups begin at 50, those of users at 1001, those of projects at 5001. users who are not there
// at 80,000, and rows that others add at 100,000. In other tables rows that mention users begin at
// 60,032.
const MaxSize = 50

// FirstLate is the first id of issues that an application may add while users go: none may be left without an author.
const FirstLate = 200_000

type user struct {
	id, org, kind int
	state         string
	// deletedBy asks for the deletion. 0 means no request.
	deletedBy int
	tokens    []token
	// placed is whether the user is a placeholder with details, of a group or of none (0).
	placed     bool
	group      int
	referenced bool
}

// token has dates as days before today, negative in the future. 0 for none.
type token struct{ expired, revoked int }

type group struct {
	id, parent int
	marked     bool
	days, by   int
	newStore   bool
	// lost is a name that reports marked, without a mark.
	lost bool
}

type project struct{ id, namespace, org int }

type member struct {
	id, user, source, level int
	project                 bool
}

type text struct{ id, author, project, issue int }

// Estate is what was generated.
type Estate struct {
	// Random is used by Generate, then Load, then tests. A draw more or less gives another estate for every
	// seed: seeds in reports and tests then mean something else.
	Random              *rand.Rand
	size                int
	lastUser, lastGroup int
	users               []user
	groups              []group
	shares              map[int]int
	projects            []project
	members             []member
	issues              []text
	notes               []text
	pipelines           []pipeline
	vulnerabilities     []vulnerability
	mergeRequests       []text
	epics               []text
	mentions            []mention
}

// Generate makes an estate of 70 users, 20 groups, 25 projects, 160 issues and 300 notes. size, 1
// to [MaxSize], multiplies these numbers.
func Generate(seed uint64, size int) *Estate {
	size = min(max(size, 1), MaxSize)
	e := &Estate{
		Random: rand.New(rand.NewPCG(seed, 51)), size: size, shares: map[int]int{},
		lastUser: 70 * size, lastGroup: FirstGroup + 16*size - 1,
	}
	for id := 1; id <= e.lastUser; id++ {
		e.users = append(e.users, e.user(id))
	}
	for id := FirstGroup; id <= e.lastGroup; id++ {
		e.groups = append(e.groups, e.group(id))
		if e.Random.IntN(4) == 0 {
			e.shares[id] = []int{30, 50}[e.Random.IntN(2)]
		}
	}
	e.groups = append(e.groups, group{id: club}, group{id: soleGroup}, group{id: botGroup},
		group{id: markerGroup, marked: true, days: 2, by: marker}, group{id: protectedGroup, marked: true, days: 60, by: adminUser})
	e.addProjects()
	e.addMembers()
	e.addTexts()
	e.addElsewhere(rand.New(rand.NewPCG(seed, 52)))
	e.addBelongings(rand.New(rand.NewPCG(seed, 53)))
	e.addMentions()
	return e
}

// user of any kind. Only the cast is never at random.
func (e *Estate) user(id int) user {
	u := user{id: id, org: 1 + e.Random.IntN(2), state: "active"}
	switch id {
	case ghostOne:
		u.kind, u.org = 5, 1
	case supportBot:
		u.kind = 1
	case blockedUser:
		u.state = "blocked"
	case soleOwner, marker, protectedUser:
		u.deletedBy = adminUser
	case unauthorized:
		u.deletedBy = Owner
	case soleBot:
		u.kind, u.tokens = 6, []token{{expired: 90}}
	}
	if id < lastCast {
		return u
	}
	u.kind = []int{0, 6, 6, 13, 15}[id%5]
	u.tokens = e.tokens()
	switch u.kind {
	case 0:
		u.deletedBy = []int{0, 0, id, adminUser}[e.Random.IntN(4)]
	case 15:
		u.tokens, u.placed, u.referenced = nil, e.Random.IntN(5) > 0, e.Random.IntN(3) == 0
		if e.Random.IntN(2) == 0 {
			u.group = FirstGroup + e.Random.IntN(e.lastGroup-FirstGroup+1)
		}
	}
	return u
}

func (e *Estate) tokens() (tokens []token) {
	all := []token{{}, {expired: -20}, {expired: lastKept(30)}, {expired: 31}, {expired: 90}, {revoked: 31}, {revoked: 29}, {expired: 90, revoked: 3}, {expired: 7, revoked: 80}, {expired: -60, revoked: 70}, {expired: 200}}
	for range e.Random.IntN(3) {
		tokens = append(tokens, all[e.Random.IntN(len(all))])
	}
	return tokens
}

// lastKept is the age in days at which something is just kept, by the date in UTC. In the last hour
// of a day it is one day less. So the row is kept if midnight comes during the test.
func lastKept(days int) int {
	if time.Now().UTC().Hour() == 23 {
		return days - 1
	}
	return days
}

// group: the first stays and is on the first level.
func (e *Estate) group(id int) group {
	g := group{id: id}
	if id == FirstGroup {
		return g
	}
	if e.Random.IntN(5) < 3 {
		g.parent = FirstGroup + e.Random.IntN(id-FirstGroup)
	}
	switch e.Random.IntN(6) {
	case 0:
		g.lost = e.Random.IntN(2) == 0
	case 1:
	default:
		g.marked, g.newStore, g.days = true, e.Random.IntN(2) == 0, []int{lastKept(29), 30, 60, 90}[e.Random.IntN(4)]
		g.by = []int{Owner, adminUser, blockedUser, clubOwner, nobody + KeptByProject}[e.Random.IntN(5)]
		g.newStore = g.newStore || g.by >= nobody
	}
	return g
}

func (e *Estate) addProjects() {
	add := func(namespace, org int) {
		e.projects = append(e.projects, project{len(e.projects) + 1, namespace, org})
	}
	add(FirstGroup, 1)
	for range 24 * e.size {
		add(FirstGroup+e.Random.IntN(e.lastGroup-FirstGroup+1), 1)
	}
	for _, u := range e.users {
		if u.id == KeptByProject || u.id >= lastCast && u.kind == 0 && e.Random.IntN(3) == 0 {
			add(Personal(u.id), u.org)
		}
	}
}

// Personal is the id of a user's namespace.
func Personal(user int) int { return 1000 + user }

// ofProject is the id of a project's namespace.
func ofProject(project int) int { return 5000 + project }

func (e *Estate) addMembers() {
	add := func(user, source, level int, project bool) {
		e.members = append(e.members, member{len(e.members) + 1, user, source, level, project})
	}
	for _, g := range e.groups[:e.lastGroup-FirstGroup+1] {
		if g.parent == 0 {
			add(Owner, g.id, 50, false)
			add(blockedUser, g.id, 50, false)
		}
		add(Second, g.id, 50, false)
		add(clubOwner, g.id, 40, false)
	}
	add(clubOwner, club, 50, false)
	add(soleOwner, soleGroup, 50, false)
	add(soleBot, botGroup, 50, false)
	add(Second, markerGroup, 50, false)
	add(KeptByProject, club, 30, false)
	for _, u := range e.users[lastCast-1:] {
		for range e.Random.IntN(3) {
			if e.Random.IntN(2) == 0 {
				add(u.id, FirstGroup+e.Random.IntN(e.lastGroup-FirstGroup+1), 30, false)
			} else {
				add(u.id, 1+e.Random.IntN(len(e.projects)), 30, true)
			}
		}
	}
}

// Any user may have written something. A placeholder who has is still referenced.
func (e *Estate) anybody(random *rand.Rand) int {
	for {
		if u := e.users[random.IntN(e.lastUser)]; u.kind != 15 {
			return u.id
		}
	}
}

// addTexts adds issues and notes. placeholders write in the first issue only, which stays.
func (e *Estate) addTexts() {
	e.issues = append(e.issues, text{id: 1, author: Owner, project: 1})
	for id := 2; id <= 160*e.size; id++ {
		i := text{id: id, author: e.anybody(e.Random), project: 1 + e.Random.IntN(len(e.projects))}
		if id < 6 {
			i.author, i.project = []int{hardDeleted, KeptByProject}[id%2], 1
		}
		e.issues = append(e.issues, i)
	}
	note := func(author int, i text) {
		e.notes = append(e.notes, text{len(e.notes) + 1, author, i.project, i.id})
	}
	note(hardDeleted, e.issues[0])
	for range 300 * e.size {
		note(e.anybody(e.Random), e.issues[e.Random.IntN(len(e.issues))])
	}
	for _, u := range e.users {
		if u.referenced {
			note(u.id, e.issues[0])
		}
	}
}

// LastUser is the highest id of the users that were generated.
func (e *Estate) LastUser() int { return e.lastUser }

// Group is one of [Estate.Groups].
type Group struct {
	ID int64
	// By has requested its deletion. nil means no user, or a missing one.
	By *int64
}

// Groups are all, parents before their children.
func (e *Estate) Groups() (all []Group) {
	for _, g := range e.groups {
		x := Group{ID: int64(g.id)}
		if g.by > 0 && g.by < nobody {
			x.By = new(int64(g.by))
		}
		all = append(all, x)
	}
	return all
}

// Placeholders are the ids of all placeholder users.
func (e *Estate) Placeholders() (all []int64) {
	for _, u := range e.users {
		if u.kind == 15 {
			all = append(all, int64(u.id))
		}
	}
	return all
}

// InactiveBots are the project bots whose tokens are all dead: each gets a job.
func (e *Estate) InactiveBots() (all []int64) {
	for _, u := range e.users {
		if u.kind == 6 && e.inactive(u) {
			all = append(all, int64(u.id))
		}
	}
	return all
}

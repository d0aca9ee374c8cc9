package deletion_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// endedDeletions are how the jobs delete_user ended, and how many did so.
const endedDeletions = `SELECT string_agg(format('%s %s', n, how), ', ' ORDER BY how) FROM (
	SELECT count(*) AS n, concat_ws(' ', state, metadata ->> 'outcome', nullif(metadata ->> 'reason', '')) AS how
	FROM maintenance.river_job WHERE kind = 'delete_user' GROUP BY 2) ended`

func TestDeleteUser_Owners(t *testing.T) {
	servicetest.Turns(t, servicetest.NewTokens(servicetest.Parallel(t)),
		groupsKeepAnOwnerWhenAllAreToGoAtOnce, onlyOwnerOfAnOrganizationStays,
		warningNamesTheFirstTenGroups, onlyOwnerOfAGroupStays,
	)
}

func TestDeleteUser_OfTwoOwnersWhoGoAtOnceOneStays(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	// User 7 is an owner of group 50, whose parents are 51 and 52.
	for name, c := range map[string]struct{ owner, isolation string }{
		"of the group":         {servicetest.MemberSQL(`8, 50, 50`), "read committed"},
		"of one in a circle":   {`UPDATE namespaces SET parent_id = 50 WHERE id = 52;` + servicetest.MemberSQL(`8, 51, 50`), "read committed"},
		"with older snapshots": {servicetest.MemberSQL(`8, 50, 50`), "repeatable read"},
	} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `DO $do$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '`+c.isolation+`'); END $do$`)
			e.User(7, 0, 1)
			e.User(8, 0, 1)
			e.User(9, 0, 1)
			e.Group(52, 0)
			e.Group(51, 52)
			e.Group(50, 51)
			e.Member(7, 50)
			e.Exec("main", `DO $do$ BEGIN `+c.owner+`; END $do$`)
			e.PersonalProjects(9, 901)
			e.Exec("main", `INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES (7, 901, 50), (8, 901, 50)`)
			s := e.Service("", e.WithQueue)
			e.Insert(servicetest.JobOf(servicetest.Authorized(7)), servicetest.JobOf(servicetest.Authorized(8)))
			// The first user has left the group, which no other transaction sees yet, when the other one's
			// turn comes.
			e.Held(`SELECT FROM project_authorizations FOR UPDATE`, 2)
			e.Work(s, "delete_user")
			e.Want("main", endedDeletions, "1 cancelled refused SOLE_OWNER_OF_GROUP, 1 completed succeeded")
			e.Want("main", `SELECT count(*) FROM members WHERE source_type = 'Namespace'`, "1")
		})
	}
}

func groupsKeepAnOwnerWhenAllAreToGoAtOnce(e *servicetest.Estate) {
	e.Exec("main", `INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id)
		SELECT i, 'u' || i, 'u' || i, 0, 'active', 6, 1 FROM generate_series(1001, 1040) i`)
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) SELECT i, 'g' || i, 'g' || i, 'Group', 1 FROM generate_series(1, 20) i`)
	// Owners 1001 and 1021 have group 1 and the next, and so on in a circle: each waits for two trees.
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT u, g, 'Namespace', 'GroupMember', 50, g FROM generate_series(1001, 1040) u, LATERAL (VALUES (1 + (u - 1001) % 20), (1 + (u - 1000) % 20)) v (g)`)
	first, second := e.Service("", e.WithQueue), e.Service("", e.WithQueue)
	for id := int64(1001); id <= 1040; id++ {
		e.Insert(servicetest.JobOf(servicetest.Authorized(id)))
	}
	other := e.Queue()
	assert.NoError(e.T, other.Start(servicetest.OnlyKind{Service: second, Kind: "delete_user"}))
	defer func() { assert.NoError(e.T, other.Stop(context.Background())) }()
	e.Work(first, "delete_user")
	e.Want("main", `SELECT count(*) FROM namespaces n WHERE NOT EXISTS (SELECT FROM members m WHERE m.source_id = n.id AND m.source_type = 'Namespace')`, "0")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE attempt > 1 OR state NOT IN ('completed', 'cancelled')`, "0")
}

// coOwner makes user 7 an owner of a group and of an organization, and 8 the other owner of one of
// them.
func coOwner(e *servicetest.Estate, shared string) {
	e.T.Helper()
	e.User(7, 0, 1)
	e.User(8, 0, 1)
	if shared == "group" {
		e.Group(50, 0)
		e.Member(7, 50)
		e.Member(8, 50)
	} else {
		e.Exec("main", `INSERT INTO organization_users (organization_id, user_id, access_level, created_at, updated_at)
			VALUES (1, 7, 50, now(), now()), (1, 8, 50, now(), now())`)
	}
}

// jobElsewhere moves jobs to a queue that no server works.
func jobElsewhere(e *servicetest.Estate, condition string) {
	e.T.Helper()
	e.Exec("main", `UPDATE maintenance.river_job SET queue = 'elsewhere' WHERE `+condition)
}

// workHere works the jobs delete_user that are due, except those that are elsewhere.
func workHere(e *servicetest.Estate, s *service.Service) {
	e.T.Helper()
	q := e.Queue()
	assert.NoError(e.T, q.Start(servicetest.OnlyKind{Service: s, Kind: "delete_user"}))
	e.Eventually("main", `SELECT count(*) FROM maintenance.river_job WHERE queue = 'default' AND finalized_at IS NULL`, "0")
	assert.NoError(e.T, q.Stop(context.Background()))
}

func TestDeleteUser_WhoIsToGoDoesNotCountAsAnOwner(t *testing.T) {
	job := func(state string) string {
		finalized := "NULL"
		if state == "completed" || state == "cancelled" || state == "discarded" {
			finalized = "now()"
		}
		return fmt.Sprintf(`INSERT INTO maintenance.river_job (kind, args, state, attempted_at, finalized_at, max_attempts)
			VALUES ('delete_user', '{"user_id": 8, "reason": "x"}', '%s', now(), %s, 25)`, state, finalized)
	}
	cases := []struct {
		name, sql string
		owner     bool
	}{
		{"removal begun", `INSERT INTO maintenance.user_removals (user_id, reason) VALUES (8, 'x')`, false},
		{"in the ghosts' queue", `INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`, false},
		{"job available", job("available"), false},
		{"job pending", job("pending"), false},
		{"job scheduled", job("scheduled"), false},
		{"job retryable", job("retryable"), false},
		{"job at work that decides", job("running"), true},
		{"job completed", job("completed"), true},
		{"job refused", job("cancelled"), true},
		{"job discarded", job("discarded"), true},
		{"job of another kind", `INSERT INTO maintenance.river_job (kind, args, state, max_attempts) VALUES ('delete_placeholder_user', '{"user_id": 8}', 'scheduled', 25)`, true},
		{"somebody else goes", `INSERT INTO maintenance.user_removals (user_id, reason) VALUES (9, 'x')`, true},
		{"the user's own other job", `INSERT INTO maintenance.river_job (kind, args, state, max_attempts) VALUES ('delete_user', '{"user_id": 7}', 'scheduled', 25)`, true},
		{"who goes marked and queued", `INSERT INTO maintenance.user_removals (user_id, reason) VALUES (8, 'x'); ` + job("available"), false},
		{"blocked, and nothing begun", `UPDATE users SET state = 'blocked' WHERE id = 8`, true},
		{"in the queue of other name", `ALTER TABLE ghost_user_migrations RENAME TO users_ghost_user_migrations;
			INSERT INTO users_ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`, false},
	}
	e := servicetest.NewTokens(servicetest.Parallel(t))
	s := e.Service("", e.WithQueue)
	for _, shared := range []string{"group", "organization"} {
		t.Run(shared, func(t *testing.T) {
			e.InTurn(t)
			coOwner(e, shared)
			for _, c := range cases {
				e.Exec("main", `DELETE FROM maintenance.river_job; DELETE FROM maintenance.user_removals; DELETE FROM ghost_user_migrations; UPDATE users SET state = 'active'`)
				if shared == "group" {
					e.Exec("main", `DELETE FROM members WHERE user_id = 7`)
					e.Member(7, 50)
				}
				e.Insert(servicetest.JobOf(servicetest.Authorized(7)))
				e.Exec("main", c.sql)
				jobElsewhere(e, `args ->> 'reason' IS DISTINCT FROM 'Group was deleted'`)
				workHere(e, s)
				want := "cancelled refused SOLE_OWNER_OF_" + strings.ToUpper(shared)
				if c.owner {
					want = servicetest.DeletionDone
				}
				if got := e.Value("main", `SELECT concat_ws(' ', state, metadata ->> 'outcome', nullif(metadata ->> 'reason', '')) FROM maintenance.river_job
					WHERE args @> '{"user_id": 7, "reason": "Group was deleted"}'`); got != want {
					t.Errorf("%s: job %q, want %q", c.name, got, want)
				}
			}
		})
	}
}

func TestDeleteUser_OfTwoOwnersOneGoesAndOfTheOtherNothingIsTouched(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	s := e.Service("", e.WithQueue)
	for _, shared := range []string{"group", "organization"} {
		for _, at := range []string{"at once", "one after the other"} {
			t.Run(shared+" "+at, func(t *testing.T) {
				e.InTurn(t)
				coOwner(e, shared)
				e.PersonalProjects(7, 701)
				e.PersonalProjects(8, 801)
				e.Insert(servicetest.JobOf(servicetest.Authorized(7)), servicetest.JobOf(servicetest.Authorized(8)))
				if at == "at once" {
					e.Held(`SELECT FROM users FOR UPDATE`, 2)
				} else {
					jobElsewhere(e, `args @> '{"user_id": 8}'`)
					workHere(e, s)
					e.Want("main", remains, "701,801 701,801 701,801 2")
					e.Exec("main", `UPDATE maintenance.river_job SET queue = 'default' WHERE args @> '{"user_id": 8}'`)
				}
				e.Work(s, "delete_user")
				e.Want("main", endedDeletions, "1 cancelled refused SOLE_OWNER_OF_"+strings.ToUpper(shared)+", 1 completed succeeded")
				stays, goes := 7, 8
				if e.Value("main", `SELECT state FROM users WHERE id = 7`) == "blocked" {
					stays, goes = 8, 7
				}
				e.Want("main", remains, fmt.Sprintf("%d01 %d01 %d01 1", stays, stays, stays))
				memberships := map[string]int{"group": 2, "organization": 1}[shared]
				wantUser(e, stays, fmt.Sprintf("active %d 1", memberships))
				wantUser(e, goes, "blocked 0 0 f,0")
				e.Want("main", begun, "")
			})
		}
	}
}

func onlyOwnerOfAGroupStays(e *servicetest.Estate) {
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log))
	// User 7 is an owner of group 50, whose parents are 51 and 52.
	for name, c := range map[string]struct {
		sql  string
		sole bool
	}{
		"nobody else":                          {`PERFORM 1`, true},
		"a second owner":                       {servicetest.MemberSQL(`8, 50, 50`), false},
		"a second owner of the parent":         {servicetest.MemberSQL(`8, 51, 50`), false},
		"a second owner of the root":           {servicetest.MemberSQL(`8, 52, 50`), false},
		"a blocked second owner":               {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE users SET state = 'blocked' WHERE id = 8`, false},
		"a maintainer":                         {servicetest.MemberSQL(`8, 50, 40`), true},
		"an owner of a subgroup":               {`INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES (53, 's', 's', 'Group', 50, 1);` + servicetest.MemberSQL(`8, 53, 50`), true},
		"an owner of the invited group":        {servicetest.MemberSQL(`8, 60, 50`) + `; INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, created_at, updated_at) VALUES (50, 60, 50, now(), now())`, true},
		"an owner who expired today":           {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE members SET expires_at = (now() AT TIME ZONE 'UTC')::date WHERE user_id = 8`, true},
		"an owner who expires tomorrow":        {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE members SET expires_at = (now() AT TIME ZONE 'UTC')::date + 1 WHERE user_id = 8`, false},
		"an owner who only asks":               {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE members SET requested_at = now() WHERE user_id = 8`, true},
		"an owner who is only invited":         {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE members SET invite_token = 'x' WHERE user_id = 8`, true},
		"an owner who is awaited":              {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE members SET state = 1 WHERE user_id = 8`, true},
		"an owner without a state":             {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE members SET state = NULL WHERE user_id = 8`, false},
		"an owner of a project of that id":     {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE members SET source_type = 'Project', type = 'ProjectMember' WHERE user_id = 8`, true},
		"an owner by another type of member":   {servicetest.MemberSQL(`8, 50, 50`) + `; UPDATE members SET type = 'ProjectMember' WHERE user_id = 8`, true},
		"an invited nobody":                    {servicetest.MemberSQL(`NULL::bigint, 50, 50`), true},
		"the user twice, here and above":       {servicetest.MemberSQL(`7, 51, 50`), true},
		"a second owner in a circle of groups": {`UPDATE namespaces SET parent_id = 50 WHERE id = 52;` + servicetest.MemberSQL(`8, 52, 50`), false},
		"a circle of groups":                   {`UPDATE namespaces SET parent_id = 50 WHERE id = 52`, true},
		"traversal_ids lie":                    {`UPDATE namespaces SET traversal_ids = '{60, 50}' WHERE id = 50;` + servicetest.MemberSQL(`8, 60, 50`), true},
		"own membership has expired":           {`UPDATE members SET expires_at = (now() AT TIME ZONE 'UTC')::date`, false},
		"own membership is asked for":          {`UPDATE members SET requested_at = now()`, false},
		"own membership is a maintainer's":     {`UPDATE members SET access_level = 40`, false},
		"namespace is the user's own":          {`UPDATE namespaces SET type = 'User', owner_id = 7 WHERE id = 50`, false},
		"group is gone":                        {`ALTER TABLE members DROP CONSTRAINT members_member_namespace_id_fkey; DELETE FROM namespaces WHERE id = 50`, false},
	} {
		e.Exec("main", `DELETE FROM maintenance.river_job; DELETE FROM ghost_user_migrations; DELETE FROM group_group_links;
			DELETE FROM members; DELETE FROM namespaces; DELETE FROM users WHERE id IN (7, 8)`)
		log.Reset()
		e.User(7, 0, 1)
		e.User(8, 0, 1)
		e.Group(52, 0)
		e.Group(51, 52)
		e.Group(50, 51)
		e.Group(60, 0)
		e.Member(7, 50)
		e.Exec("main", `DO $do$ BEGIN `+c.sql+`; END $do$`)
		want := servicetest.DeletionDone
		if c.sole {
			want = servicetest.DeletionRefused + "SOLE_OWNER_OF_GROUP"
		}
		assert.Equal(e.T, e.Deletion(s, servicetest.Authorized(7)), want, name, "job")
		if c.sole {
			e.Want("main", `SELECT state || (SELECT count(*) FROM ghost_user_migrations) || (SELECT count(*) > 0 FROM members WHERE user_id = 7) FROM users WHERE id = 7`, "active0true")
			assert.That(e.T, strings.Contains(log.String(), `"user_id":7,"deletion_reason":"Group was deleted","groups":[50`),
				"%s: log: %s", name, log)
		}
	}
}

func warningNamesTheFirstTenGroups(e *servicetest.Estate) {
	e.User(7, 0, 1)
	e.User(8, 0, 1)
	// More than a page, and those that matter are after it.
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) SELECT i, 'g' || i, 'g' || i, 'Group', 1 FROM generate_series(1000, 3500) i`)
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT 7, i, 'Namespace', 'GroupMember', 50, i FROM generate_series(1000, 3500) i`)
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT 8, i, 'Namespace', 'GroupMember', 50, i FROM generate_series(1000, 3500) i WHERE i NOT IN (1500, 2000) AND i NOT BETWEEN 3001 AND 3020`)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log))
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionRefused+"SOLE_OWNER_OF_GROUP")
	assert.That(e.T, strings.Contains(log.String(), `"groups":[1500,2000,3001,3002,3003,3004,3005,3006,3007,3008]`), "log: %s", log)
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT 8, i, 'Namespace', 'GroupMember', 50, i FROM generate_series(1000, 3500) i`)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionDone)
	e.Want("main", `SELECT count(*) FROM members WHERE user_id = 7`, "0")
}

func onlyOwnerOfAnOrganizationStays(e *servicetest.Estate) {
	e.User(7, 0, 1)
	e.User(8, 0, 1)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log))
	e.Exec("main", `INSERT INTO organization_users (organization_id, user_id, access_level, created_at, updated_at)
		VALUES (1, 7, 50, now(), now()), (2, 7, 50, now(), now()), (2, 8, 50, now(), now()), (1, 8, 10, now(), now())`)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionRefused+"SOLE_OWNER_OF_ORGANIZATION")
	e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job ORDER BY id DESC LIMIT 1`, "refused: SOLE_OWNER_OF_ORGANIZATION: organizations 1 have no other owner: add another owner")
	assert.That(e.T, strings.Contains(log.String(), `"organizations":[1]`), "log: %s", log)
	e.Want("main", `SELECT state FROM users WHERE id = 7`, "active")
	e.Exec("main", `UPDATE organization_users SET access_level = 50`)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionDone)
	e.Want("main", `SELECT count(*) FROM organization_users WHERE user_id = 7`, "2")
}

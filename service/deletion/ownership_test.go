package deletion_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDeleteUser_OnlyOwnerOfAGroupStays(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
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
		if got := e.Deletion(s, servicetest.Authorized(7)); got != want {
			t.Errorf("%s: job is %q, want %q", name, got, want)
		}
		if c.sole {
			e.Want("main", `SELECT state || (SELECT count(*) FROM ghost_user_migrations) || (SELECT count(*) > 0 FROM members WHERE user_id = 7) FROM users WHERE id = 7`, "active0true")
			if !strings.Contains(log.String(), `"user_id":7,"deletion_reason":"Group was deleted","groups":[50`) {
				t.Errorf("%s: log: %s", name, log)
			}
		}
	}
}

func TestDeleteUser_WarningNamesTheFirstTenGroups(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.User(8, 0, 1)
	// More than a page, and those that matter are behind it.
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) SELECT i, 'g' || i, 'g' || i, 'Group', 1 FROM generate_series(1000, 3500) i`)
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT 7, i, 'Namespace', 'GroupMember', 50, i FROM generate_series(1000, 3500) i`)
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT 8, i, 'Namespace', 'GroupMember', 50, i FROM generate_series(1000, 3500) i WHERE i NOT IN (1500, 2000) AND i NOT BETWEEN 3001 AND 3020`)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log))
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionRefused+"SOLE_OWNER_OF_GROUP")
	if !strings.Contains(log.String(), `"groups":[1500,2000,3001,3002,3003,3004,3005,3006,3007,3008]`) {
		t.Errorf("log: %s", log)
	}
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT 8, i, 'Namespace', 'GroupMember', 50, i FROM generate_series(1000, 3500) i`)
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionDone)
	e.Want("main", `SELECT count(*) FROM members WHERE user_id = 7`, "0")
}

func TestDeleteUser_OnlyOwnerOfAnOrganizationStays(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.User(8, 0, 1)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, servicetest.LogTo(log))
	e.Exec("main", `INSERT INTO organization_users (organization_id, user_id, access_level, created_at, updated_at)
		VALUES (1, 7, 50, now(), now()), (2, 7, 50, now(), now()), (2, 8, 50, now(), now()), (1, 8, 10, now(), now())`)
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionRefused+"SOLE_OWNER_OF_ORGANIZATION")
	e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job ORDER BY id DESC LIMIT 1`, "refused: SOLE_OWNER_OF_ORGANIZATION: organizations [1] have no other owner: give them one")
	if !strings.Contains(log.String(), `"organizations":[1]`) {
		t.Errorf("log: %s", log)
	}
	e.Want("main", `SELECT state FROM users WHERE id = 7`, "active")
	e.Exec("main", `UPDATE organization_users SET access_level = 50`)
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionDone)
	e.Want("main", `SELECT count(*) FROM organization_users WHERE user_id = 7`, "2")
}

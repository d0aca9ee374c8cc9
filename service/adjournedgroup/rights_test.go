package adjournedgroup_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// rightsCase is group 10, marked 15 days ago by U, below group 5; group 7 is for invitations.
type rightsCase struct {
	name  string
	given func(g *servicetest.Groups)
	may   bool
}

const (
	today     = `expires_at = (now() AT TIME ZONE 'UTC')::date`
	tomorrow  = `expires_at = (now() AT TIME ZONE 'UTC')::date + 1`
	unlimited = `expires_at = 'infinity'`
)

func membershipCases() []rightsCase {
	owner := func(more ...string) func(*servicetest.Groups) {
		return func(g *servicetest.Groups) { g.Member(10, 1, 50, more...) }
	}
	return []rightsCase{
		{"direct owner", owner(), true},
		{"owner of the parent only", func(g *servicetest.Groups) { g.Member(5, 1, 50) }, true},
		{"owner of the parent, guest of the group", func(g *servicetest.Groups) { g.Member(5, 1, 50); g.Member(10, 1, 10) }, true},
		{"no membership", func(*servicetest.Groups) {}, false},
		{"maintainer", func(g *servicetest.Groups) { g.Member(10, 1, 40) }, false},
		{"maintainer in two places", func(g *servicetest.Groups) { g.Member(10, 1, 40); g.Member(5, 1, 40) }, false},
		{"access request not yet granted", owner(`requested_at = now()`), false},
		{"invitation not yet accepted", owner(`invite_token = 'x'`), false},
		{"awaiting membership", owner(`state = 1`), false},
		{"membership without state", owner(`state = NULL`), true},
		{"membership that expires today", owner(today), false},
		{"membership that expires tomorrow", owner(tomorrow), true},
		{"membership that expires at infinity", owner(unlimited), true},
		{"member of another type", owner(`type = 'ProjectMember'`), false},
		{"member without type", owner(`type = NULL`), false},
		{"member of a project with that id", owner(`source_type = 'Project'`), false},
		{"owner of a group below", func(g *servicetest.Groups) { g.Group(11, 10, "below"); g.Member(11, 1, 50) }, false},
		{"somebody else is owner", func(g *servicetest.Groups) { g.User(2); g.Member(10, 2, 50) }, false},
		{"owner of a parent that is twice its own ancestor", func(g *servicetest.Groups) {
			g.Exec("main", `UPDATE namespaces SET parent_id = 10 WHERE id = 5`)
			g.Member(5, 1, 50)
		}, true},
		{"wrong traversal_ids", func(g *servicetest.Groups) {
			g.Exec("main", `UPDATE namespaces SET traversal_ids = '{7,10}' WHERE id = 10`)
			g.Member(7, 1, 50)
		}, false},
	}
}

func shareCases() []rightsCase {
	shared := func(group, level, access int, more ...string) func(*servicetest.Groups) {
		return func(g *servicetest.Groups) {
			g.Share(group, 7, level, more...)
			g.Member(7, 1, access)
		}
	}
	return []rightsCase{
		{"owner of a group invited with 50", shared(10, 50, 50), true},
		{"owner of a group invited to the parent with 50", shared(5, 50, 50), true},
		{"owner of a group invited with 40", shared(10, 40, 50), false},
		{"maintainer of a group invited with 50", shared(10, 50, 40), false},
		{"invitation that expires today", shared(10, 50, 50, today), false},
		{"invitation that expires tomorrow", shared(10, 50, 50, tomorrow), true},
		{"owner of the parent of the invited group", func(g *servicetest.Groups) {
			g.Group(6, 0, "above-invited")
			g.Exec("main", `UPDATE namespaces SET parent_id = 6 WHERE id = 7`)
			g.Share(10, 7, 50)
			g.Member(6, 1, 50)
		}, false},
		{"request to join the invited group", func(g *servicetest.Groups) { g.Share(10, 7, 50); g.Member(7, 1, 50, `requested_at = now()`) }, false},
		{"the group is invited elsewhere", func(g *servicetest.Groups) { g.Share(7, 10, 50); g.Member(7, 1, 50) }, false},
	}
}

func userCases() []rightsCase {
	user := func(change string, member bool) func(*servicetest.Groups) {
		return func(g *servicetest.Groups) {
			g.Exec("main", `UPDATE users SET `+change+` WHERE id = 1`)
			if member {
				g.Member(10, 1, 50)
			}
		}
	}
	return []rightsCase{
		{"admin without membership", user(`admin = true`, false), true},
		{"blocked owner", user(`state = 'blocked'`, true), false},
		{"banned owner", user(`state = 'banned'`, true), false},
		{"deactivated owner", user(`state = 'deactivated'`, true), false},
		{"owner without state", user(`state = NULL`, true), false},
		{"blocked admin", user(`state = 'blocked', admin = true`, true), false},
		{"bot that is owner", user(`user_type = 6`, true), true},
		{"bot that is nothing", user(`user_type = 6`, false), false},
		{"ghost", user(`user_type = 5`, false), false},
	}
}

func TestAdjournedGroupDeletion_OnlyWhoMayRemoveAGroupDoes(t *testing.T) {
	t.Parallel()
	cases := append(append(membershipCases(), shareCases()...), userCases()...)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGroups(t)
			g.Group(5, 0, "parent")
			g.Group(7, 0, "invited")
			g.Group(10, 5, "g")
			c.given(g)
			g.Mark(10, 1, 15)
			if c.may {
				g.DryRun("scheduled_jobs=1")
				g.Run("scheduled_jobs=1")
				g.WantJobs("10:1@0")
				g.WantMarked("10")
				return
			}
			g.DryRun("restored_groups=1")
			g.Run("restored_groups=1")
			g.WantJobs()
			g.WantMarked("")
			g.WantLog(1, "group restored", "group_id=10", "user_id=1", "outcome=restored", "reason=RIGHTS_MISSING", "dry_run=false")
		})
	}
}

// All pairs are decided by the same three statements, so the groups of a page must not get each other's rights.
func TestAdjournedGroupDeletion_GroupsOfAPageHaveTheirOwnRights(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.User(2)
	g.User(3, `admin = true`)
	g.User(4, `admin = true`, `state = 'banned'`)
	g.Group(5, 0, "parent")
	for id := 10; id < 16; id++ {
		g.Group(id, 5, string(rune('a'+id-10)))
	}
	g.Member(10, 1, 50)
	g.Member(11, 2, 50)
	for id, user := range map[int]int{10: 1, 11: 1, 12: 2, 13: 3, 14: 4} {
		g.Mark(id, user, 15)
	}
	g.Share(12, 10, 50)
	g.Share(13, 11, 50)
	g.Run("scheduled_jobs=2 restored_groups=3")
	g.WantJobs("10:1@0", "13:3@60")
}

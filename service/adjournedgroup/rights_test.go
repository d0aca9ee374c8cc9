package adjournedgroup_test

import (
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// judged is a group, marked 15 days ago by its user, below a parent; another group is for invitations.
type judged struct {
	*servicetest.Groups
	user, group, parent, invited int
}

// rightsCase is what such a group has besides, and whether its user may remove it.
type rightsCase struct {
	name  string
	given func(g judged)
	may   bool
}

const (
	today     = `expires_at = (now() AT TIME ZONE 'UTC')::date`
	tomorrow  = `expires_at = (now() AT TIME ZONE 'UTC')::date + 1`
	unlimited = `expires_at = 'infinity'`
)

func membershipCases() []rightsCase {
	owner := func(more ...string) func(judged) {
		return func(g judged) { g.Member(g.group, g.user, 50, more...) }
	}
	return []rightsCase{
		{"direct owner", owner(), true},
		{"owner of the parent only", func(g judged) { g.Member(g.parent, g.user, 50) }, true},
		{"owner of the parent, guest of the group", func(g judged) { g.Member(g.parent, g.user, 50); g.Member(g.group, g.user, 10) }, true},
		{"no membership", func(judged) {}, false},
		{"maintainer", func(g judged) { g.Member(g.group, g.user, 40) }, false},
		{"maintainer in two places", func(g judged) { g.Member(g.group, g.user, 40); g.Member(g.parent, g.user, 40) }, false},
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
		{"owner of a group below", func(g judged) { g.Group(g.group+3, g.group, "below"); g.Member(g.group+3, g.user, 50) }, false},
		{"somebody else is owner", func(g judged) { g.User(g.user + 1); g.Member(g.group, g.user+1, 50) }, false},
		{"owner of a parent that is twice its own ancestor", func(g judged) {
			g.Exec("main", `UPDATE namespaces SET parent_id = $1 WHERE id = $2`, g.group, g.parent)
			g.Member(g.parent, g.user, 50)
		}, true},
		{"wrong traversal_ids", func(g judged) {
			g.Exec("main", `UPDATE namespaces SET traversal_ids = ARRAY[$1, $2]::integer[] WHERE id = $2`, g.invited, g.group)
			g.Member(g.invited, g.user, 50)
		}, false},
	}
}

func shareCases() []rightsCase {
	shared := func(above bool, level, access int, more ...string) func(judged) {
		return func(g judged) {
			group := g.group
			if above {
				group = g.parent
			}
			g.Share(group, g.invited, level, more...)
			g.Member(g.invited, g.user, access)
		}
	}
	return []rightsCase{
		{"owner of a group invited with 50", shared(false, 50, 50), true},
		{"owner of a group invited to the parent with 50", shared(true, 50, 50), true},
		{"owner of a group invited with 40", shared(false, 40, 50), false},
		{"maintainer of a group invited with 50", shared(false, 50, 40), false},
		{"invitation that expires today", shared(false, 50, 50, today), false},
		{"invitation that expires tomorrow", shared(false, 50, 50, tomorrow), true},
		{"owner of the parent of the invited group", func(g judged) {
			g.Group(g.group+3, 0, fmt.Sprintf("above-invited-%d", g.group))
			g.Exec("main", `UPDATE namespaces SET parent_id = $1 WHERE id = $2`, g.group+3, g.invited)
			g.Share(g.group, g.invited, 50)
			g.Member(g.group+3, g.user, 50)
		}, false},
		{"request to join the invited group", func(g judged) {
			g.Share(g.group, g.invited, 50)
			g.Member(g.invited, g.user, 50, `requested_at = now()`)
		}, false},
		{"the group is invited elsewhere", func(g judged) { g.Share(g.invited, g.group, 50); g.Member(g.invited, g.user, 50) }, false},
	}
}

func userCases() []rightsCase {
	user := func(change string, member bool) func(judged) {
		return func(g judged) {
			g.Exec("main", `UPDATE users SET `+change+` WHERE id = $1`, g.user)
			if member {
				g.Member(g.group, g.user, 50)
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

// All are decided by one run, so that each has its own rights and not those of the others.
func TestAdjournedGroupDeletion_OnlyWhoMayRemoveAGroupDoes(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	cases := append(append(membershipCases(), shareCases()...), userCases()...)
	may := 0
	of := func(i int) judged { return judged{g, 1000 + 10*i, 1000 + 10*i, 1001 + 10*i, 1002 + 10*i} }
	for i, c := range cases {
		j := of(i)
		g.User(j.user)
		g.Group(j.parent, 0, fmt.Sprintf("parent-%d", i))
		g.Group(j.invited, 0, fmt.Sprintf("invited-%d", i))
		g.Group(j.group, j.parent, "g")
		c.given(j)
		g.Mark(j.group, j.user, 15)
		if c.may {
			may++
		}
	}
	counts := fmt.Sprintf("scheduled_jobs=%d restored_groups=%d", may, len(cases)-may)
	g.DryRun(counts)
	g.Run(counts)
	for i, c := range cases {
		j, want := of(i), "1 1"
		if !c.may {
			want = "0 0"
			g.WantLog(1, "group restored", fmt.Sprintf("group_id=%d ", j.group), fmt.Sprintf("user_id=%d ", j.user),
				"outcome=restored", "reason=RIGHTS_MISSING", "dry_run=false")
		}
		got := g.Value("main", `SELECT (SELECT count(*) FROM maintenance.river_job WHERE args @> jsonb_build_object('group_id', $1::integer, 'user_id', $2::integer))
			|| ' ' || (SELECT count(*) FROM group_deletion_schedules WHERE group_id = $1)`, j.group, j.user)
		if got != want {
			t.Errorf("%s: jobs and marks %s, want %s", c.name, got, want)
		}
	}
}

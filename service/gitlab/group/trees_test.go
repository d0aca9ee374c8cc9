package group_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// plant makes groups, each in a line: "id", or "id<parent" for a subgroup, and then in any order
//
//	owner=USER           a direct owner
//	mark=USER@DAYS       a mark in the legacy store, so many days ago
//	details=USER@DAYS    one in the new store: USER is JSON, or "-" for none
//	state=N, path=PATH   "gID" is the default
//	begun=USER           a removal that has begun
func plant(g *servicetest.Groups, lines ...string) {
	g.T.Helper()
	number := func(text string) int {
		n := assert.Must(strconv.Atoi(text))(g.T)
		return n
	}
	for _, line := range lines {
		fields := strings.Fields(line)
		name, parent, below := strings.Cut(fields[0], "<")
		id, above, path := number(name), 0, "g"+name
		if below {
			above = number(parent)
		}
		of := map[string]string{}
		for _, f := range fields[1:] {
			key, value, _ := strings.Cut(f, "=")
			of[key] = value
		}
		if p := of["path"]; p != "" {
			path = p
		}
		g.Group(id, above, path)
		for key, value := range of {
			user, days, _ := strings.Cut(value, "@")
			switch key {
			case "owner":
				g.Member(id, number(user), 50)
			case "mark":
				g.Mark(id, number(user), number(days))
			case "details":
				metadata := `{"deletion_scheduled_by_user_id": ` + user + `}`
				if user == "-" {
					metadata = "{}"
				}
				g.MarkDetails(id, number(days), metadata)
			case "state":
				g.Exec("main", `UPDATE namespaces SET state = $2::integer WHERE id = $1`, id, number(value))
			case "begun":
				g.Exec("main", fmt.Sprintf(`INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (%d, %s)`, id, value))
			}
		}
	}
}

// refusing makes a trigger refuse rows of a table that meet a condition.
func refusing(event, table, condition string) string {
	return `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
		CREATE TRIGGER refuse BEFORE ` + event + ` ON ` + table + ` FOR EACH ROW WHEN (` + condition + `) EXECUTE FUNCTION refuse()`
}

// treeCase is what a run makes of trees: its counts, the jobs, who is marked then, and how often lines with some words,
// separated by "; ", are in the log. next are the counts of the run after it, when nothing is refused any more.
type treeCase struct {
	name, sql, counts, marked, next string
	trees, jobs                     []string
	log                             map[string]int
	// backlog is what the status shows before the first run, left the removals that are under way after it.
	backlog, left string
}

func coverCases() []treeCase {
	return []treeCase{
		{
			name:   "a child goes with its parent",
			trees:  []string{"10 owner=1 mark=1@15", "11<10 mark=1@15", "12<11 mark=1@15", "13 owner=1 mark=1@15"},
			counts: "scheduled_jobs=2", jobs: []string{"10:1@0", "13:1@20"}, marked: "10 11 12 13",
		},
		{
			// The ids of transferred groups say nothing about who is above.
			name: "a child with the lower id goes with its parent",
			trees: []string{
				"30 owner=1 mark=1@15", "20<30", "10<20 mark=1@15", "40<30 mark=1@15", "15 owner=1 mark=1@15", "35 owner=1 mark=1@15",
			},
			counts: "scheduled_jobs=3", jobs: []string{"15:1@0", "30:1@20", "35:1@40"}, marked: "10 15 30 35 40",
		},
		{
			// 10 is restored, 20 held, 30 fails, 40 is not due. A child of each is due by itself. 50 is not
			// marked, 60 above it is.
			name: "a parent that stays covers nobody",
			trees: []string{
				"10 mark=1@15", "11<10 owner=2 mark=2@15", "20 details=null@15", "21<20 owner=2 mark=2@15", "30 mark=1@15", "31<30 owner=2 mark=2@15",
				"40 owner=2 mark=2@3", "41<40 owner=2 mark=2@15", "60 owner=2 mark=2@15", "50<60", "51<50 mark=2@15", "61<60 owner=2 mark=2@15",
			},
			sql:    refusing("UPDATE", "namespaces", "OLD.id = 30"),
			counts: "scheduled_jobs=5 restored_groups=1 held_groups=1 failed_groups=1", marked: "11 20 21 30 31 40 41 51 60 61",
			jobs: []string{"11:2@20", "21:2@60", "31:2@100", "41:2@120", "60:2@140"}, next: "restored_groups=1 held_groups=1",
		},
		{
			// A group whose job could not be queued covers no other: the child gets its own, and the
			// positions are those of the remainder.
			name:   "a child is handled when its parent's job cannot be queued",
			trees:  []string{"30 owner=1 mark=1@15", "20<30 mark=1@15", "10<20 mark=1@15", "40 owner=1 mark=1@15"},
			sql:    refusing("INSERT", "maintenance.river_job", "NEW.args ->> 'group_id' = '30'"),
			counts: "scheduled_jobs=2 failed_groups=1", jobs: []string{"20:1@0", "40:1@40"}, marked: "10 20 30 40",
			log: map[string]int{"group failed; level=ERROR; group_id=30": 1}, next: "scheduled_jobs=1",
		},
		{
			name:   "a cycle of due groups ends the walk",
			trees:  []string{"10 owner=1 mark=1@15", "11<10 owner=1 mark=1@15", "12 owner=1 mark=1@15"},
			sql:    `UPDATE namespaces SET parent_id = 11 WHERE id = 10; UPDATE namespaces SET parent_id = 12 WHERE id = 12`,
			counts: "scheduled_jobs=2", jobs: []string{"10:1@0", "12:1@20"}, marked: "10 11 12",
		},
		{
			name: "a removal that has begun is destruction, whatever became of mark and user",
			trees: []string{
				"10 state=4 mark=1@15 begun=1", "11 begun=1", "12 mark=1@-5 begun=99", "13 begun=NULL", "14<13 mark=1@15", "15 owner=1 mark=1@15",
			},
			sql:    `INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (99, 1)`,
			counts: "scheduled_jobs=5", jobs: []string{"10:1@0", "11:1@20", "12:1@40", "13:@60", "15:1@80"}, marked: "10 12 14 15",
			left: "10 11 12 13", // 99 is gone
		},
	}
}

func dueCases() []treeCase {
	return []treeCase{
		{
			// 12 is restored, 13 held, the schedule of 14 is lost, and the restoring of 15 fails at its commit.
			name:  "a restoring that fails at its commit is known to a dry run",
			trees: []string{"10 owner=1 mark=1@15", "12 mark=1@15", "13 details=-@15", "14 path=lost-deletion_scheduled-14", "15 mark=1@15"},
			sql: `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
				CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON group_deletion_schedules INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.group_id = 15)
				EXECUTE FUNCTION refuse()`,
			counts: "scheduled_jobs=1 restored_groups=1 held_groups=2 failed_groups=1", jobs: []string{"10:1@0"}, marked: "10 13 15",
			next: "restored_groups=1 held_groups=2",
		},
		{
			name: "the backlog has the marks of both stores",
			trees: []string{
				"10 owner=1 mark=1@20", "11 owner=1 mark=1@14", "12 owner=1 mark=1@13", "13 owner=1 details=1@30", "14 mark=1@40 details=1@3",
				"15 details=99@3", "16 begun=NULL",
			},
			backlog: "7 4 3 0 30", counts: "scheduled_jobs=4", jobs: []string{"10:1@0", "11:1@20", "13:1@40", "16:@60"}, marked: "10 11 12 13 14 15",
			left: "16",
		},
		{
			name:   "groups whose time is not up are left alone",
			trees:  []string{"9", "11 owner=1 mark=1@2", "13 owner=1 mark=1@13", "14 owner=1 mark=1@14", "15 owner=1 mark=1@-3"},
			sql:    `UPDATE namespace_details SET state_metadata = '{"deletion_scheduled_by_user_id": 1}' WHERE namespace_id = 9`,
			counts: "scheduled_jobs=1", jobs: []string{"14:1@0"}, marked: "11 13 14 15",
		},
		{
			name:   "a position does not depend on the outcome of others",
			trees:  []string{"10 mark=1@15", "11 details=99@15", "12 owner=1 mark=1@15"},
			counts: "scheduled_jobs=1 restored_groups=1 held_groups=1", jobs: []string{"12:1@40"}, marked: "11 12",
			next: "held_groups=1",
		},
		{
			name:   "the user may be a number or digits",
			trees:  []string{"10 owner=1 details=1@15", `11 owner=1 details="1"@15`, `12 owner=1 details="001"@15`, "13 owner=1 details=1.0@15"},
			counts: "scheduled_jobs=4", jobs: []string{"10:1@0", "11:1@20", "12:1@40", "13:1@60"}, marked: "10 11 12 13",
		},
		{
			name: "of two stores the later date counts, and a disagreement is logged",
			trees: []string{
				"10 owner=1 mark=1@20 details=1@3", "11 owner=1 mark=1@3 details=1@20", "12 owner=2 mark=1@20 details=2@15",
				"13 owner=1 mark=1@20 details=99@20", "14 owner=2 mark=2@15 details=2@15", `15 owner=1 mark=1@15 details="abc"@15`,
				"16 mark=1@20 details=1@15",
			},
			counts: "scheduled_jobs=4 restored_groups=1", jobs: []string{"12:2@0", "13:1@20", "14:2@40", "15:1@60"}, marked: "10 11 12 13 14 15",
			log: map[string]int{
				"group has two different deletion schedules; level=WARN; group_id=10": 1, "group has two different deletion schedules; group_id=11": 1,
				"group has two different deletion schedules; group_id=12; schedule_user_id=1; details_user_id=2": 1, "group has two different deletion schedules; group_id=13": 1,
				"group has two different deletion schedules; group_id=14": 0, "group has two different deletion schedules; group_id=15": 1, "group has two different deletion schedules; group_id=16": 1,
			},
		},
		{
			name:  "the schedule of what is no group is ignored",
			trees: []string{"16"}, sql: `UPDATE namespaces SET type = 'User'; UPDATE users SET admin = true;
				INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (16, 1, '2020-01-01')`,
			marked: "16", backlog: "0 0 0 0 -", log: map[string]int{"namespace is not a group, deletion schedule ignored; level=WARN; group_id=16": 1},
		},
		{
			// All pairs are decided by the same three statements, so the groups of a page must not get each other's rights.
			name: "the groups of a page have their own rights",
			trees: []string{
				"5", "10<5 owner=1 mark=1@15", "11<5 owner=2 mark=1@15", "12<5 mark=2@15", "13<5 mark=3@15", "14<5 mark=4@15", "15<5",
			},
			sql: `UPDATE users SET admin = true WHERE id IN (3, 4); UPDATE users SET state = 'banned' WHERE id = 4;
				INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, created_at, updated_at)
				VALUES (12, 10, 50, now(), now()), (13, 11, 50, now(), now())`,
			counts: "scheduled_jobs=2 restored_groups=3", jobs: []string{"10:1@0", "13:3@60"}, marked: "10 13",
		},
	}
}

func TestAdjournedGroupDeletion_DecidesAboutEachGroupOfATree(t *testing.T) {
	g := servicetest.NewGroups(servicetest.Parallel(t))
	for _, c := range append(coverCases(), dueCases()...) {
		t.Run(c.name, func(t *testing.T) {
			g.InTurn(t)
			for user := 2; user < 5; user++ {
				g.User(user)
			}
			plant(g, c.trees...)
			if c.sql != "" {
				g.Exec("main", c.sql)
			}
			if c.backlog != "" {
				wantBacklog(g, c.backlog)
			}
			g.DryRun(c.counts)
			g.Want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
			g.Run(c.counts)
			g.WantJobs(c.jobs...)
			g.WantMarked(c.marked)
			g.Want("main", `SELECT coalesce(string_agg(group_id::text, ' ' ORDER BY group_id), '') FROM maintenance.group_removals`, c.left)
			for words, times := range c.log {
				// The dry run has said it, too.
				g.WantLog(2*times, strings.Split(words, "; ")...)
			}
			// Jobs that wait cover as well as new ones. Groups that were held or have failed are checked
			// again.
			g.Exec("main", `DROP FUNCTION IF EXISTS refuse CASCADE`)
			g.Run(c.next)
		})
	}
}

// judged is a group, marked 15 days ago by its user, below a parent. Another group is for
// invitations.
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
	g := servicetest.NewGroups(servicetest.Parallel(t))
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
		assert.That(t, got == want, "%s: jobs and marks %s, want %s", c.name, got, want)
	}
}

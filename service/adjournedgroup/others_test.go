package adjournedgroup_test

import (
	"context"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// What others remove at the same time.

func TestDestroyGroup_MembersThatSomebodyElseRemovesAtTheSameTimeAreNoError(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	g.Project(1, 10, "p")
	g.Exec("main", `INSERT INTO members (source_type, source_id, type, user_id, access_level, member_namespace_id) VALUES ('Project', 1, 'ProjectMember', 1, 30, 10001)`)
	g.Run("scheduled_jobs=1")
	g.Held(`DELETE FROM members WHERE source_type = 'Project'`, 1)
	g.Attempt("completed succeeded")
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "members": 0})
	g.Want("main", `SELECT coalesce(array_length(errors, 1), 0) FROM maintenance.river_job WHERE kind = 'destroy_group'`, "0")
}

func TestDeleteUser_MembershipsThatSomebodyElseRemovesAtTheSameTimeHideNoOthers(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) SELECT i, 'g' || i, 'g' || i, 'Group', 1 FROM generate_series(1000, 2500) i`)
	e.Exec("main", `INSERT INTO members (id, user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT i, 7, i, 'Namespace', 'GroupMember', 30, i FROM generate_series(1000, 2500) i`)
	s := e.Service("", e.WithQueue)
	// A whole page of them, in the order in which they are found.
	e.Held(`DELETE FROM members WHERE id < 2000`, 1)
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionDone)
	e.Want("main", `SELECT count(*) FROM members WHERE user_id = 7`, "0")
}

func TestDestroyGroup_WaitsWhileTheJobOfASubgroupRemovesThat(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	g.Group(11, 10, "sub")
	g.Group(12, 11, "below")
	g.Project(1, 12, "p")
	g.Content(1)
	g.QueueJob(10, 1)
	ctx := context.Background()
	step := servicetest.Must(g.Connect("main").Begin(ctx))(t)
	// A step of another job that removes the group at the bottom.
	servicetest.Must(step.Exec(ctx, `SELECT pg_advisory_xact_lock(12)`))(t)
	g.Attempt("scheduled")
	g.Want("main", `SELECT concat_ws(' ', attempt, metadata ->> 'snoozes', round(extract(epoch FROM scheduled_at - now()) / 30)) FROM maintenance.river_job`, "0 1 1")
	g.WantRows(map[string]int{"projects": 1, "members": 2})
	servicetest.NoError(t, step.Commit(ctx))
	g.Attempt("completed succeeded")
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0})
}

func TestDestroyGroup_JobsOfAGroupAndOfOneBelowItNeverFailForEachOther(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	g.Group(11, 10, "sub")
	g.Mark(11, 1, 16)
	for project := 1; project <= 4; project++ {
		g.Project(project, 11, "p"+string(rune('a'+project)))
		g.Content(project)
	}
	g.QueueJob(11, 1)
	g.QueueJob(10, 1)
	for n := 0; g.Value("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'destroy_group' AND state NOT IN ('completed', 'cancelled')`) != "0" && n < 20; n++ {
		g.Work(g.Service, "destroy_group")
	}
	g.Want("main", `SELECT string_agg(concat_ws(' ', state, coalesce(array_length(errors, 1), 0)), ', ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "completed 0, completed 0")
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "members": 0, "maintenance.group_removals": 0})
}

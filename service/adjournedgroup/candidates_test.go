package adjournedgroup_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestAdjournedGroupDeletion_DryRunNamesTheGroupsAndWhatBecomesOfThem(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	// 10 goes with its child 11; U has no right to 20; of 30 nobody knows who wanted it; a job for 40
	// waits; 50 looks marked and is not.
	g.Owned(10, 15)
	g.Group(11, 10, "child")
	g.Mark(11, 1, 15)
	g.Group(20, 0, "restored")
	g.Mark(20, 1, 15)
	g.Group(30, 0, "held")
	g.MarkDetails(30, 15, `{"deletion_scheduled_by_user_id": null}`)
	g.Owned(40, 15)
	g.QueueJob(40, 1)
	g.Group(50, 0, "lost-deletion_scheduled-50")
	g.Group(60, 0, "untouched")
	r := g.DryRun("scheduled_jobs=1 restored_groups=1 held_groups=2")
	servicetest.WantCandidates(t, r,
		"group 10 g10 queue",
		"group 11 g10/child delete with a group above it",
		"group 20 restored restore RIGHTS_MISSING",
		"group 30 held hold DELETING_USER_MISSING",
		"group 40 g40 queue JOB_WAITING: a job for it waits already",
		"group 50 lost-deletion_scheduled-50 hold SCHEDULE_LOST",
	)
	digest := r.CandidatesDigest
	g.Exec("main", `UPDATE routes SET path = 'renamed' WHERE source_id = 20`)
	if again := g.DryRun("scheduled_jobs=1 restored_groups=1 held_groups=2"); again.CandidatesDigest != digest ||
		again.Candidates[2].Name != "renamed" {
		t.Errorf("only a name has changed: %+v", again)
	}
	g.Member(20, 1, 50)
	if again := g.DryRun("scheduled_jobs=2 held_groups=2"); again.CandidatesDigest == digest {
		t.Errorf("20 goes now, and the digest is the same: %+v", again.Candidates)
	}
}

func TestAdjournedGroupDeletion_ARunHeldToAPlanTouchesNoOtherGroup(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	// Its owner gets the right back: it was to be restored, and is not destroyed instead.
	g.Group(20, 0, "g20")
	g.Mark(20, 1, 15)
	g.Group(30, 0, "g30")
	g.Exec("main", `CREATE TABLE gates AS SELECT 1 AS n`)
	g.Gate("main", "gates")
	g.Exec("main", `CREATE TRIGGER gate BEFORE INSERT ON maintenance.river_job FOR EACH ROW EXECUTE FUNCTION wait_at_gate()`)
	r := servicetest.RunPlanned(g.Estate, g.Service, servicetest.AdjournedGroups, func() {
		g.Owned(40, 15)
		g.Mark(30, 1, 15)
		g.Member(20, 1, 50)
	})
	servicetest.WantCounts(t, r, "scheduled_jobs=1")
	g.Want("main", `SELECT string_agg(args ->> 'group_id', ' ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "10")
	g.Want("main", `SELECT string_agg(group_id::text, ' ' ORDER BY group_id) FROM group_deletion_schedules`, "10 20 30 40")
}

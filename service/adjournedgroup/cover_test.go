package adjournedgroup_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestAdjournedGroupDeletion_ChildGoesWithItsParent(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Group(10, 0, "parent")
	g.Group(11, 10, "child")
	g.Group(12, 11, "grandchild")
	g.Owned(13, 15)
	g.Member(10, 1, 50)
	for _, id := range []int{10, 11, 12} {
		g.Mark(id, 1, 15)
	}
	g.Run("scheduled_jobs=2")
	g.WantJobs("10:1@0", "13:1@20")
	// The parent's job that waits covers as well as a new one.
	g.Run("")
	g.Want("main", `SELECT count(*) FROM maintenance.river_job`, "2")
}

// The ids of transferred groups say nothing about who is above.
func TestAdjournedGroupDeletion_ChildWithTheLowerIdGoesWithItsParent(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Group(30, 0, "parent")
	g.Group(20, 30, "between")
	g.Group(10, 20, "child")
	g.Group(40, 30, "other")
	g.Owned(15, 15)
	g.Owned(35, 15)
	g.Member(30, 1, 50)
	for _, id := range []int{10, 30, 40} {
		g.Mark(id, 1, 15)
	}
	g.DryRun("scheduled_jobs=3")
	g.Run("scheduled_jobs=3")
	g.WantJobs("15:1@0", "30:1@20", "35:1@40")
}

func TestAdjournedGroupDeletion_ParentThatStaysCoversNobody(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.User(2)
	// 10 is restored, 20 held, 30 fails, 40 is not due; a child of each is due by itself. 50 is not marked, 60 above it is.
	for id := 10; id <= 60; id += 10 {
		g.Group(id, 0, string(rune('a'+id/10)))
		if id != 50 {
			g.Group(id+1, id, "child")
			g.Member(id+1, 2, 50)
			g.Mark(id+1, 2, 15)
		}
	}
	g.Mark(10, 1, 15)
	g.MarkDetails(20, 15, `{"deletion_scheduled_by_user_id": null}`)
	g.Mark(30, 1, 15)
	g.Mark(40, 2, 3)
	g.Member(40, 2, 50)
	g.Mark(60, 2, 15)
	g.Member(60, 2, 50)
	g.Exec("main", `UPDATE namespaces SET parent_id = 60 WHERE id = 50`)
	g.Group(51, 50, "grandchild")
	g.Mark(51, 2, 15)
	g.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$`)
	g.Exec("main", `CREATE TRIGGER refuse BEFORE UPDATE ON namespaces FOR EACH ROW WHEN (OLD.id = 30) EXECUTE FUNCTION refuse()`)
	g.Run("scheduled_jobs=5 restored_groups=1 held_groups=1 failed_groups=1")
	g.WantJobs("11:2@20", "21:2@60", "31:2@100", "41:2@120", "60:2@140")
}

// Whose job could not be queued covers nobody: the child gets its own, and the positions are those of what is left.
func TestAdjournedGroupDeletion_ChildIsHandledWhenItsParentsJobCannotBeQueued(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Group(30, 0, "parent")
	g.Group(20, 30, "child")
	g.Group(10, 20, "grandchild")
	g.Owned(40, 15)
	g.Member(30, 1, 50)
	for _, id := range []int{10, 20, 30} {
		g.Mark(id, 1, 15)
	}
	g.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$`)
	g.Exec("main", `CREATE TRIGGER refuse BEFORE INSERT ON maintenance.river_job FOR EACH ROW WHEN (NEW.args ->> 'group_id' = '30') EXECUTE FUNCTION refuse()`)
	g.Run("scheduled_jobs=2 failed_groups=1")
	g.WantJobs("20:1@0", "40:1@40")
	g.WantLog(1, "group failed", "level=ERROR", "group_id=30")
	g.Exec("main", `DROP TRIGGER refuse ON maintenance.river_job`)
	g.Run("scheduled_jobs=1")
}

func TestAdjournedGroupDeletion_CycleOfDueGroupsEndsTheWalk(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Group(10, 0, "a")
	g.Group(11, 10, "b")
	g.Exec("main", `UPDATE namespaces SET parent_id = 11 WHERE id = 10`)
	g.Group(12, 0, "self")
	g.Exec("main", `UPDATE namespaces SET parent_id = 12 WHERE id = 12`)
	for _, id := range []int{10, 11, 12} {
		g.Member(id, 1, 50)
		g.Mark(id, 1, 15)
	}
	g.Run("scheduled_jobs=2")
	g.WantJobs("10:1@0", "12:1@20")
}

func TestAdjournedGroupDeletion_BegunRemovalIsDestructionWhateverBecameOfMarkAndUser(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	for id := 10; id < 14; id++ {
		g.Group(id, 0, string(rune('a'+id-10)))
	}
	g.Group(14, 13, "child")
	g.Owned(15, 15)
	g.Mark(10, 1, 15)
	g.Mark(14, 1, 15)
	g.Exec("main", `INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (10, 1), (11, 1), (12, 99), (13, NULL), (99, 1)`)
	g.Exec("main", `UPDATE namespaces SET state = 4 WHERE id = 10`)
	g.Mark(12, 1, -5)
	g.DryRun("scheduled_jobs=5")
	g.Want("main", `SELECT count(*) FROM maintenance.group_removals`, "5")
	g.Run("scheduled_jobs=5")
	g.WantJobs("10:1@0", "11:1@20", "12:1@40", "13:@60", "15:1@80")
	// 99 is gone.
	g.Want("main", `SELECT string_agg(group_id::text, ' ' ORDER BY group_id) FROM maintenance.group_removals`, "10 11 12 13")
}

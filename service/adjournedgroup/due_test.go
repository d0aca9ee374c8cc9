package adjournedgroup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/adjournedgroup"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestAdjournedGroupDeletion_RemovalsStartAnIntervalApartInOrderOfIds(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	for i := range 101 {
		g.Owned(300-i, 15+i%3)
	}
	g.Run("scheduled_jobs=101")
	g.Want("main", `SELECT string_agg(format('%s@%s', args ->> 'group_id', extract(epoch FROM j.scheduled_at - r.started_at)::integer), ' ' ORDER BY j.scheduled_at)
		FROM maintenance.river_job j, maintenance.runs r WHERE args ->> 'group_id' IN ('200', '201', '299', '300')`, "200@0 201@20 299@1980 300@2000")
}

func TestAdjournedGroupDeletion_IntervalAndBatchSizeAreConfigured(t *testing.T) {
	g := servicetest.NewGroups(parallel(t), func(c *service.Config) {
		w := service.Settings[adjournedgroup.Config](c)
		w.BatchSize, w.Interval = 1, 7_500_000_000
	})
	for _, id := range []int{12, 10, 11} {
		g.Owned(id, 15)
	}
	g.Run("scheduled_jobs=3")
	g.WantJobs("10:1@0", "11:1@7.5", "12:1@15")
}

func TestAdjournedGroupDeletion_FollowsTheSettingOfTheDay(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = 30`)
	g.Owned(10, 8)
	g.Run("")
	g.Exec("main", `INSERT INTO application_settings (id, deletion_adjourned_period) VALUES (7, 7)`)
	g.Run("scheduled_jobs=1")
	g.WantJobs("10:1@0")
	g.Owned(11, 0)
	g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = 0 WHERE id = 7`)
	g.Run("scheduled_jobs=1")
	g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = 2147483647 WHERE id = 7`)
	g.Run("")
}

func TestAdjournedGroupDeletion_InvalidSettingFailsTheRunAndTouchesNothing(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	g.Exec("main", `ALTER TABLE application_settings ALTER deletion_adjourned_period DROP NOT NULL`)
	plant(g, "10 owner=1 mark=1@40", "11 mark=1@40")
	g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = -1`)
	wantBacklog(g, "2 0 2 0 40")
	servicetest.WantDetail(t, servicetest.StatusOf(t, g.Service, servicetest.AdjournedGroups), "deletion_adjourned_period")
	for _, value := range []string{"-1", "NULL"} {
		g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = `+value)
		r := servicetest.Must(g.Service.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.AdjournedGroups}))(t)
		servicetest.WantState(t, r, "failed")
		if r.Reason != "SETTING_INVALID" {
			t.Errorf("reason %q, want SETTING_INVALID", r.Reason)
		}
		servicetest.WantCounts(t, r, "")
		servicetest.WantError(t, errors.New(r.Error), "deletion_adjourned_period", value)
		st, err := g.Service.Status(context.Background(), servicetest.AdjournedGroups)
		if err != nil || strings.Count(st[0].ConditionDetail, r.Error) != 1 || !strings.HasPrefix(st[0].ConditionDetail, "last run failed: SETTING_INVALID ") {
			t.Errorf("detail %q, %v, want the error once", st[0].ConditionDetail, err)
		}
	}
	g.WantJobs()
	g.WantMarked("10 11")
}

func TestAdjournedGroupDeletion_QueuesTheRemovalOfADueGroupAndNoSecondJobWhileOneWaits(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	g.Owned(10, 15)
	g.Run("scheduled_jobs=1")
	g.WantJobs("10:1@0")
	g.Want("main", `SELECT max_attempts::text || ' ' || (metadata ->> 'run_id' = r.id::text) FROM maintenance.river_job, maintenance.runs r`, "25 true")
	g.WantMarked("10")
	g.WantLog(1, "group goes", "group_id=10", "namespace_id=10", "user_id=1", "outcome=destruction")
	for _, state := range []string{"scheduled", "available", "pending", "retryable", "running"} {
		g.Exec("main", `UPDATE maintenance.river_job SET state = $1::text::maintenance.river_job_state`, state)
		g.DryRun("")
		g.Run("")
	}
	g.Exec("main", `UPDATE maintenance.river_job SET state = 'discarded', finalized_at = now()`)
	g.DryRun("scheduled_jobs=1")
	g.Run("scheduled_jobs=1")
	g.WantJobs("10:1@0")
}

// The days between the mark and the cut-off, and the day on which a membership ends, are UTC dates, whatever the time zones
// of the process and of the database, and whatever the time of the day.
func TestAdjournedGroupDeletion_DatesAreThoseOfUTC(t *testing.T) {
	t.Parallel()
	for _, zone := range servicetest.Zones() {
		t.Run(zone, func(t *testing.T) {
			g := servicetest.NewGroups(parallel(t))
			plant(g, "10 owner=1 details=1@0", "11 owner=1 details=1@0", "12 owner=1 details=1@0", "13 owner=1 details=1@0",
				"14 owner=1 mark=1@14", "15 owner=1 mark=1@13", "16 mark=1@14", "17 mark=1@14")
			g.Member(16, 1, 50, today)
			g.Member(17, 1, 50, tomorrow)
			midnight := `((now() AT TIME ZONE 'UTC')::date::timestamp AT TIME ZONE 'UTC')`
			for id, at := range map[int]string{
				10: midnight + ` - interval '14 days'`, 11: midnight + ` - interval '13 days 1 microsecond'`,
				12: midnight + ` - interval '13 days'`, 13: `'infinity'`,
			} {
				g.Exec("main", fmt.Sprintf(`UPDATE namespace_details SET deletion_scheduled_at = %s WHERE namespace_id = %d`, at, id))
			}
			servicetest.WantCounts(t, g.RunIn(zone, servicetest.AdjournedGroups), "scheduled_jobs=4 restored_groups=1")
			g.WantJobs("10:1@0", "11:1@20", "14:1@40", "17:1@80")
			g.WantMarked("10 11 12 13 14 15 17")
		})
	}
}

// All groups of a page have the same date, their ids have gaps, and groups that are not due lie between them.
func TestAdjournedGroupDeletion_WalksOverAllPages(t *testing.T) {
	g := servicetest.NewGroups(parallel(t), servicetest.With(func(c *adjournedgroup.Config) { c.BatchSize = 3 }))
	for _, n := range servicetest.PageEdges(3) {
		g.Exec("main", `DELETE FROM group_deletion_schedules; DELETE FROM members; DELETE FROM routes; DELETE FROM namespaces; DELETE FROM maintenance.river_job`)
		for i := range n {
			id := 10 + 7*i
			if plant(g, fmt.Sprintf("%d owner=1 mark=1@15", id), fmt.Sprintf("%d owner=1 mark=1@2", id+3)); i%2 == 1 {
				g.Exec("main", `DELETE FROM group_deletion_schedules WHERE group_id = $1`, id)
				g.MarkDetails(id, 15, `{"deletion_scheduled_by_user_id": 1}`)
			}
		}
		counts := fmt.Sprintf("scheduled_jobs=%d", n)
		g.DryRun(counts)
		g.Run(counts)
		g.Want("main", `SELECT count(DISTINCT args ->> 'group_id') FROM maintenance.river_job`, fmt.Sprint(n))
	}
}

// Candidates are read by the ten thousand, groups without a mark by five thousand: 10,000 marks are of no group, and a
// group is due behind them.
func TestAdjournedGroupDeletion_WalksOverAllCandidatesAndAllGroups(t *testing.T) {
	g := servicetest.NewGroups(parallel(t), servicetest.With(func(c *adjournedgroup.Config) { c.BatchSize = 10_000 }))
	g.Exec("main", `ALTER TABLE namespaces DISABLE TRIGGER USER`)
	g.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id, state)
		SELECT 10 * i, 'n' || i, 'n' || i, 'Group', 1, CASE WHEN i IN (1, 5000, 5001, 10000, 10001) THEN 2 ELSE 0 END FROM generate_series(1, 10001) i;
		INSERT INTO namespaces (id, name, path, type, organization_id) SELECT 10 * i + 1, 'p' || i, 'p' || i, 'Project', 1 FROM generate_series(1, 10000) i;
		INSERT INTO namespace_details (namespace_id, deletion_scheduled_at, state_metadata, created_at, updated_at)
		SELECT 10 * i + 1, now() - interval '20 days', '{}', now(), now() FROM generate_series(1, 10000) i;
		ALTER TABLE namespaces ENABLE TRIGGER USER`)
	plant(g, "200000 owner=1 mark=1@15")
	g.Run("held_groups=5 scheduled_jobs=1")
	wantBacklog(g, "1 1 0 5 15")
}

func TestAdjournedGroupDeletion_WithoutTheSettingItIsThirtyDays(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	for i, change := range []string{
		`DELETE FROM application_settings`, `ALTER TABLE application_settings DROP deletion_adjourned_period`, `DROP TABLE application_settings`,
	} {
		g.Exec("main", change)
		plant(g, fmt.Sprintf("%d owner=1 mark=1@29", 10+i), fmt.Sprintf("%d owner=1 mark=1@30", 20+i))
		g.Run("scheduled_jobs=1")
		g.WantJobs(fmt.Sprintf("%d:1@0", 20+i))
		g.Exec("main", `DELETE FROM group_deletion_schedules; DELETE FROM maintenance.river_job`)
	}
}

func TestAdjournedGroupDeletion_DryRunNamesTheGroupsAndWhatBecomesOfThem(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	// 10 goes with its child 11; U has no right to 20; of 30 nobody knows who wanted it; a job for 40
	// waits; 50 looks marked and is not.
	plant(g, "10 owner=1 mark=1@15", "11<10 path=child mark=1@15", "20 path=restored mark=1@15", "30 path=held details=null@15", "40 owner=1 mark=1@15",
		"50 path=lost-deletion_scheduled-50", "60 path=untouched")
	g.QueueJob(40, 1)
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
	g := servicetest.NewGroups(parallel(t))
	// The owner of 20 gets the right back: it was to be restored, and is not destroyed instead.
	plant(g, "10 owner=1 mark=1@15", "20 mark=1@15", "30")
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

func TestAdjournedGroupDeletion_DemoHasSomethingToDoAndSomethingToLeaveAlone(t *testing.T) {
	g := servicetest.NewDemoGroups(parallel(t))
	wantBacklog(g, "8 5 3 2 40")
	const want = "scheduled_jobs=2 restored_groups=2 held_groups=2"
	g.DryRun(want)
	g.Run(want)
	g.WantJobs("8:28@0", "26:31@80")
	g.Want("main", `SELECT string_agg(path || state, ' ' ORDER BY id) FROM namespaces WHERE id IN (12, 14)`, "team-120 team-141")
	g.WantLog(2, "Group held", "group_id=13")
	g.WantLog(2, "Deletion schedule lost", "group_id=25")

	groups := g.Value("main", `SELECT count(*) FROM namespaces WHERE type = 'Group'`)
	g.Attempt("completed succeeded")
	g.Want("main", `SELECT string_agg(state::text, ' ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "completed completed")
	g.Want("main", `SELECT count(*) FROM namespaces WHERE id IN (8, 18, 26, 33)`, "0")
	g.Want("main", `SELECT `+groups+` - count(*) FROM namespaces WHERE type = 'Group'`, "4")
	g.Want("main", `SELECT 120 - count(*) FROM projects`, "12")
	for _, orphans := range []string{
		`issues i WHERE project_id IS NOT NULL AND NOT EXISTS (SELECT FROM projects p WHERE p.id = i.project_id)`,
		`routes r WHERE source_type = 'Project' AND NOT EXISTS (SELECT FROM projects p WHERE p.id = r.source_id)`,
		`members m WHERE source_type = 'Project' AND NOT EXISTS (SELECT FROM projects p WHERE p.id = m.source_id)`,
		`members m WHERE source_type = 'Namespace' AND NOT EXISTS (SELECT FROM namespaces n WHERE n.id = m.source_id)`,
		`notes n WHERE noteable_type = 'Issue' AND NOT EXISTS (SELECT FROM issues i WHERE i.id = n.noteable_id)`,
		`award_emoji e WHERE awardable_type = 'Note' AND NOT EXISTS (SELECT FROM notes n WHERE n.id = e.awardable_id)`,
	} {
		g.Want("main", `SELECT count(*) FROM `+orphans, "0")
	}
	g.Run("held_groups=2")
}

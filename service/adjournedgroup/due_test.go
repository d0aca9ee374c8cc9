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

func TestAdjournedGroupDeletion_QueuesTheRemovalOfADueGroup(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	g.Run("scheduled_jobs=1")
	g.WantJobs("10:1@0")
	g.Want("main", `SELECT max_attempts::text || ' ' || (metadata ->> 'run_id' = r.id::text) FROM maintenance.river_job, maintenance.runs r`, "25 true")
	g.WantMarked("10")
	g.WantLog(1, "group goes", "group_id=10", "namespace_id=10", "user_id=1", "outcome=destruction")
}

func TestAdjournedGroupDeletion_LeavesGroupsWhoseTimeIsNotUp(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Group(9, 0, "unmarked")
	for id, days := range map[int]int{11: 2, 13: 13, 14: 14, 15: -3} {
		g.Owned(id, days)
	}
	g.Exec("main", `UPDATE namespace_details SET state_metadata = '{"deletion_scheduled_by_user_id": 1}' WHERE namespace_id = 9`)
	g.Run("scheduled_jobs=1")
	g.WantJobs("14:1@0")
	g.WantMarked("11 13 14 15")
}

func TestAdjournedGroupDeletion_RemovalsStartAnIntervalApartInOrderOfIds(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	for i := range 101 {
		g.Owned(300-i, 15+i%3)
	}
	g.Run("scheduled_jobs=101")
	g.Want("main", `SELECT string_agg(format('%s@%s', args ->> 'group_id', extract(epoch FROM j.scheduled_at - r.started_at)::integer), ' ' ORDER BY j.scheduled_at)
		FROM maintenance.river_job j, maintenance.runs r WHERE args ->> 'group_id' IN ('200', '201', '299', '300')`, "200@0 201@20 299@1980 300@2000")
}

func TestAdjournedGroupDeletion_IntervalAndBatchSizeAreConfigured(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t, func(c *service.Config) {
		w := service.Settings[adjournedgroup.Config](c)
		w.BatchSize, w.Interval = 1, 7_500_000_000
	})
	for _, id := range []int{12, 10, 11} {
		g.Owned(id, 15)
	}
	g.Run("scheduled_jobs=3")
	g.WantJobs("10:1@0", "11:1@7.5", "12:1@15")
}

func TestAdjournedGroupDeletion_PositionDoesNotDependOnTheOutcome(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Group(10, 0, "restored")
	g.Mark(10, 1, 15)
	g.Group(11, 0, "held")
	g.MarkDetails(11, 15, `{"deletion_scheduled_by_user_id": 99}`)
	g.Owned(12, 15)
	g.Run("scheduled_jobs=1 restored_groups=1 held_groups=1")
	g.WantJobs("12:1@40")
}

// The days between the mark and the cut-off are UTC dates, whatever the zone of the connection or the time of the day.
func TestAdjournedGroupDeletion_UTCDateOfTheTimestampCounts(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Pacific/Kiritimati", "Pacific/Pago_Pago"} {
		g := servicetest.NewGroups(t)
		g.Exec("main", fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET timezone = %%L', current_database(), '%s'); END $$`, zone))
		for id := 10; id < 14; id++ {
			g.Group(id, 0, fmt.Sprintf("g%d", id))
			g.Member(id, 1, 50)
			g.MarkDetails(id, 0, `{"deletion_scheduled_by_user_id": 1}`)
		}
		midnight := `((now() AT TIME ZONE 'UTC')::date::timestamp AT TIME ZONE 'UTC')`
		for id, at := range map[int]string{
			10: midnight + ` - interval '14 days'`, 11: midnight + ` - interval '13 days 1 microsecond'`,
			12: midnight + ` - interval '13 days'`, 13: `'infinity'`,
		} {
			g.Exec("main", fmt.Sprintf(`UPDATE namespace_details SET deletion_scheduled_at = %s WHERE namespace_id = %d`, at, id))
		}
		g.Run("scheduled_jobs=2")
		g.WantJobs("10:1@0", "11:1@20")
	}
}

func TestAdjournedGroupDeletion_FollowsTheSettingOfTheDay(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
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

func TestAdjournedGroupDeletion_WithoutTheSettingItIsThirtyDays(t *testing.T) {
	t.Parallel()
	for _, change := range []string{
		`DELETE FROM application_settings`, `ALTER TABLE application_settings DROP deletion_adjourned_period`, `DROP TABLE application_settings`,
	} {
		g := servicetest.NewGroups(t)
		g.Exec("main", change)
		g.Owned(10, 29)
		g.Owned(11, 30)
		g.Run("scheduled_jobs=1")
		g.WantJobs("11:1@0")
	}
}

func TestAdjournedGroupDeletion_InvalidSettingFailsTheRunAndTouchesNothing(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Exec("main", `ALTER TABLE application_settings ALTER deletion_adjourned_period DROP NOT NULL`)
	g.Owned(10, 40)
	g.Group(11, 0, "restored")
	g.Mark(11, 1, 40)
	for _, value := range []string{"-1", "NULL"} {
		g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = `+value)
		r, err := g.Service.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.AdjournedGroups})
		if err != nil {
			t.Fatal(err)
		}
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

func TestAdjournedGroupDeletion_QueuesNoSecondJobWhileOneWaits(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	g.Run("scheduled_jobs=1")
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

func TestAdjournedGroupDeletion_LeaseHeldElsewhereMeansSkipped(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	g.Exec("main", `INSERT INTO maintenance.leases VALUES ('adjourned_group_deletion', 'other', 1, now(), now(), now() + interval '70 seconds')`)
	if _, err := g.Service.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.AdjournedGroups}); err == nil {
		t.Error("the run started")
	}
	g.WantJobs()
	g.DryRun("scheduled_jobs=1")
}

package group_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/group"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestAdjournedGroupDeletion_Due(t *testing.T) {
	servicetest.Turns(t, servicetest.NewGroups(servicetest.Parallel(t)),
		removalsStartAnIntervalApartInOrderOfIDs, intervalAndBatchSizeAreConfigured,
		queuesTheRemovalOfADueGroupAndNoSecondJobWhileOneWaits, walksOverAllPages,
		dryRunNamesTheGroupsAndWhatBecomesOfThem, aRunHeldToAPlanTouchesNoOtherGroup,
		runThatHasLostItsLeaseChangesNothingMore, invalidSettingFailsTheRunAndTouchesNothing,
		followsTheSettingOfTheDay,
	)
}

func TestAdjournedGroupDeletion_Holds(t *testing.T) {
	servicetest.Turns(t, servicetest.NewGroups(servicetest.Parallel(t)),
		holdsGroupsWhoseUserIsMissing, holdsWhatIsBeingDeletedByAUserWithoutRights,
		holdsGroupsWhoseScheduleIsLost, walksOverAllCandidatesAndAllGroups,
	)
}

func TestAdjournedGroupDeletion_Tables(t *testing.T) {
	servicetest.Turns(t, servicetest.NewGroups(servicetest.Parallel(t)),
		tableThatMustNotBeReadIsNamed, worksWithoutStates, isNotConfiguredWithoutItsTables,
		worksWithEitherStore,
	)
}

func removalsStartAnIntervalApartInOrderOfIDs(g *servicetest.Groups) {
	for i := range 101 {
		g.Owned(300-i, 15+i%3)
	}
	g.Run("scheduled_jobs=101")
	g.Want("main", `SELECT string_agg(format('%s@%s', args ->> 'group_id', extract(epoch FROM j.scheduled_at - r.started_at)::integer), ' ' ORDER BY j.scheduled_at)
		FROM maintenance.river_job j, maintenance.runs r WHERE args ->> 'group_id' IN ('200', '201', '299', '300')`, "200@0 201@20 299@1980 300@2000")
}

func intervalAndBatchSizeAreConfigured(g *servicetest.Groups) {
	g.Serve(func(c *service.Config) {
		w := service.Settings[group.Config](c)
		w.BatchSize, w.Interval = 1, 7_500_000_000
	})
	for _, id := range []int{12, 10, 11} {
		g.Owned(id, 15)
	}
	g.Run("scheduled_jobs=3")
	g.WantJobs("10:1@0", "11:1@7.5", "12:1@15")
}

func followsTheSettingOfTheDay(g *servicetest.Groups) {
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
	// Without the setting it is thirty days.
	g.Exec("main", `DELETE FROM group_deletion_schedules; DELETE FROM maintenance.river_job`)
	for i, change := range []string{
		`DELETE FROM application_settings`, `ALTER TABLE application_settings DROP deletion_adjourned_period`, `DROP TABLE application_settings`,
	} {
		g.Exec("main", change)
		plant(g, fmt.Sprintf("%d owner=1 mark=1@29", 20+i), fmt.Sprintf("%d owner=1 mark=1@30", 30+i))
		g.Run("scheduled_jobs=1")
		g.WantJobs(fmt.Sprintf("%d:1@0", 30+i))
		g.Exec("main", `DELETE FROM group_deletion_schedules; DELETE FROM maintenance.river_job`)
	}
}

func invalidSettingFailsTheRunAndTouchesNothing(g *servicetest.Groups) {
	g.Exec("main", `ALTER TABLE application_settings ALTER deletion_adjourned_period DROP NOT NULL`)
	plant(g, "10 owner=1 mark=1@40", "11 mark=1@40")
	g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = -1`)
	wantBacklog(g, "2 0 2 0 40")
	servicetest.WantDetail(g.T, servicetest.StatusOf(g.T, g.Service, servicetest.AdjournedGroups), "deletion_adjourned_period")
	for _, value := range []string{"-1", "NULL"} {
		g.Exec("main", `UPDATE application_settings SET deletion_adjourned_period = `+value)
		r := assert.Must(g.Service.RunBatch(context.Background(), run.Request{Worker: servicetest.AdjournedGroups}))(g.T)
		servicetest.WantState(g.T, r, "failed")
		assert.That(g.T, r.Reason == "SETTING_INVALID", "reason %q, want SETTING_INVALID", r.Reason)
		servicetest.WantCounts(g.T, r, "")
		servicetest.WantError(g.T, errors.New(r.Error), "deletion_adjourned_period", value)
		st, err := g.Service.Status(context.Background(), servicetest.AdjournedGroups)
		if err != nil || strings.Count(st[0].ConditionDetail, r.Error) != 1 || !strings.HasPrefix(st[0].ConditionDetail, "last run failed: SETTING_INVALID; ") {
			g.T.Errorf("detail %q, %v, want the error once", st[0].ConditionDetail, err)
		}
	}
	g.WantJobs()
	g.WantMarked("10 11")
}

func queuesTheRemovalOfADueGroupAndNoSecondJobWhileOneWaits(g *servicetest.Groups) {
	g.Owned(10, 15)
	g.Run("scheduled_jobs=1")
	g.WantJobs("10:1@0")
	g.Want("main", `SELECT max_attempts::text || ' ' || (metadata ->> 'run_id' = r.id::text) FROM maintenance.river_job, maintenance.runs r`, "25 true")
	g.WantMarked("10")
	g.WantLog(1, "group removal queued", "group_id=10", "namespace_id=10", "user_id=1", "outcome=destruction")
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

// The days between the mark and the cut-off and the day on which a membership ends are UTC dates.
// The time zones of the process and of the database do not matter, nor the time of the day.
func TestAdjournedGroupDeletion_DatesAreThoseOfUTC(t *testing.T) {
	g := servicetest.NewGroups(servicetest.Parallel(t))
	for _, zone := range servicetest.Zones() {
		t.Run(zone, func(t *testing.T) {
			g.InTurn(t)
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
func walksOverAllPages(g *servicetest.Groups) {
	g.Serve(servicetest.With(func(c *group.Config) { c.BatchSize = 3 }))
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

// Candidates are read by the ten thousand, groups without a mark by five thousand. 10,000 marks are
// of no group, and a due group follows them.
func walksOverAllCandidatesAndAllGroups(g *servicetest.Groups) {
	g.Serve(servicetest.With(func(c *group.Config) { c.BatchSize = 10_000 }))
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

func dryRunNamesTheGroupsAndWhatBecomesOfThem(g *servicetest.Groups) {
	// 10 goes with its child 11. U has no right to 20. The requester of 30 is unknown. A job for 40
	// waits. 50 looks marked and is not.
	plant(g, "10 owner=1 mark=1@15", "11<10 path=child mark=1@15", "20 path=restored mark=1@15", "30 path=held details=null@15",
		"40 owner=1 mark=1@15",
		"50 path=lost-deletion_scheduled-50", "60 path=untouched")
	g.QueueJob(40, 1)
	r := g.DryRun("scheduled_jobs=1 restored_groups=1 held_groups=2")
	servicetest.WantCandidates(g.T, r,
		"group 10 g10 queue",
		"group 11 g10/child delete together with an ancestor group",
		"group 20 restored restore RIGHTS_MISSING",
		"group 30 held hold DELETING_USER_MISSING",
		"group 40 g40 queue JOB_WAITING: a job for this candidate is already waiting",
		"group 50 lost-deletion_scheduled-50 hold SCHEDULE_LOST",
	)
	digest := r.CandidatesDigest
	g.Exec("main", `UPDATE routes SET path = 'renamed' WHERE source_id = 20`)
	again := g.DryRun("scheduled_jobs=1 restored_groups=1 held_groups=2")
	assert.That(g.T, again.CandidatesDigest == digest && again.Candidates[2].Name == "renamed",
		"only a name has changed: %+v", again)
	g.Member(20, 1, 50)
	if again := g.DryRun("scheduled_jobs=2 held_groups=2"); again.CandidatesDigest == digest {
		g.T.Errorf("20 goes now, and the digest is the same: %+v", again.Candidates)
	}
}

func aRunHeldToAPlanTouchesNoOtherGroup(g *servicetest.Groups) {
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
	servicetest.WantCounts(g.T, r, "scheduled_jobs=1")
	g.Want("main", `SELECT string_agg(args ->> 'group_id', ' ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "10")
	g.Want("main", `SELECT string_agg(group_id::text, ' ' ORDER BY group_id) FROM group_deletion_schedules`, "10 20 30 40")
}

// backlog is "pending due deferred dead age of the oldest in days".
func wantBacklog(g *servicetest.Groups, want string) {
	g.T.Helper()
	st := assert.Must(g.Service.Status(context.Background(), servicetest.AdjournedGroups))(g.T)
	b := st[0].Backlog
	days := "-"
	if !b.OldestAt.IsZero() {
		days = g.Value("main", `SELECT (now() AT TIME ZONE 'UTC')::date - ($1::timestamptz AT TIME ZONE 'UTC')::date`, b.OldestAt)
	}
	got := fmt.Sprintf("%d %d %d %d %s", b.Pending, b.Due, b.Deferred, b.Dead, days)
	assert.That(g.T, got == want, "backlog %s, want %s", got, want)
}

func holdsGroupsWhoseUserIsMissing(g *servicetest.Groups) {
	for i, user := range []string{`99`, `"abc"`, `1.5`, `{"id": 1}`, `null`, `true`, `"1 "`, `-1`, `"99999999999999999999999"`, `1e300`, `[1]`} {
		g.Group(10+i, 0, fmt.Sprintf("g%d", i))
		g.MarkDetails(10+i, 15, `{"deletion_scheduled_by_user_id": `+user+`}`)
	}
	plant(g, "30 details=-@15")
	wantBacklog(g, "0 0 0 12 -")
	for range 2 {
		g.Run("held_groups=12")
	}
	g.WantLog(24, "group needs attention", "level=WARN", "outcome=held", "reason=DELETING_USER_MISSING")
	g.WantLog(2, "group needs attention", "group_id=30", "user_id=<nil>")
	g.WantJobs()
	g.Want("main", `SELECT count(*) FROM namespace_details WHERE deletion_scheduled_at IS NOT NULL`, "12")
	wantBacklog(g, "0 0 0 12 -")
}

func holdsWhatIsBeingDeletedByAUserWithoutRights(g *servicetest.Groups) {
	plant(g, "10 mark=1@15 state=4")
	r := g.Run("held_groups=1")
	want := "1 group held: 1 DELETION_IN_PROGRESS (see the warnings in the log)"
	assert.That(g.T, r.Reason == want, "reason %q, want %q", r.Reason, want)
	servicetest.WantDetail(g.T, servicetest.StatusOf(g.T, g.Service, servicetest.AdjournedGroups), "last run "+
		"("+r.ID+"): 1 group held: 1 DELETION_IN_PROGRESS")
	g.WantMarked("10")
	g.WantLog(1, "group needs attention", "group_id=10", "reason=DELETION_IN_PROGRESS")
	g.QueueJob(10, 1)
	g.Attempt("cancelled refused DELETION_IN_PROGRESS")
	g.WantMarked("10")
	g.WantLog(1, "job finished", "level=WARN", "reason=DELETION_IN_PROGRESS")
	g.Member(10, 1, 50)
	g.Run("scheduled_jobs=1")
}

func holdsGroupsWhoseScheduleIsLost(g *servicetest.Groups) {
	g.User(2)
	plant(g, "10 path=a-deletion_scheduled-10 mark=2@15", "11 path=b state=2", "12 path=c-deletion_scheduled-11",
		"13 path=d-deletion_scheduled-13x",
		"14 path=e-deleted-14", "15 owner=1 mark=1@15")
	g.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id, state) VALUES (16, 'u', 'u-deletion_scheduled-16', 'User', 1, 2)`)
	g.Exec("main", `DELETE FROM users WHERE id = 2`)
	wantBacklog(g, "1 1 0 2 15")
	g.DryRun("held_groups=2 scheduled_jobs=1")
	g.Run("held_groups=2 scheduled_jobs=1")
	g.WantJobs("15:1@0")
	g.WantLog(2, "Deletion schedule lost", "level=WARN", "group_id=10", "reason=SCHEDULE_LOST")
	g.WantLog(2, "Deletion schedule lost", "group_id=11")
	g.WantLog(4, "Deletion schedule lost")
	g.Want("main", `SELECT path FROM namespaces WHERE id = 10`, "a-deletion_scheduled-10")
}

func worksWithoutStates(g *servicetest.Groups) {
	g.Run("")
	g.Exec("main", `ALTER TABLE namespaces RENAME state TO away`)
	plant(g, "10 owner=1 mark=1@15", "11 path=restored-deletion_scheduled-11 mark=1@15", "12 path=lost-deletion_scheduled-12")
	g.Run("scheduled_jobs=1 restored_groups=1 held_groups=1")
	g.Run("held_groups=1")
	g.WantLog(1, "schema changed, missing", "level=INFO")
	g.Want("main", `SELECT path FROM namespaces WHERE id = 11`, "restored")
}

func isNotConfiguredWithoutItsTables(g *servicetest.Groups) {
	for missing, schema := range map[string]string{
		"group_group_links": `ALTER TABLE group_group_links RENAME TO away`,
		"routes":            `ALTER TABLE routes RENAME TO away`,
		"column users.state of database main has type integer, which cannot hold 'active'": servicetest.StateIsANumber,
		"group_deletion_schedules": `ALTER TABLE group_deletion_schedules RENAME TO away;
			ALTER TABLE namespace_details RENAME deletion_scheduled_at TO away`,
	} {
		g.T.Run(missing, func(t *testing.T) {
			g.InTurn(t)
			g.Exec("main", schema)
			_, err := g.Service.RunBatch(context.Background(), run.Request{Worker: servicetest.AdjournedGroups})
			servicetest.WantError(t, err, missing)
			servicetest.WantConditionOf(t, g.Service, servicetest.AdjournedGroups, status.ConditionNotConfigured, missing)
		})
	}
}

func tableThatMustNotBeReadIsNamed(g *servicetest.Groups) {
	role := g.Role(`GRANT ALL ON ALL TABLES IN SCHEMA public, maintenance TO {role};
		GRANT USAGE ON SCHEMA public, maintenance TO {role}; REVOKE ALL ON group_group_links FROM {role}`)
	d := servicetest.Open(g.T, g.URLAs(role, "x"))
	_, err := d.Groups.GroupStores(context.Background())
	servicetest.WantError(g.T, err, "group_group_links")
	assert.That(g.T, errors.Is(err, dberr.ErrForbidden), "got %v", err)
}

func worksWithEitherStore(g *servicetest.Groups) {
	g.Exec("main", `ALTER TABLE group_deletion_schedules RENAME TO away`)
	plant(g, "10 owner=1 details=1@15", "11 details=1@15")
	g.Run("scheduled_jobs=1 restored_groups=1")
	wantBacklog(g, "1 1 0 0 15")
	g.Exec("main", `ALTER TABLE away RENAME TO group_deletion_schedules; UPDATE namespace_details SET deletion_scheduled_at = NULL; DELETE FROM maintenance.river_job`)
	for i, schema := range []string{
		`ALTER TABLE namespace_details DROP deletion_scheduled_at`, `ALTER TABLE namespace_details DROP state_metadata`,
		`DROP TRIGGER namespaces_insert_details ON namespaces; DROP TABLE namespace_details`,
	} {
		g.Exec("main", schema)
		id := 22 + 2*i
		plant(g, fmt.Sprintf("%d owner=1 mark=1@15", id-1), fmt.Sprintf("%d path=restored-%[1]d-deletion_scheduled-%[1]d mark=1@15 state=2", id))
		g.Run("scheduled_jobs=1 restored_groups=1")
		g.Want("main", fmt.Sprintf(`SELECT path || ' ' || state FROM namespaces WHERE id = %d`, id), fmt.Sprintf("restored-%d 0", id))
		wantBacklog(g, "1 1 0 0 15")
		g.Exec("main", `DELETE FROM group_deletion_schedules; DELETE FROM maintenance.river_job`)
	}
}

package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// backlog is "pending due deferred dead age of the oldest in days".
func (g *groupEstate) wantBacklog(want string) {
	g.t.Helper()
	st, err := g.service.Status(context.Background(), groupWorker)
	if err != nil {
		g.t.Fatal(err)
	}
	b := st[0].Backlog
	days := "-"
	if !b.OldestAt.IsZero() {
		days = g.value("main", `SELECT (now() AT TIME ZONE 'UTC')::date - ($1::timestamptz AT TIME ZONE 'UTC')::date`, b.OldestAt)
	}
	if got := fmt.Sprintf("%d %d %d %d %s", b.Pending, b.Due, b.Deferred, b.Dead, days); got != want {
		g.t.Errorf("backlog %s, want %s", got, want)
	}
}

func TestAdjournedGroupDeletion_HoldsGroupsWhoseUserIsMissing(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	for i, user := range []string{`99`, `"abc"`, `1.5`, `{"id": 1}`, `null`, `true`, `"1 "`, `-1`, `"99999999999999999999999"`, `1e300`, `[1]`} {
		g.group(10+i, 0, fmt.Sprintf("g%d", i))
		g.markDetails(10+i, 15, `{"deletion_scheduled_by_user_id": `+user+`}`)
	}
	g.group(30, 0, "none")
	g.markDetails(30, 15, `{}`)
	g.wantBacklog("0 0 0 12 -")
	for range 2 {
		g.run("held_groups=12")
	}
	g.wantLog(24, "Group held", "level=WARN", "outcome=held", "reason=DELETING_USER_MISSING")
	g.wantLog(2, "Group held", "group_id=30", "user_id=<nil>")
	g.wantJobs()
	g.want("main", `SELECT count(*) FROM namespace_details WHERE deletion_scheduled_at IS NOT NULL`, "12")
	g.wantBacklog("0 0 0 12 -")
}

func TestAdjournedGroupDeletion_UserMayBeANumberOrDigits(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	for i, user := range []string{`1`, `"1"`, `"001"`, `1.0`} {
		g.group(10+i, 0, fmt.Sprintf("g%d", i))
		g.member(10+i, 1, 50)
		g.markDetails(10+i, 15, `{"deletion_scheduled_by_user_id": `+user+`}`)
	}
	g.run("scheduled_jobs=4")
	g.wantJobs("10:1@0", "11:1@20", "12:1@40", "13:1@60")
}

func TestAdjournedGroupDeletion_HoldsWhatIsBeingDeletedByAUserWithoutRights(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.group(10, 0, "g")
	g.mark(10, 1, 15)
	g.exec("main", `UPDATE namespaces SET state = 4`)
	r := g.run("held_groups=1")
	if want := "groups are held (DELETION_IN_PROGRESS: 1), the log names them"; r.Reason != want {
		t.Errorf("reason %q, want %q", r.Reason, want)
	}
	wantDetail(t, statusOf(t, g.service, groupWorker), "of the last run, "+r.ID+": groups are held (DELETION_IN_PROGRESS: 1)")
	g.wantMarked("10")
	g.wantLog(1, "Group held", "group_id=10", "reason=DELETION_IN_PROGRESS")
	g.member(10, 1, 50)
	g.run("scheduled_jobs=1")
}

func TestAdjournedGroupDeletion_HoldsGroupsWhoseScheduleIsLost(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.user(2)
	g.group(10, 0, "a-deletion_scheduled-10")
	g.mark(10, 2, 15)
	g.group(11, 0, "b")
	g.exec("main", `UPDATE namespaces SET state = 2 WHERE id = 11`)
	g.group(12, 0, "c-deletion_scheduled-11")
	g.group(13, 0, "d-deletion_scheduled-13x")
	g.group(14, 0, "e-deleted-14")
	g.owned(15, 15)
	g.exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id, state) VALUES (16, 'u', 'u-deletion_scheduled-16', 'User', 1, 2)`)
	g.exec("main", `DELETE FROM users WHERE id = 2`)
	g.wantBacklog("1 1 0 2 15")
	g.dryRun("held_groups=2 scheduled_jobs=1")
	g.run("held_groups=2 scheduled_jobs=1")
	g.wantJobs("15:1@0")
	g.wantLog(2, "Deletion schedule lost", "level=WARN", "group_id=10", "reason=SCHEDULE_LOST")
	g.wantLog(2, "Deletion schedule lost", "group_id=11")
	g.wantLog(4, "Deletion schedule lost")
	g.want("main", `SELECT path FROM namespaces WHERE id = 10`, "a-deletion_scheduled-10")
}

func TestAdjournedGroupDeletion_LooksAtEveryGroupForLostMarks(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.exec("main", `ALTER TABLE namespaces DISABLE TRIGGER USER`)
	g.exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id, state)
		SELECT 10 * i, 'n' || i, 'n' || i, 'Group', 1, CASE WHEN i IN (1, 5000, 5001, 12000) THEN 2 ELSE 0 END FROM generate_series(1, 12000) i`)
	g.run("held_groups=4")
	g.wantBacklog("0 0 0 4 -")
}

func TestAdjournedGroupDeletion_BacklogCountsMarksOfBothStores(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.owned(10, 20)
	g.owned(11, 14)
	g.owned(12, 13)
	g.group(13, 0, "new")
	g.markDetails(13, 30, `{"deletion_scheduled_by_user_id": 1}`)
	g.group(14, 0, "both")
	g.mark(14, 1, 40)
	g.markDetails(14, 3, `{"deletion_scheduled_by_user_id": 1}`)
	g.group(15, 0, "unknown, not due")
	g.markDetails(15, 3, `{"deletion_scheduled_by_user_id": 99}`)
	g.group(16, 0, "begun")
	g.exec("main", `INSERT INTO maintenance.group_removals (group_id) VALUES (16)`)
	g.wantBacklog("7 4 3 0 30")
}

func TestAdjournedGroupDeletion_LaterDateCountsAndDisagreementIsSaid(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.user(2)
	g.user(3)
	for id, c := range map[int]struct {
		legacyUser, legacyDays, days int
		json                         string
	}{
		10: {1, 20, 3, `1`}, 11: {1, 3, 20, `1`}, 12: {1, 20, 15, `2`}, 13: {1, 20, 20, `99`}, 14: {2, 15, 15, `2`}, 15: {1, 15, 15, `"abc"`},
	} {
		g.group(id, 0, fmt.Sprintf("g%d", id))
		g.member(id, 1, 50)
		g.member(id, 2, 50)
		g.mark(id, c.legacyUser, c.legacyDays)
		g.markDetails(id, c.days, `{"deletion_scheduled_by_user_id": `+c.json+`}`)
	}
	g.run("scheduled_jobs=4")
	g.wantJobs("12:2@0", "13:1@20", "14:2@40", "15:1@60")
	for id, times := range map[string]int{"10": 1, "11": 1, "12": 1, "13": 1, "14": 0, "15": 1} {
		g.wantLog(times, "Deletion stores disagree", "level=WARN", "group_id="+id)
	}
	g.wantLog(1, "Deletion stores disagree", "group_id=12", "schedule_user_id=1", "details_user_id=2")
}

func TestAdjournedGroupDeletion_DisagreementIsSaidOfAGroupThatTheRunRestores(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.group(10, 0, "g")
	g.mark(10, 1, 20)
	g.markDetails(10, 15, `{"deletion_scheduled_by_user_id": 1}`)
	g.run("restored_groups=1")
	g.wantMarked("")
	g.wantLog(1, "Deletion stores disagree", "level=WARN", "group_id=10")
}

func TestAdjournedGroupDeletion_ScheduleOfWhatIsNoGroupIsIgnored(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) VALUES (16, 'u', 'u', 'User', 1)`)
	g.exec("main", `UPDATE users SET admin = true`)
	g.mark(16, 1, 15)
	g.run("")
	g.wantLog(1, "Deletion schedule of a namespace that is no group", "level=WARN", "group_id=16")
	g.wantBacklog("0 0 0 0 -")
	g.wantMarked("16")
}

func TestAdjournedGroupDeletion_DryRunDecidesAsARealRunAndChangesNothing(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.user(2)
	g.owned(10, 15)
	g.group(11, 0, "restored-deletion_scheduled-11")
	g.mark(11, 1, 15)
	g.group(12, 0, "held")
	g.markDetails(12, 15, `{}`)
	g.group(13, 10, "covered")
	g.mark(13, 1, 15)
	g.group(14, 0, "lost-deletion_scheduled-14")
	g.group(15, 0, "fails-deletion_scheduled-15")
	g.mark(15, 1, 15)
	g.group(16, 0, "cannot be queued")
	g.member(16, 1, 50)
	g.mark(16, 1, 15)
	g.group(17, 16, "child")
	g.mark(17, 1, 15)
	g.exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	g.exec("main", `CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON group_deletion_schedules INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.group_id = 15) EXECUTE FUNCTION refuse()`)
	g.exec("main", `CREATE TRIGGER refuse BEFORE INSERT ON maintenance.river_job FOR EACH ROW WHEN (NEW.args ->> 'group_id' = '16') EXECUTE FUNCTION refuse()`)
	const all = `SELECT md5(string_agg(x, '' ORDER BY x)) FROM (SELECT n::text AS x FROM namespaces n UNION ALL SELECT r::text FROM routes r
		UNION ALL SELECT s::text FROM group_deletion_schedules s UNION ALL SELECT d::text FROM namespace_details d UNION ALL SELECT j::text FROM maintenance.river_job j) x`
	before := g.value("main", all)
	g.dryRun("scheduled_jobs=2 restored_groups=1 held_groups=2 failed_groups=2")
	g.want("main", all, before)
	g.want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	g.run("scheduled_jobs=2 restored_groups=1 held_groups=2 failed_groups=2")
	g.wantJobs("10:1@0", "17:1@100")
}

func TestAdjournedGroupDeletion_WorksWithEitherStore(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		`ALTER TABLE namespace_details DROP deletion_scheduled_at, DROP state_metadata`, `ALTER TABLE namespace_details DROP deletion_scheduled_at`,
		`DROP TRIGGER namespaces_insert_details ON namespaces; DROP TABLE namespace_details`,
	} {
		g := newGroups(t)
		g.exec("main", schema)
		g.owned(10, 15)
		g.group(11, 0, "restored-deletion_scheduled-11")
		g.mark(11, 1, 15)
		g.exec("main", `UPDATE namespaces SET state = 2 WHERE id = 11`)
		g.run("scheduled_jobs=1 restored_groups=1")
		g.want("main", `SELECT path || state FROM namespaces WHERE id = 11`, "restored0")
		g.wantBacklog("1 1 0 0 15")
	}
	g := newGroups(t)
	g.exec("main", `DROP TABLE group_deletion_schedules`)
	for _, id := range []int{10, 11} {
		g.group(id, 0, fmt.Sprintf("g%d", id))
		g.markDetails(id, 15, `{"deletion_scheduled_by_user_id": 1}`)
	}
	g.member(10, 1, 50)
	g.run("scheduled_jobs=1 restored_groups=1")
	g.wantBacklog("1 1 0 0 15")
}

func TestAdjournedGroupDeletion_WorksWithoutStates(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.exec("main", `ALTER TABLE namespaces DROP state`)
	g.owned(10, 15)
	g.group(11, 0, "restored-deletion_scheduled-11")
	g.mark(11, 1, 15)
	g.group(12, 0, "lost-deletion_scheduled-12")
	g.run("scheduled_jobs=1 restored_groups=1 held_groups=1")
	g.want("main", `SELECT path FROM namespaces WHERE id = 11`, "restored")
}

func TestAdjournedGroupDeletion_IsNotConfiguredWithoutItsTables(t *testing.T) {
	t.Parallel()
	for missing, schema := range map[string]string{
		"group_group_links": `DROP TABLE group_group_links`, "routes": `DROP TABLE routes`,
		"users.state of database main has the type integer, which has no 'active'": stateIsANumber,
		"group_deletion_schedules": `DROP TABLE group_deletion_schedules; ALTER TABLE namespace_details DROP deletion_scheduled_at`,
	} {
		g := newGroups(t)
		g.exec("main", schema)
		_, err := g.service.RunBatch(context.Background(), service.RunRequest{Worker: groupWorker})
		wantSays(t, err, missing)
		st, err := g.service.Status(context.Background(), groupWorker)
		if err != nil || st[0].Condition != service.ConditionNotConfigured {
			t.Errorf("%v, %v", st, err)
		}
	}
}

func TestAdjournedGroupDeletion_BacklogSaysThatTheSettingIsInvalid(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.owned(10, 20)
	g.exec("main", `UPDATE application_settings SET deletion_adjourned_period = -1`)
	g.wantBacklog("1 0 1 0 20")
	st, err := g.service.Status(context.Background(), groupWorker)
	if err != nil {
		t.Fatal(err)
	}
	wantSays(t, errors.New(st[0].ConditionDetail), "deletion_adjourned_period")
}

func TestAdjournedGroupDeletion_TableThatMustNotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	role := "reader_" + g.value("main", `SELECT oid FROM pg_database WHERE datname = current_database()`)
	g.exec("main", `CREATE ROLE `+role)
	t.Cleanup(func() { g.exec("main", `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	g.exec("main", `GRANT ALL ON ALL TABLES IN SCHEMA public, maintenance TO `+role)
	g.exec("main", `GRANT USAGE ON SCHEMA public, maintenance TO `+role)
	g.exec("main", `REVOKE ALL ON group_group_links FROM `+role)
	d, err := repo.Open(context.Background(), "main", g.urls["main"]+"&options=-c%20role%3D"+role)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = d.GroupStores(context.Background())
	wantSays(t, err, "group_group_links")
	if !errors.Is(err, repo.ErrForbidden) {
		t.Errorf("got %v", err)
	}
}

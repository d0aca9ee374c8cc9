package adjournedgroup_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// backlog is "pending due deferred dead age of the oldest in days".
func wantBacklog(g *servicetest.Groups, want string) {
	g.T.Helper()
	st := servicetest.Must(g.Service.Status(context.Background(), servicetest.AdjournedGroups))(g.T)
	b := st[0].Backlog
	days := "-"
	if !b.OldestAt.IsZero() {
		days = g.Value("main", `SELECT (now() AT TIME ZONE 'UTC')::date - ($1::timestamptz AT TIME ZONE 'UTC')::date`, b.OldestAt)
	}
	if got := fmt.Sprintf("%d %d %d %d %s", b.Pending, b.Due, b.Deferred, b.Dead, days); got != want {
		g.T.Errorf("backlog %s, want %s", got, want)
	}
}

func TestAdjournedGroupDeletion_HoldsGroupsWhoseUserIsMissing(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	for i, user := range []string{`99`, `"abc"`, `1.5`, `{"id": 1}`, `null`, `true`, `"1 "`, `-1`, `"99999999999999999999999"`, `1e300`, `[1]`} {
		g.Group(10+i, 0, fmt.Sprintf("g%d", i))
		g.MarkDetails(10+i, 15, `{"deletion_scheduled_by_user_id": `+user+`}`)
	}
	plant(g, "30 details=-@15")
	wantBacklog(g, "0 0 0 12 -")
	for range 2 {
		g.Run("held_groups=12")
	}
	g.WantLog(24, "Group held", "level=WARN", "outcome=held", "reason=DELETING_USER_MISSING")
	g.WantLog(2, "Group held", "group_id=30", "user_id=<nil>")
	g.WantJobs()
	g.Want("main", `SELECT count(*) FROM namespace_details WHERE deletion_scheduled_at IS NOT NULL`, "12")
	wantBacklog(g, "0 0 0 12 -")
}

func TestAdjournedGroupDeletion_HoldsWhatIsBeingDeletedByAUserWithoutRights(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	plant(g, "10 mark=1@15 state=4")
	r := g.Run("held_groups=1")
	if want := "groups are held (DELETION_IN_PROGRESS: 1), warnings in the log name them"; r.Reason != want {
		t.Errorf("reason %q, want %q", r.Reason, want)
	}
	servicetest.WantDetail(t, servicetest.StatusOf(t, g.Service, servicetest.AdjournedGroups), "of the last run, "+r.ID+": groups are held (DELETION_IN_PROGRESS: 1)")
	g.WantMarked("10")
	g.WantLog(1, "Group held", "group_id=10", "reason=DELETION_IN_PROGRESS")
	g.QueueJob(10, 1)
	g.Attempt("cancelled refused DELETION_IN_PROGRESS")
	g.WantMarked("10")
	g.WantLog(1, "job finished", "level=WARN", "reason=DELETION_IN_PROGRESS")
	g.Member(10, 1, 50)
	g.Run("scheduled_jobs=1")
}

func TestAdjournedGroupDeletion_HoldsGroupsWhoseScheduleIsLost(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	g.User(2)
	plant(g, "10 path=a-deletion_scheduled-10 mark=2@15", "11 path=b state=2", "12 path=c-deletion_scheduled-11", "13 path=d-deletion_scheduled-13x",
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

func TestAdjournedGroupDeletion_BacklogCountsMarksOfBothStores(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	plant(g, "10 owner=1 mark=1@20", "11 owner=1 mark=1@14", "12 owner=1 mark=1@13", "13 details=1@30", "14 mark=1@40 details=1@3", "15 details=99@3", "16 begun=NULL")
	wantBacklog(g, "7 4 3 0 30")
}

func TestAdjournedGroupDeletion_DryRunDecidesAsARealRunAndChangesNothing(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	// 11 is restored, 12 held, 13 covered by 10; the schedule of 14 is lost, 15 fails, and of 16 and its child the job cannot be queued.
	plant(g, "10 owner=1 mark=1@15", "11 path=restored-deletion_scheduled-11 mark=1@15", "12 details=-@15", "13<10 mark=1@15",
		"14 path=lost-deletion_scheduled-14", "15 path=fails-deletion_scheduled-15 mark=1@15", "16 owner=1 mark=1@15", "17<16 mark=1@15")
	g.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$`)
	g.Exec("main", `CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON group_deletion_schedules INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.group_id = 15) EXECUTE FUNCTION refuse()`)
	g.Exec("main", `CREATE TRIGGER refuse BEFORE INSERT ON maintenance.river_job FOR EACH ROW WHEN (NEW.args ->> 'group_id' = '16') EXECUTE FUNCTION refuse()`)
	const all = `SELECT md5(string_agg(x, '' ORDER BY x)) FROM (SELECT n::text AS x FROM namespaces n UNION ALL SELECT r::text FROM routes r
		UNION ALL SELECT s::text FROM group_deletion_schedules s UNION ALL SELECT d::text FROM namespace_details d UNION ALL SELECT j::text FROM maintenance.river_job j) x`
	before := g.Value("main", all)
	g.DryRun("scheduled_jobs=2 restored_groups=1 held_groups=2 failed_groups=2")
	g.Want("main", all, before)
	g.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
	g.Run("scheduled_jobs=2 restored_groups=1 held_groups=2 failed_groups=2")
	g.WantJobs("10:1@0", "17:1@100")
}

func TestAdjournedGroupDeletion_WorksWithoutStates(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	g.Run("")
	g.Exec("main", `ALTER TABLE namespaces DROP state`)
	plant(g, "10 owner=1 mark=1@15", "11 path=restored-deletion_scheduled-11 mark=1@15", "12 path=lost-deletion_scheduled-12")
	g.Run("scheduled_jobs=1 restored_groups=1 held_groups=1")
	g.Run("held_groups=1")
	g.WantLog(1, "the schema has changed", "level=INFO")
	g.Want("main", `SELECT path FROM namespaces WHERE id = 11`, "restored")
}

func TestAdjournedGroupDeletion_IsNotConfiguredWithoutItsTables(t *testing.T) {
	t.Parallel()
	for missing, schema := range map[string]string{
		"group_group_links": `DROP TABLE group_group_links`, "routes": `DROP TABLE routes`,
		"users.state of database main has the type integer, which has no 'active'": servicetest.StateIsANumber,
		"group_deletion_schedules": `DROP TABLE group_deletion_schedules; ALTER TABLE namespace_details DROP deletion_scheduled_at`,
	} {
		g := servicetest.NewGroups(t)
		g.Exec("main", schema)
		_, err := g.Service.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.AdjournedGroups})
		servicetest.WantError(t, err, missing)
		st, err := g.Service.Status(context.Background(), servicetest.AdjournedGroups)
		if err != nil || st[0].Condition != service.ConditionNotConfigured {
			t.Errorf("%v, %v", st, err)
		}
	}
}

func TestAdjournedGroupDeletion_TableThatMustNotBeReadIsNamed(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	role := "reader_" + g.Value("main", `SELECT oid FROM pg_database WHERE datname = current_database()`)
	g.Exec("main", `CREATE ROLE `+role)
	t.Cleanup(func() { g.Exec("main", `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	g.Exec("main", `GRANT ALL ON ALL TABLES IN SCHEMA public, maintenance TO `+role)
	g.Exec("main", `GRANT USAGE ON SCHEMA public, maintenance TO `+role)
	g.Exec("main", `REVOKE ALL ON group_group_links FROM `+role)
	d, err := repo.Open(context.Background(), "main", g.URLs["main"]+"&options=-c%20role%3D"+role)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = d.GroupStores(context.Background())
	servicetest.WantError(t, err, "group_group_links")
	if !errors.Is(err, repo.ErrForbidden) {
		t.Errorf("got %v", err)
	}
}

func TestAdjournedGroupDeletion_WorksWithEitherStore(t *testing.T) {
	g := servicetest.NewGroups(parallel(t))
	for i, schema := range []string{
		`ALTER TABLE namespace_details DROP deletion_scheduled_at`, `ALTER TABLE namespace_details DROP state_metadata`,
		`DROP TRIGGER namespaces_insert_details ON namespaces; DROP TABLE namespace_details`,
	} {
		g.Exec("main", schema)
		id := 12 + 2*i
		plant(g, fmt.Sprintf("%d owner=1 mark=1@15", id-1), fmt.Sprintf("%d path=restored-%[1]d-deletion_scheduled-%[1]d mark=1@15 state=2", id))
		g.Run("scheduled_jobs=1 restored_groups=1")
		g.Want("main", fmt.Sprintf(`SELECT path || ' ' || state FROM namespaces WHERE id = %d`, id), fmt.Sprintf("restored-%d 0", id))
		wantBacklog(g, "1 1 0 0 15")
		g.Exec("main", `DELETE FROM group_deletion_schedules; DELETE FROM maintenance.river_job`)
	}
	g = servicetest.NewGroups(t)
	g.Exec("main", `DROP TABLE group_deletion_schedules`)
	plant(g, "10 owner=1 details=1@15", "11 details=1@15")
	g.Run("scheduled_jobs=1 restored_groups=1")
	wantBacklog(g, "1 1 0 0 15")
}

package service_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestStatus_ABacklogThatWasNeverReadIsNotKnown(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	s := e.Service("", e.WithQueue)
	release := e.Hold(`LOCK TABLE import_placeholder_user_details`)
	st := servicetest.StatusOf(t, s, servicetest.PlaceholderUsers)
	if !st.BacklogUnknown {
		t.Errorf("backlog %+v, want that it is not known", st.Backlog)
	}
	servicetest.WantDetail(t, st, "backlog of main not known: not read since this server was started")
	release()
	if st := servicetest.StatusOf(t, e.Service("", e.WithQueue), servicetest.PlaceholderUsers); st.BacklogUnknown {
		t.Errorf("the backlog is not known: %s", st.ConditionDetail)
	}
}

func TestRun_FailedByALockSaysWhereToLook(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	s := e.Service("", e.WithQueue)
	release := e.Hold(`LOCK TABLE import_placeholder_user_details`)
	defer release()
	r := servicetest.Must(s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.PlaceholderUsers}))(t)
	servicetest.WantState(t, r, repo.RunFailed)
	if !strings.Contains(r.Error, "55P03 lock_not_available: another transaction holds a lock on a table or row") || !strings.Contains(r.Error, "pg_stat_activity") {
		t.Errorf("error %q", r.Error)
	}
	wantFailing(t, servicetest.StatusOf(t, s, servicetest.PlaceholderUsers), service.FailureLock, "", "lock_not_available")
}

func TestStatus_SaysWhenAnUnfinishedPassGoesOn(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.Bots(1, 2, 3)
	s := e.Service("", e.WithQueue, servicetest.OneBotARun)
	servicetest.RunTokens(t, s)
	due := e.Value("main", `SELECT to_char(scheduled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`)
	servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.InactiveTokens), "the unfinished pass goes on at "+due)
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'available', scheduled_at = now() WHERE kind = 'continue_inactive_token_deletion'`)
	servicetest.WantDetail(t, servicetest.StatusOf(t, e.Service("", e.WithQueue), servicetest.InactiveTokens), "goes on as soon as a server works its job")
}

func TestFault_DestroyGroup_ItsProgressCanBeSeenWhileItWorks(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Owned(10, 15)
	g.GroupContent(10)
	g.Run("scheduled_jobs=1")
	g.Exec("main", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.2); RETURN OLD; END'`)
	for _, table := range []string{"epics", "boards"} {
		g.Exec("main", `CREATE TRIGGER slow BEFORE DELETE ON `+table+` FOR EACH ROW EXECUTE FUNCTION slow()`)
	}
	g.Gate("main", "group_deletion_schedules")
	g.Shut("main", "doomed")
	g.Exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
	p := g.Start("doomed", "", servicetest.WorksGroups)
	g.Eventually("main", `SELECT removed_rows > 0 FROM maintenance.group_removals`, "true")
	servicetest.WantDetail(t, servicetest.StatusOf(t, g.Service, servicetest.AdjournedGroups), "removal of group 10, begun 20", " rows, 0 projects and 0 groups are gone")
	g.Killed(p)
}

func TestStatus_SaysThatGroupsAreHeld(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	g.Group(10, 0, "g10")
	g.MarkDetails(10, 15, `{}`)
	g.Run("held_groups=1")
	servicetest.WantDetail(t, servicetest.StatusOf(t, g.Service, servicetest.AdjournedGroups), "groups held until somebody decides: 1, warnings in the log name them")
}

func TestStatus_SaysWhichJobsOfAWorkerFail(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	s := e.Service("", e.WithQueue)
	user := func(reason string) repo.Job { return repo.Job{Args: repo.DeleteUser{UserID: 1, Reason: reason}} }
	e.Insert(append(servicetest.Placeholders(4), user(repo.TokenDeletionReason), user(repo.PlaceholderDeletionReason))...)
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'retryable' WHERE id IN (1, 2, 5)`)
	e.EndJob(3, "discarded")
	st := servicetest.StatusOf(t, s, servicetest.PlaceholderUsers)
	servicetest.WantDetail(t, st, "waiting for ", "jobs delete_placeholder_user that failed and will be retried: 2 (caretaker jobs --kind delete_placeholder_user --state retryable)",
		"jobs delete_placeholder_user that were given up: 1 (")
	if strings.Contains(st.ConditionDetail, "delete_user") {
		t.Errorf("%q speaks of the jobs of another worker", st.ConditionDetail)
	}
	servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.InactiveTokens), "jobs delete_user that failed and will be retried: 1 (")
}

func TestStatus_SaysThatRecordsFail(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 5)
	e.Mine("c", "OLD.p_id = 2", "P0001")
	s := e.Service(servicetest.OneChild)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunFailed)
	e.Exec("main", `DROP TRIGGER mine ON c`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	st := servicetest.StatusOf(t, s, servicetest.LooseForeignKeys)
	servicetest.WantDetail(t, st, "waiting for ", "records on main that could not be cleaned and will be retried: 1 (caretaker lfk dead --failing)")
}

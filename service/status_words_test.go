package service_test

import (
	"context"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

func statusOf(t *testing.T, s *service.Service, worker string) service.WorkerStatus {
	t.Helper()
	all, err := s.Status(context.Background(), worker)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return all[0]
}

func wantDetail(t *testing.T, st service.WorkerStatus, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(st.ConditionDetail, w) {
			t.Errorf("%s: detail %q lacks %q", st.Worker, st.ConditionDetail, w)
		}
	}
}

func TestStatus_ABacklogThatWasNeverReadIsNotKnown(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	s := e.service("", e.withQueue)
	release := e.hold(`LOCK TABLE import_placeholder_user_details`)
	st := statusOf(t, s, placeholderWorker)
	if !st.BacklogUnknown {
		t.Errorf("backlog %+v, want that it is not known", st.Backlog)
	}
	wantDetail(t, st, "backlog of main not known: not read since this server was started")
	release()
	if st := statusOf(t, e.service("", e.withQueue), placeholderWorker); st.BacklogUnknown {
		t.Errorf("the backlog is not known: %s", st.ConditionDetail)
	}
}

func TestRun_FailedByALockSaysWhereToLook(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	s := e.service("", e.withQueue)
	release := e.hold(`LOCK TABLE import_placeholder_user_details`)
	defer release()
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: placeholderWorker})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, r, repo.RunFailed)
	if !strings.Contains(r.Error, "55P03 lock_not_available: another transaction holds a lock on a table or row") || !strings.Contains(r.Error, "pg_stat_activity") {
		t.Errorf("error %q", r.Error)
	}
	wantFailing(t, statusOf(t, s, placeholderWorker), service.FailureLock, "", "lock_not_available")
}

func TestStatus_SaysWhenAnUnfinishedPassGoesOn(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.bots(1, 2, 3)
	s := e.service("", e.withQueue, oneBotARun)
	runTokens(t, s)
	due := e.value("main", `SELECT to_char(scheduled_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`)
	wantDetail(t, statusOf(t, s, tokenWorker), "the unfinished pass goes on at "+due)
	e.exec("main", `UPDATE maintenance.river_job SET state = 'available', scheduled_at = now() WHERE kind = 'continue_inactive_token_deletion'`)
	wantDetail(t, statusOf(t, e.service("", e.withQueue), tokenWorker), "goes on as soon as a server works its job")
}

func TestDestroyGroup_ItsProgressCanBeSeenWhileItWorks(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.owned(10, 15)
	g.groupContent(10)
	g.run("scheduled_jobs=1")
	g.exec("main", `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.2); RETURN OLD; END'`)
	for _, table := range []string{"epics", "boards"} {
		g.exec("main", `CREATE TRIGGER slow BEFORE DELETE ON `+table+` FOR EACH ROW EXECUTE FUNCTION slow()`)
	}
	g.gate("main", "group_deletion_schedules")
	g.shut("main", "doomed")
	g.exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
	p := g.start("doomed", "", worksGroups)
	g.eventually("main", `SELECT removed_rows > 0 FROM maintenance.group_removals`, "true")
	wantDetail(t, statusOf(t, g.service, groupWorker), "removal of group 10, begun 20", " rows, 0 projects and 0 groups are gone")
	g.killed(p)
}

func TestStatus_SaysThatGroupsAreHeld(t *testing.T) {
	t.Parallel()
	g := newGroups(t)
	g.group(10, 0, "g10")
	g.markDetails(10, 15, `{}`)
	g.run("held_groups=1")
	wantDetail(t, statusOf(t, g.service, groupWorker), "1 groups are held: somebody has to decide about them")
}

func TestStatus_SaysWhichJobsOfAWorkerFail(t *testing.T) {
	t.Parallel()
	e := newEstate(t, "main", "main")
	s := e.service("", e.withQueue)
	user := func(reason string) repo.Job { return repo.Job{Args: repo.DeleteUser{UserID: 1, Reason: reason}} }
	e.insert(append(placeholders(4), user(repo.TokenDeletionReason), user(repo.PlaceholderDeletionReason))...)
	e.exec("main", `UPDATE maintenance.river_job SET state = 'retryable' WHERE id IN (1, 2, 5)`)
	e.end(3, "discarded")
	st := statusOf(t, s, placeholderWorker)
	wantDetail(t, st, "waiting for ", "jobs delete_placeholder_user that failed and will be tried again: 2 (caretaker jobs --kind delete_placeholder_user --state retryable)",
		"jobs delete_placeholder_user that were given up: 1 (")
	if strings.Contains(st.ConditionDetail, "delete_user") {
		t.Errorf("%q speaks of the jobs of another worker", st.ConditionDetail)
	}
	wantDetail(t, statusOf(t, s, tokenWorker), "jobs delete_user that failed and will be tried again: 1 (")
}

func TestStatus_SaysThatRecordsFail(t *testing.T) {
	t.Parallel()
	e := newDeletedParents(t, 5)
	e.mine("c", "OLD.p_id = 2", "P0001")
	s := e.service(oneChild)
	wantState(t, runBatch(t, s, "main"), repo.RunFailed)
	e.exec("main", `DROP TRIGGER mine ON c`)
	wantState(t, runBatch(t, s, "main"), repo.RunSucceeded)
	st := statusOf(t, s, cleanupWorker)
	wantDetail(t, st, "waiting for ", "records on main that could not be cleaned and will be tried again: 1 (caretaker lfk dead --failing)")
}

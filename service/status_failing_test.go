package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func wantFailing(t *testing.T, st service.WorkerStatus, class service.FailureClass, database, message string) service.Failing {
	t.Helper()
	assert.Require(t, st.Condition == service.ConditionFailing && st.Failing != nil,
		"%s: condition %s: %s", st.Worker, st.Condition, st.ConditionDetail)
	f := *st.Failing
	if f.Class != class || f.Database != database || !strings.Contains(f.Message, message) || !strings.Contains(st.ConditionDetail, f.Message) {
		t.Errorf("%s: %+v (%s), want class %s, database %q, message %q", st.Worker, f, st.ConditionDetail, class, database, message)
	}
	return f
}

func TestStatus_FailureIsThatOfTheNewestRunAlsoOfADeadProcess(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	failed := func(reason, text string) {
		e.Exec("main", `TRUNCATE maintenance.runs`)
		e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, reason, error, heartbeat_ttl, finished_at)
			VALUES ('0197c000-0000-7000-8000-000000000001', $1, 'main', 'request', 'failed', $2, $3, '0', now())`,
			servicetest.LooseForeignKeys, reason, text)
	}
	for text, want := range map[[2]string]service.FailureClass{
		{"LEASE_LOST", "the lease was lost"}:                                 service.FailureLeaseLost,
		{"SETTING_INVALID", "deletion_adjourned_period is -1"}:               service.FailureSetting,
		{"KEY_MISMATCH", "c.p_id -> p on main: refers to x, 1 records"}:      service.FailureSchema,
		{"QUEUE_MOVED", "schema x comes first"}:                              service.FailureSchema,
		{"", "claim users on main: 55P03 lock_not_available"}:                service.FailureLock,
		{"", "claim users on main: 57014 query_canceled"}:                    service.FailureTimeout,
		{"", "c.p_id -> p on main: 23514 check_violation, 1 record"}:         service.FailureData,
		{"", "c.p_id -> p on main: unreachable (53100 disk_full), 1 record"}: service.FailureUnreachable,
		{"", "internal error; the log of this run has it"}:                   service.FailureInternal,
	} {
		failed(text[0], text[1])
		wantFailing(t, servicetest.Status(t, s), want, "main", "failed: "+strings.Trim(text[0]+"; "+text[1], "; "))
	}

	// The failure to reach a database ends when the database answers.
	const failure = "c.p_id -> p on ci: unreachable, 3 records"
	failed("", failure)
	servicetest.WantCondition(t, s, service.ConditionIdle, "last run on main failed: "+failure+"; the databases answer again")
	// Its fence is held by somebody else, who keeps the next run from ci as well.
	e.ForeignLease("ci", servicetest.MainLease, "1 hour")
	wantFailing(t, servicetest.Status(t, s), service.FailureUnreachable, "main", failure)
	e.Exec("ci", `DELETE FROM maintenance.leases`)

	// A run of a dead process has failed after its time.
	e.Exec("main", `TRUNCATE maintenance.runs`)
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, heartbeat_ttl, heartbeat_at)
		VALUES ('0197c000-0000-7000-8000-000000000001', $1, 'main', 'schedule', 'running', '40 s', now() - interval '30 s')`, servicetest.LooseForeignKeys)
	lastSign := e.Value("main", `SELECT to_char(heartbeat_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM maintenance.runs`)
	if st := servicetest.WantCondition(t, s, service.ConditionRunning, "no heartbeat since "+lastSign); !strings.Contains(st.CurrentRun.Reason, lastSign) {
		t.Errorf("reason %q", st.CurrentRun.Reason)
	}
	e.Exec("main", `UPDATE maintenance.runs SET heartbeat_at = now() - interval '41 s'`)
	st := servicetest.WantCondition(t, s, service.ConditionFailing, "LEASE_LOST")
	assert.That(t, st.CurrentRun == nil && st.LastRun != nil && st.LastRun.State == repo.RunFailed, "%+v", st)
	e.Want("main", `SELECT finished_at = heartbeat_at FROM maintenance.runs`, "true")
}

func TestStatus_OfADatabaseThatIsNotMigratedAndOfASchedulerThatCannotStartRuns(t *testing.T) {
	t.Parallel()
	began := time.Now()
	e := servicetest.New(t, servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	off := e.Service(servicetest.OneChild, func(c *service.Config) { c.SchedulerOff = true })
	servicetest.WantCondition(t, s, service.ConditionIdle)
	e.Exec("main", `ALTER TABLE maintenance.runs RENAME TO away; ALTER TABLE maintenance.schema_migrations_main RENAME TO also_away`)
	f := wantFailing(t, servicetest.Status(t, s), service.FailureSchema, "main", "database main is not migrated: run caretaker migrate")
	again := servicetest.Status(t, s).Failing
	assert.That(t, again.Since.Equal(f.Since) && !f.Since.Before(began), "since %s, then since %s", f.Since, again.Since)
	e.Exec("main", `ALTER TABLE maintenance.away RENAME TO runs; ALTER TABLE maintenance.also_away RENAME TO schema_migrations_main`)
	servicetest.WantCondition(t, s, service.ConditionIdle)

	e.Exec("main", `ALTER TABLE maintenance.fires RENAME TO away`)
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	assert.That(t, s.RunDue(ctx) != nil, "fires were looked at without a ledger")
	wantFailing(t, servicetest.Status(t, s), service.FailureSchema, "main", "42P01")
	servicetest.WantCondition(t, off, service.ConditionSchedulerOff)
	e.Exec("main", `ALTER TABLE maintenance.away RENAME TO fires`)
	err := s.RunDue(ctx)
	assert.That(t, err == nil || ctx.Err() != nil, "%v", err)
	// It has waited for a fire if a minute was about to begin.
	e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
	servicetest.WantCondition(t, s, service.ConditionIdle)
}

func TestStatus_ATableThatSomebodyHasLocked(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "main", "main")
	s := e.Service("", e.WithQueue)
	release := e.Hold(`LOCK TABLE import_placeholder_user_details`)
	st := servicetest.StatusOf(t, s, servicetest.PlaceholderUsers)
	assert.That(t, st.BacklogUnknown, "backlog %+v, want that it is not known", st.Backlog)
	servicetest.WantDetail(t, st, "backlog of main not known: not read since this server was started")
	r := servicetest.RunPlaceholders(t, s, false)
	servicetest.WantState(t, r, repo.RunFailed)
	if !strings.Contains(r.Error, "55P03 lock_not_available: another transaction holds a lock on a table or row") || !strings.Contains(r.Error, "pg_stat_activity") {
		t.Errorf("error %q", r.Error)
	}
	wantFailing(t, servicetest.StatusOf(t, s, servicetest.PlaceholderUsers), service.FailureLock, "", "lock_not_available")
	release()
	st = servicetest.StatusOf(t, e.Service("", e.WithQueue), servicetest.PlaceholderUsers)
	assert.That(t, !st.BacklogUnknown, "the backlog is not known: %s", st.ConditionDetail)
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
	assert.That(t, !strings.Contains(st.ConditionDetail, "delete_user"), "%q speaks of the jobs of another worker", st.ConditionDetail)
	servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.InactiveTokens), "jobs delete_user that failed and will be retried: 1 (")

	// They are counted again each time, unless they are many.
	e.Exec("main", `DELETE FROM maintenance.river_job`)
	for _, c := range []struct{ change, shown string }{
		{fmt.Sprintf(failedJobsSQL, 3), "were given up: 3 ("},
		{fmt.Sprintf(failedJobsSQL, 997), "were given up: 1000 ("},
		{`DELETE FROM maintenance.river_job`, "were given up: 1000 ("},
	} {
		e.Exec("main", c.change)
		servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.PlaceholderUsers), c.shown)
	}
}

const failedJobsSQL = `INSERT INTO maintenance.river_job (kind, args, max_attempts, state, finalized_at)
	SELECT 'delete_placeholder_user', '{}', 25, 'discarded', now() FROM generate_series(1, %d)`

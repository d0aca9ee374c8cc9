package service_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func wantFailing(t *testing.T, st service.WorkerStatus, class service.FailureClass, database, message string) service.Failing {
	t.Helper()
	if st.Condition != service.ConditionFailing || st.Failing == nil {
		t.Fatalf("%s: condition %s: %s", st.Worker, st.Condition, st.ConditionDetail)
	}
	f := *st.Failing
	if f.Class != class || f.Database != database || !strings.Contains(f.Message, message) || !strings.Contains(st.ConditionDetail, f.Message) {
		t.Errorf("%s: %+v (%s), want class %s, database %q, message %q", st.Worker, f, st.ConditionDetail, class, database, message)
	}
	return f
}

func TestStatus_FailingSinceTheFirstRunThatFailedAfterTheLastSuccess(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	e.Exec("main", `ALTER TABLE c RENAME p_id TO q_id`)
	e.Deleted("main", "p", 2, 2)
	first := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, first, repo.RunFailed)
	for range 2 {
		e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
		servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunFailed)
	}
	servicetest.WantState(t, servicetest.RunBatch(t, s, "ci"), repo.RunSucceeded)
	f := wantFailing(t, servicetest.Status(t, s), service.FailureSchema, "main", "last run on main failed")
	if !f.Since.Equal(first.FinishedAt) {
		t.Errorf("since %s, want %s", f.Since, first.FinishedAt)
	}
}

func TestStatus_FailureClassIsThatOfTheNewestRunAlsoOfADeadProcess(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	for text, want := range map[[2]string]service.FailureClass{
		{"LEASE_LOST", "the lease was lost"}:                         service.FailureLeaseLost,
		{"SETTING_INVALID", "deletion_adjourned_period is -1"}:       service.FailureSetting,
		{"", "claim users on main: 55P03 lock_not_available"}:        service.FailureLock,
		{"", "claim users on main: 57014 query_canceled"}:            service.FailureTimeout,
		{"", "c.p_id -> p on main: 23514 check_violation, 1 record"}: service.FailureData,
		{"", "internal error; the log of this run has it"}:           service.FailureInternal,
	} {
		e.Exec("main", `TRUNCATE maintenance.runs`)
		e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, reason, error, heartbeat_ttl, finished_at)
			VALUES ('0197c000-0000-7000-8000-000000000001', $1, 'main', 'request', 'failed', $2, $3, '0', now())`, servicetest.LooseForeignKeys, text[0], text[1])
		wantFailing(t, servicetest.Status(t, s), want, "main", text[1])
	}

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
	if st.CurrentRun != nil || st.LastRun == nil || st.LastRun.State != repo.RunFailed {
		t.Errorf("%+v", st)
	}
	e.Want("main", `SELECT finished_at = heartbeat_at FROM maintenance.runs`, "true")
}

func TestStatus_FailureToReachADatabaseEndsWhenItAnswers(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	const failure = "c.p_id -> p on ci: unreachable, 3 records"
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, error, heartbeat_ttl, finished_at)
		VALUES ('0197c000-0000-7000-8000-000000000001', $1, 'main', 'request', 'failed', $2, '0', now())`, servicetest.LooseForeignKeys, failure)
	servicetest.WantCondition(t, s, service.ConditionIdle, "last run on main failed: "+failure+"; the databases answer again")
	// Its fence is held by somebody else, who keeps the next run from ci as well.
	e.ForeignLease("ci", servicetest.MainLease, "1 hour")
	wantFailing(t, servicetest.Status(t, s), service.FailureUnreachable, "main", failure)
}

func TestStatus_OfADatabaseThatIsNotMigratedSaysSo(t *testing.T) {
	t.Parallel()
	began := time.Now()
	e := servicetest.New(t, servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	servicetest.WantCondition(t, s, service.ConditionIdle)
	e.Exec("main", `ALTER TABLE maintenance.runs RENAME TO away; ALTER TABLE maintenance.schema_migrations_main RENAME TO also_away`)
	f := wantFailing(t, servicetest.Status(t, s), service.FailureSchema, "main", "database main is not migrated: run caretaker migrate")
	if again := servicetest.Status(t, s).Failing; !again.Since.Equal(f.Since) || f.Since.Before(began) {
		t.Errorf("since %s, then since %s", f.Since, again.Since)
	}
	e.Exec("main", `ALTER TABLE maintenance.away RENAME TO runs; ALTER TABLE maintenance.also_away RENAME TO schema_migrations_main`)
	servicetest.WantCondition(t, s, service.ConditionIdle)
}

func TestStatus_SchedulerThatCannotStartRunsIsFailing(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	off := e.Service(servicetest.OneChild, func(c *service.Config) { c.SchedulerOff = true })
	e.Exec("main", `ALTER TABLE maintenance.fires RENAME TO away`)
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	if err := s.RunDue(ctx); err == nil {
		t.Error("fires were looked at without a ledger")
	}
	wantFailing(t, servicetest.Status(t, s), service.FailureSchema, "main", "42P01")
	servicetest.WantCondition(t, off, service.ConditionSchedulerOff)
	e.Exec("main", `ALTER TABLE maintenance.away RENAME TO fires`)
	if err := s.RunDue(ctx); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	// It has waited for a fire if a minute was about to begin.
	e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
	servicetest.WantCondition(t, s, service.ConditionIdle)
}

package service_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestStatus_OfTwoDatabases(t *testing.T) {
	servicetest.Cases(t, servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci"), map[string]func(*servicetest.Estate){
		"Status_FailingSinceTheFirstFailureUntilTheNextSuccessOnThatDatabase": statusFailingSinceTheFirstFailureUntilTheNextSuccessOnThatDatabase,
		"Status_BacklogIsThatOfAllDatabasesAndFreshAfterARun":                 statusBacklogIsThatOfAllDatabasesAndFreshAfterARun,
		"FeatureFlags_AreOffUntilSet":                                         featureFlagsAreOffUntilSet,
		"Status_FailureIsThatOfTheNewestRunAlsoOfADeadProcess":                statusFailureIsThatOfTheNewestRunAlsoOfADeadProcess,
	})
}

func TestStatus_OfAllWorkers(t *testing.T) {
	inTurn(t, "main", map[string]func(*servicetest.Estate){
		"Status_ATableThatSomebodyHasLocked": statusATableThatSomebodyHasLocked,
		"Status_SaysWhichJobsOfAWorkerFail":  statusSaysWhichJobsOfAWorkerFail,
	})
}

func TestStatus(t *testing.T) {
	inTurn(t, servicetest.Small, map[string]func(*servicetest.Estate){
		"IdleSaysWhenItGoesOnAndWhatTheLastRunWas":                       statusIdleSaysWhenItGoesOnAndWhatTheLastRunWas,
		"TheFirstConditionThatHoldsIsSaid":                               statusTheFirstConditionThatHoldsIsSaid,
		"OfADatabaseThatIsNotMigratedAndOfASchedulerThatCannotStartRuns": statusOfADatabaseThatIsNotMigratedAndOfASchedulerThatCannotStartRuns,
	})
}

func statusIdleSaysWhenItGoesOnAndWhatTheLastRunWas(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	servicetest.DryRun(t, s) // is not the last run
	st := servicetest.WantCondition(t, s, status.ConditionIdle, "waiting for")
	left := time.Until(st.NextRunAt)
	assert.That(t, left > 0 && left <= time.Minute && st.Schedule == "* * * * *", "schedule %q, next in %s", st.Schedule, left)
	assert.That(t, st.LastRun == nil && st.CurrentRun == nil && st.Paused == nil && st.LastSuccessAt.IsZero() && len(st.Leases) == 0, "%+v", st)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.DryRun(t, s)
	st = servicetest.WantCondition(t, s, status.ConditionIdle)
	assert.That(t, st.LastRun != nil && st.LastRun.ID == r.ID &&
		st.LastSuccessAt.Equal(r.FinishedAt) && len(st.Leases) == 1 && st.Leases[0].Expired, "%+v", st)
	off := e.Service(servicetest.OneChild, servicetest.With(func(c *lfk.Config) { c.Enabled = new(false) }))
	st = servicetest.WantCondition(t, off, status.ConditionDisabled,
		"disabled in the configuration of this server (workers.loose_foreign_keys_cleanup.enabled is false), so "+
			"runs start on this server only on request")
	assert.That(t, st.NextRunAt.IsZero(), "next run at %s", st.NextRunAt)
}

// Every step adds what takes precedence over all that is there already.
func statusTheFirstConditionThatHoldsIsSaid(e *servicetest.Estate) {
	t := e.T
	e.DeletedParents(10)
	off := func(c *service.Config) { c.SchedulerOff = true }
	s, unconfigured := e.Service(servicetest.OneChild, off, servicetest.Batches(2, 0)), e.Service("", off)
	st := servicetest.WantCondition(t, s, status.ConditionSchedulerOff, "scheduler.enabled")
	assert.That(t, st.NextRunAt.IsZero(), "next run at %s, though the scheduler is off", st.NextRunAt)

	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	servicetest.WantCondition(t, s, status.ConditionLeaseHeldElsewhere, servicetest.MainLease, "somebody")

	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	e.Exec("main", `ALTER TABLE c RENAME COLUMN p_id TO q_id`)
	failed := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, failed, control.RunFailed)
	e.Exec("main", `UPDATE maintenance.leases SET holder = 'somebody', expires_at = now() + interval '1 hour'`)
	servicetest.WantCondition(t, s, status.ConditionFailing, "main", "c.p_id -> p on main: 42703 undefined_column, 10 records")

	st = servicetest.WantCondition(t, unconfigured, status.ConditionNotConfigured, "definitions")
	assert.That(t, !st.BacklogUnknown && st.Backlog.Pending == 10, "backlog %+v, want the records that wait", st.Backlog)

	assert.Must(s.PauseWorker(context.Background(), servicetest.LooseForeignKeys, "because", "alice", 0))(t)
	servicetest.WantCondition(t, s, status.ConditionPaused, "alice", "because")
	servicetest.WantCondition(t, unconfigured, status.ConditionPaused, "alice", "; not configured: set workers.loose_foreign_keys_cleanup.definitions")

	// The operator resumes, a run begins, the operator pauses again: until the run sees the pause, it
	// is running.
	e.Exec("main", `ALTER TABLE c RENAME COLUMN q_id TO p_id; UPDATE maintenance.leases SET expires_at = now();
		UPDATE loose_foreign_keys_deleted_records SET consume_after = now(); DELETE FROM maintenance.pauses`)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	r := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	e.Exec("main", `INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ($1, 'because', 'alice')`, servicetest.LooseForeignKeys)
	st = servicetest.WantCondition(t, unconfigured, status.ConditionRunning, r.ID)
	assert.That(t, st.CurrentRun != nil && st.CurrentRun.ID == r.ID && st.LastRun != nil && st.LastRun.ID == failed.ID && st.Paused != nil,
		"%+v", st)
}

func statusFailingSinceTheFirstFailureUntilTheNextSuccessOnThatDatabase(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	e.Exec("main", `ALTER TABLE c RENAME p_id TO q_id`)
	e.Deleted("main", "p", 1, 1)
	first := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, first, control.RunFailed)
	for range 2 {
		e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
		servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunFailed)
	}
	servicetest.WantState(t, servicetest.RunBatch(t, s, "ci"), control.RunSucceeded)
	st := servicetest.WantCondition(t, s, status.ConditionFailing, "last run on main failed", "42703")
	f := wantFailing(t, st, status.FailureSchema, "main", "last run on main failed")
	assert.That(t, f.Since.Equal(first.FinishedAt), "since %s, want %s", f.Since, first.FinishedAt)

	// Other runs than successes do not count: a dry run, a cancelled and a skipped one.
	e.Exec("main", `ALTER TABLE c RENAME q_id TO p_id`)
	servicetest.WantState(t, servicetest.DryRun(t, s), control.RunSucceeded)
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, heartbeat_ttl)
		SELECT ('ffffffff-0000-7000-8000-00000000000' || i)::uuid, $1, 'main', 'request', ('{cancelled,skipped}'::text[])[i], '0' FROM generate_series(1, 2) i`, servicetest.LooseForeignKeys)
	st = servicetest.WantCondition(t, s, status.ConditionFailing, "last run on main failed")
	assert.That(t, st.LastRun != nil && st.LastRun.State == control.RunCancelled,
		"last run %+v, want the cancelled one: the skipped one has not run", st.LastRun)
	e.Exec("main", `DELETE FROM maintenance.runs WHERE state IN ('cancelled', 'skipped')`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	servicetest.WantCondition(t, s, status.ConditionIdle)
}

func statusBacklogIsThatOfAllDatabasesAndFreshAfterARun(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	for _, database := range []string{"main", "ci"} {
		e.Deleted(database, "p", 1, 3)
		e.Deleted(database, "unknown", 1, 2)
		e.Exec(database, `UPDATE loose_foreign_keys_deleted_records SET consume_after = now() + interval '1 hour', created_at = now() - interval '3 days' WHERE primary_key_value = 3`)
		e.Exec(database, `INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, definition, sqlstate, message, failures, recorded_at)
			VALUES ('public.p', 9, 'c.p_id -> p', 'P0001', 'no', 10, now())`)
		e.Exec(database, `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, status, created_at) VALUES ('public.p', 4, 2, '2001-01-01')`)
	}
	st := servicetest.WantCondition(t, s, status.ConditionIdle, "public.unknown")
	if b := st.Backlog; b.Pending != 10 || b.Due != 8 || b.Deferred != 2 || b.Dead != 2 || b.AtLeast || time.Since(b.OldestAt).Round(time.Hour) != 72*time.Hour {
		t.Errorf("backlog %+v", b)
	}
	servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "processed_records=2")
	b := servicetest.Status(t, s).Backlog
	assert.That(t, b.Pending == 8 && b.Due == 6, "backlog %+v, want that of after the run", b)
}

func TestLeases_AreListedByNameForEveryDatabase(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.Small, "main", "ci", "sec")
	s := e.Service(servicetest.OneChild)
	leases, err := s.Leases(context.Background(), "")
	assert.That(t, err == nil && len(leases) == 0, "%v, %v, want none before the first run", leases, err)
	for _, database := range []string{"sec", "main"} {
		servicetest.RunBatch(t, s, database)
	}
	e.ForeignLease("ci", servicetest.LooseForeignKeys+"/ci", "1 hour")
	// A fence row of main's run is not the work's own, nor is a lease of something else.
	e.ForeignLease("ci", servicetest.LooseForeignKeys+"/main", "1 hour")
	e.ForeignLease("main", "something", "1 hour")
	for _, worker := range []string{"", servicetest.LooseForeignKeys} {
		leases := assert.Must(s.Leases(context.Background(), worker))(t)
		var got []string
		for _, l := range leases {
			got = append(got, l.Name+" in "+l.Database)
			assert.That(t, l.Expired == (l.Database != "ci") && !l.AcquiredAt.IsZero() &&
				!l.RenewedAt.IsZero() && !l.ExpiresAt.IsZero() && l.Holder != "" && l.Epoch != 0, "%+v", l)
		}
		want := []string{servicetest.LooseForeignKeys + "/ci in ci", servicetest.LooseForeignKeys + "/main in main", servicetest.LooseForeignKeys + "/sec in sec"}
		assert.That(t, slices.Equal(got, want), "leases %v, want %v", got, want)
	}
	_, err = s.Leases(context.Background(), "nobody")
	isError(t, "leases", err, fault.ErrUnknownWorker)
	_, err = s.Status(context.Background(), "nobody")
	isError(t, "status", err, fault.ErrUnknownWorker)
}

func featureFlagsAreOffUntilSet(e *servicetest.Estate) {
	t := e.T
	s := e.Service(servicetest.OneChild)
	flags := func() string {
		all := assert.Must(s.FeatureFlags(context.Background()))(t)
		var out []string
		for name, on := range all {
			if on {
				name += "!"
			}
			out = append(out, name)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	assert.Equal(t, flags(), "loose_foreign_keys_turbo_mode_ci loose_foreign_keys_turbo_mode_main", "flags")
	err := s.SetFeatureFlag(context.Background(), "last", true)
	isError(t, "a flag that nobody knows", err, fault.ErrUnknownFlag)
	servicetest.WantError(t, err, `"last": known flags are loose_foreign_keys_turbo_mode_ci, loose_foreign_keys_turbo_mode_main`)
	// Settings of an earlier version, or of SQL, are known.
	e.Exec("main", `INSERT INTO maintenance.feature_flags (name, enabled) VALUES ('another_1', false), ('last', true)`)
	for name, on := range map[string]bool{"loose_foreign_keys_turbo_mode_main": true, "another_1": true, "last": false} {
		assert.NoError(t, s.SetFeatureFlag(context.Background(), name, on))
	}
	assert.Equal(t, flags(), "another_1! last loose_foreign_keys_turbo_mode_ci loose_foreign_keys_turbo_mode_main!", "flags")
	assert.NoError(t, s.SetFeatureFlag(context.Background(), "loose_foreign_keys_turbo_mode_main", false))
	assert.Equal(t, servicetest.RunBatch(t, s, "main").TurboMode, false, "turbo mode that was switched off")
	for _, name := range []string{"", "Upper", "1st", "_x", "with space", "ü", strings.Repeat("x", 129)} {
		wantInvalid(t, name, s.SetFeatureFlag(context.Background(), name, true), "name")
	}
}

func wantFailing(t *testing.T, st status.Worker, class status.FailureClass, database, message string) status.Problem {
	t.Helper()
	assert.Require(t, st.Condition == status.ConditionFailing && st.Failing != nil,
		"%s: condition %s: %s", st.Worker, st.Condition, st.ConditionDetail)
	f := *st.Failing
	if f.Class != class || f.Database != database || !strings.Contains(f.Message, message) || !strings.Contains(st.ConditionDetail, f.Message) {
		t.Errorf("%s: %+v (%s), want class %s, database %q, message %q", st.Worker, f, st.ConditionDetail, class, database, message)
	}
	return f
}

func statusFailureIsThatOfTheNewestRunAlsoOfADeadProcess(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	failed := func(reason, text string) {
		e.Exec("main", `TRUNCATE maintenance.runs`)
		e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, reason, error, heartbeat_ttl, finished_at)
			VALUES ('0197c000-0000-7000-8000-000000000001', $1, 'main', 'request', 'failed', $2, $3, '0', now())`,
			servicetest.LooseForeignKeys, reason, text)
	}
	for text, want := range map[[2]string]status.FailureClass{
		{"LEASE_LOST", "the lease was lost"}:                                 status.FailureLeaseLost,
		{"SETTING_INVALID", "deletion_adjourned_period is -1"}:               status.FailureSetting,
		{"KEY_MISMATCH", "c.p_id -> p on main: refers to x, 1 record"}:       status.FailureSchema,
		{"QUEUE_MOVED", "schema x comes first"}:                              status.FailureSchema,
		{"", "claim users on main: 55P03 lock_not_available"}:                status.FailureLock,
		{"", "claim users on main: 57014 query_canceled"}:                    status.FailureTimeout,
		{"", "c.p_id -> p on main: 23514 check_violation, 1 record"}:         status.FailureData,
		{"", "c.p_id -> p on main: unreachable (53100 disk_full), 1 record"}: status.FailureUnreachable,
		{"", "internal error: see the log of this run"}:                      status.FailureInternal,
	} {
		failed(text[0], text[1])
		wantFailing(t, servicetest.Status(t, s), want, "main", "failed: "+strings.Trim(text[0]+"; "+text[1], "; "))
	}

	// The failure to reach a database ends when the database answers.
	const failure = "c.p_id -> p on ci: unreachable, 3 records"
	failed("", failure)
	servicetest.WantCondition(t, s, status.ConditionIdle, "last run on main failed: "+failure+"; the databases answer again")
	// Its fence is held by another session, who keeps the next run from ci as well.
	e.ForeignLease("ci", servicetest.MainLease, "1 hour")
	wantFailing(t, servicetest.Status(t, s), status.FailureUnreachable, "main", failure)
	e.Exec("ci", `DELETE FROM maintenance.leases`)

	// A run of a dead process has failed after its time.
	e.Exec("main", `TRUNCATE maintenance.runs`)
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, heartbeat_ttl, heartbeat_at)
		VALUES ('0197c000-0000-7000-8000-000000000001', $1, 'main', 'schedule', 'running', '40 s', now() - interval '30 s')`, servicetest.LooseForeignKeys)
	lastSign := e.Value("main", `SELECT to_char(heartbeat_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') FROM maintenance.runs`)
	if st := servicetest.WantCondition(t, s, status.ConditionRunning, "no heartbeat since "+lastSign); !strings.Contains(st.CurrentRun.Reason, lastSign) {
		t.Errorf("reason %q", st.CurrentRun.Reason)
	}
	e.Exec("main", `UPDATE maintenance.runs SET heartbeat_at = now() - interval '41 s'`)
	st := servicetest.WantCondition(t, s, status.ConditionFailing, "LEASE_LOST")
	assert.That(t, st.CurrentRun == nil && st.LastRun != nil && st.LastRun.State == control.RunFailed, "%+v", st)
	e.Want("main", `SELECT finished_at = heartbeat_at FROM maintenance.runs`, "true")
}

func statusOfADatabaseThatIsNotMigratedAndOfASchedulerThatCannotStartRuns(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	off := e.Service(servicetest.OneChild, func(c *service.Config) { c.SchedulerOff = true })
	servicetest.WantCondition(t, s, status.ConditionIdle)
	e.Exec("main", `ALTER TABLE maintenance.runs RENAME TO away; ALTER TABLE maintenance.schema_migrations_main RENAME TO also_away`)
	wantFailing(t, servicetest.Status(t, s), status.FailureSchema, "main", "database main is not migrated: run `caretaker migrate`")
	e.Exec("main", `ALTER TABLE maintenance.away RENAME TO runs; ALTER TABLE maintenance.also_away RENAME TO schema_migrations_main`)
	servicetest.WantCondition(t, s, status.ConditionIdle)

	e.Exec("main", `ALTER TABLE maintenance.fires RENAME TO away`)
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	assert.That(t, s.RunDue(ctx) != nil, "fires were looked at without a ledger")
	wantFailing(t, servicetest.Status(t, s), status.FailureSchema, "main", "42P01")
	servicetest.WantCondition(t, off, status.ConditionSchedulerOff)
	e.Exec("main", `ALTER TABLE maintenance.away RENAME TO fires`)
	err := s.RunDue(ctx)
	assert.That(t, err == nil || ctx.Err() != nil, "%v", err)
	// It has waited for a fire if a minute was about to begin.
	e.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
	servicetest.WantCondition(t, s, status.ConditionIdle)
}

func statusATableThatSomebodyHasLocked(e *servicetest.Estate) {
	t := e.T
	s := e.Service("", e.WithQueue)
	release := e.Hold(`LOCK TABLE import_placeholder_user_details`)
	st := servicetest.StatusOf(t, s, servicetest.PlaceholderUsers)
	assert.That(t, st.BacklogUnknown, "backlog %+v, want that it is not known", st.Backlog)
	servicetest.WantDetail(t, st, "backlog of main unknown: this server has not been able to read the backlog since it started")
	r := servicetest.RunPlaceholders(t, s, false)
	servicetest.WantState(t, r, control.RunFailed)
	if !strings.Contains(r.Error, "55P03 lock_not_available: another transaction holds a lock on a table or row") || !strings.Contains(r.Error, "pg_stat_activity") {
		t.Errorf("error %q", r.Error)
	}
	wantFailing(t, servicetest.StatusOf(t, s, servicetest.PlaceholderUsers), status.FailureLock, "", "lock_not_available")
	release()
	st = servicetest.StatusOf(t, e.Service("", e.WithQueue), servicetest.PlaceholderUsers)
	assert.That(t, !st.BacklogUnknown, "the backlog is not known: %s", st.ConditionDetail)
}

func TestFault_DestroyGroup_ItsProgressCanBeSeenWhileItWorks(t *testing.T) {
	g := servicetest.NewGroups(servicetest.Parallel(t))
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
	servicetest.WantDetail(t, servicetest.StatusOf(t, g.Service, servicetest.AdjournedGroups), "removal of group 10, started 20", " rows, 0 projects and 0 groups removed")
	g.Killed(p)
}

func statusSaysWhichJobsOfAWorkerFail(e *servicetest.Estate) {
	t := e.T
	s := e.Service("", e.WithQueue)
	user := func(reason string) jobqueue.Job {
		return jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 1, Reason: reason}}
	}
	e.Insert(append(servicetest.Placeholders(4), user(jobqueue.TokenDeletionReason), user(jobqueue.PlaceholderDeletionReason))...)
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'retryable' WHERE id IN (1, 2, 5)`)
	e.EndJob(3, "discarded")
	st := servicetest.StatusOf(t, s, servicetest.PlaceholderUsers)
	servicetest.WantDetail(t, st, "waiting for ", "2 delete_placeholder_user jobs failed and will be retried (run `caretaker jobs --kind delete_placeholder_user --state retryable`)",
		"1 delete_placeholder_user job discarded (")
	assert.That(t, !strings.Contains(st.ConditionDetail, "delete_user"), "%q speaks of the jobs of another worker", st.ConditionDetail)
	servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.InactiveTokens), "1 delete_user job failed and will be retried (")

	// They are counted again each time, up to a thousand.
	e.Exec("main", `DELETE FROM maintenance.river_job`)
	for _, c := range []struct{ change, shown string }{
		{fmt.Sprintf(failedJobsSQL, 3), "3 delete_placeholder_user jobs discarded ("},
		{fmt.Sprintf(failedJobsSQL, 998), "at least 1,001 delete_placeholder_user jobs discarded ("},
	} {
		e.Exec("main", c.change)
		servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.PlaceholderUsers), c.shown)
	}
}

const failedJobsSQL = `INSERT INTO maintenance.river_job (kind, args, max_attempts, state, finalized_at)
	SELECT 'delete_placeholder_user', '{}', 25, 'discarded', now() FROM generate_series(1, %d)`

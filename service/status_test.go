package service_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestStatus_IdleSaysWhenItGoesOnAndWhatTheLastRunWas(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	servicetest.DryRun(t, s) // is not the last run
	st := servicetest.WantCondition(t, s, service.ConditionIdle, "waiting for")
	left := time.Until(st.NextRunAt)
	assert.That(t, left > 0 && left <= time.Minute && st.Schedule == "* * * * *", "schedule %q, next in %s", st.Schedule, left)
	assert.That(t, st.LastRun == nil && st.CurrentRun == nil && st.Paused == nil && st.LastSuccessAt.IsZero() && len(st.Leases) == 0, "%+v", st)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.DryRun(t, s)
	st = servicetest.WantCondition(t, s, service.ConditionIdle)
	if st.LastRun == nil || st.LastRun.ID != r.ID || !st.LastSuccessAt.Equal(r.FinishedAt) || len(st.Leases) != 1 || !st.Leases[0].Expired {
		t.Errorf("%+v", st)
	}
	off := e.Service(servicetest.OneChild, servicetest.With(func(c *loosefk.Config) { c.Enabled = new(false) }))
	st = servicetest.WantCondition(t, off, service.ConditionSchedulerOff,
		"disabled in the configuration of this server: workers.loose_foreign_keys_cleanup.enabled is false; here only requests start runs")
	assert.That(t, st.NextRunAt.IsZero(), "next run at %s", st.NextRunAt)
}

// Every step adds what takes precedence over all that is there already.
func TestStatus_TheFirstConditionThatHoldsIsSaid(t *testing.T) {
	t.Parallel()
	e := servicetest.NewDeletedParents(t, 10)
	off := func(c *service.Config) { c.SchedulerOff = true }
	s, unconfigured := e.Service(servicetest.OneChild, off, servicetest.Batches(2, 0)), e.Service("", off)
	st := servicetest.WantCondition(t, s, service.ConditionSchedulerOff, "scheduler.enabled")
	assert.That(t, st.NextRunAt.IsZero(), "next run at %s, though the scheduler is off", st.NextRunAt)

	e.ForeignLease("main", servicetest.MainLease, "1 hour")
	servicetest.WantCondition(t, s, service.ConditionLeaseHeldElsewhere, servicetest.MainLease, "somebody")

	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	e.Exec("main", `ALTER TABLE c RENAME COLUMN p_id TO q_id`)
	failed := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, failed, repo.RunFailed)
	e.Exec("main", `UPDATE maintenance.leases SET holder = 'somebody', expires_at = now() + interval '1 hour'`)
	servicetest.WantCondition(t, s, service.ConditionFailing, "main", "c.p_id -> p on main: 42703 undefined_column, 10 records")

	st = servicetest.WantCondition(t, unconfigured, service.ConditionNotConfigured, "definitions")
	assert.That(t, !st.BacklogUnknown && st.Backlog.Pending == 10, "backlog %+v, want the records that wait", st.Backlog)

	assert.Must(s.PauseWorker(context.Background(), servicetest.LooseForeignKeys, "because", "alice", 0))(t)
	servicetest.WantCondition(t, s, service.ConditionPaused, "alice", "because")
	servicetest.WantCondition(t, unconfigured, service.ConditionPaused, "alice", "; not configured: no definitions")

	// Somebody resumes, a run begins, somebody pauses again: until it has noticed, it is running.
	e.Exec("main", `ALTER TABLE c RENAME COLUMN q_id TO p_id; UPDATE maintenance.leases SET expires_at = now();
		UPDATE loose_foreign_keys_deleted_records SET consume_after = now(); DELETE FROM maintenance.pauses`)
	e.Gate("main", "c")
	e.Shut("main", servicetest.App)
	r := servicetest.Begin(t, s, "main")
	e.AtGate("main", servicetest.App)
	e.Exec("main", `INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ($1, 'because', 'alice')`, servicetest.LooseForeignKeys)
	st = servicetest.WantCondition(t, unconfigured, service.ConditionRunning, r.ID)
	assert.That(t, st.CurrentRun != nil && st.CurrentRun.ID == r.ID && st.LastRun != nil && st.LastRun.ID == failed.ID && st.Paused != nil,
		"%+v", st)
}

func TestStatus_FailingSinceTheFirstFailureUntilTheNextSuccessOnThatDatabase(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	e.Exec("main", `ALTER TABLE c RENAME p_id TO q_id`)
	e.Deleted("main", "p", 1, 1)
	first := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, first, repo.RunFailed)
	for range 2 {
		e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
		servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunFailed)
	}
	servicetest.WantState(t, servicetest.RunBatch(t, s, "ci"), repo.RunSucceeded)
	st := servicetest.WantCondition(t, s, service.ConditionFailing, "last run on main failed", "42703")
	f := wantFailing(t, st, service.FailureSchema, "main", "last run on main failed")
	assert.That(t, f.Since.Equal(first.FinishedAt), "since %s, want %s", f.Since, first.FinishedAt)

	// What is no success does not count: a dry run, a cancelled and a skipped one.
	e.Exec("main", `ALTER TABLE c RENAME q_id TO p_id`)
	servicetest.WantState(t, servicetest.DryRun(t, s), repo.RunSucceeded)
	e.Exec("main", `INSERT INTO maintenance.runs (id, worker, database, trigger, state, heartbeat_ttl)
		SELECT ('ffffffff-0000-7000-8000-00000000000' || i)::uuid, $1, 'main', 'request', ('{cancelled,skipped}'::text[])[i], '0' FROM generate_series(1, 2) i`, servicetest.LooseForeignKeys)
	st = servicetest.WantCondition(t, s, service.ConditionFailing, "last run on main failed")
	assert.That(t, st.LastRun != nil && st.LastRun.State == repo.RunCancelled,
		"last run %+v, want the cancelled one: the skipped one has not run", st.LastRun)
	e.Exec("main", `DELETE FROM maintenance.runs WHERE state IN ('cancelled', 'skipped')`)
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	servicetest.WantCondition(t, s, service.ConditionIdle)
}

func TestStatus_BacklogIsThatOfAllDatabasesAndFreshAfterARun(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
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
	st := servicetest.WantCondition(t, s, service.ConditionIdle, "public.unknown")
	if b := st.Backlog; b.Pending != 10 || b.Due != 8 || b.Deferred != 2 || b.Dead != 2 || b.AtLeast || time.Since(b.OldestAt).Round(time.Hour) != 72*time.Hour {
		t.Errorf("backlog %+v", b)
	}
	servicetest.WantCounts(t, servicetest.RunBatch(t, s, "main"), "processed_records=2")
	b := servicetest.Status(t, s).Backlog
	assert.That(t, b.Pending == 8 && b.Due == 6, "backlog %+v, want that of after the run", b)
}

func TestLeases_AreListedByNameForEveryDatabase(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci", "sec")
	s := e.Service(servicetest.OneChild)
	leases, err := s.Leases(context.Background(), "")
	assert.That(t, err == nil && len(leases) == 0, "%v, %v, want none before the first run", leases, err)
	for _, database := range []string{"sec", "main"} {
		servicetest.RunBatch(t, s, database)
	}
	e.ForeignLease("ci", servicetest.LooseForeignKeys+"/ci", "1 hour")
	// A fence row of main's run is not the work's own, nor is somebody's lease of something else.
	e.ForeignLease("ci", servicetest.LooseForeignKeys+"/main", "1 hour")
	e.ForeignLease("main", "something", "1 hour")
	for _, worker := range []string{"", servicetest.LooseForeignKeys} {
		leases := assert.Must(s.Leases(context.Background(), worker))(t)
		var got []string
		for _, l := range leases {
			got = append(got, l.Name+" in "+l.Database)
			if l.Expired != (l.Database != "ci") || l.AcquiredAt.IsZero() || l.RenewedAt.IsZero() || l.ExpiresAt.IsZero() || l.Holder == "" || l.Epoch == 0 {
				t.Errorf("%+v", l)
			}
		}
		want := []string{servicetest.LooseForeignKeys + "/ci in ci", servicetest.LooseForeignKeys + "/main in main", servicetest.LooseForeignKeys + "/sec in sec"}
		assert.That(t, slices.Equal(got, want), "leases %v, want %v", got, want)
	}
	_, err = s.Leases(context.Background(), "nobody")
	isError(t, "leases", err, service.ErrUnknownWorker)
	_, err = s.Status(context.Background(), "nobody")
	isError(t, "status", err, service.ErrUnknownWorker)
}

func TestFeatureFlags_AreOffUntilSet(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, servicetest.Small, "main", "ci")
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
	isError(t, "a flag that nobody knows", err, service.ErrUnknownFlag)
	servicetest.WantError(t, err, `"last": known are loose_foreign_keys_turbo_mode_ci, loose_foreign_keys_turbo_mode_main`)
	// What an earlier version, or SQL, has set is known.
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

package placeholderuser_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/placeholderuser"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestPlaceholderUserCleanup_ClaimsWhatIsEligible(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempts  int
		attempted string
		claimed   bool
		after     string
	}{
		"never attempted":           {0, `NULL`, true, "1"},
		"attempted three days ago":  {2, `now() - interval '3 days'`, true, "3"},
		"attempted yesterday":       {1, `now() - interval '1 day'`, false, "1"},
		"exhausted":                 {15, `now() - interval '3 days'`, false, "15"},
		"beyond exhausted":          {16, `NULL`, false, "16"},
		"one attempt left":          {14, `now() - interval '3 days'`, true, "15"},
		"attempted in the future":   {3, `now() + interval '1 day'`, false, "3"},
		"negative number":           {-2, `NULL`, true, "-1"},
		"attempted infinitely ago":  {1, `'-infinity'`, true, "2"},
		"attempted 48 hours ago":    {1, `now() - interval '48 hours 1 second'`, true, "2"},
		"attempted almost 48 hours": {1, `now() - interval '47 hours 59 minutes'`, false, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewPlaceholders(t)
			e.Detail(7, c.attempts, c.attempted)
			r := servicetest.RunPlaceholders(t, e.Service("", e.WithQueue), false)
			servicetest.WantState(t, r, "succeeded")
			e.Want("main", `SELECT deletion_attempts FROM import_placeholder_user_details`, c.after)
			want := "NULL"
			if c.claimed {
				want = "7"
				e.Want("main", `SELECT d.last_deletion_attempt_at = r.started_at AND d.updated_at = r.started_at AND j.scheduled_at = r.started_at
					FROM import_placeholder_user_details d, maintenance.runs r, maintenance.river_job j`, "true")
			}
			e.Want("main", servicetest.JobsOfPlaceholders, want)
		})
	}
}

func TestPlaceholderUserCleanup_WarnsAtTheLastAttemptOnly(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(7, 14, `now() - interval '3 days'`)
	e.Detail(8, 13, `now() - interval '3 days'`)
	var logs servicetest.Buffer
	s := e.Service("", e.WithQueue, func(c *service.Config) { c.Logger = slog.New(slog.NewJSONHandler(&logs, nil)) })
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=2 exhausted_users=1")
	warning := `"msg":"Maximum deletion attempts (15) reached. Making the final attempt to delete the placeholder user."`
	if got := logs.String(); strings.Count(got, warning) != 1 || !strings.Contains(got, `"placeholder_user_id":7`) {
		t.Errorf("log: %s", got)
	}
	e.Want("main", servicetest.JobsOfPlaceholders, "7 8")
	e.Exec("main", `UPDATE import_placeholder_user_details SET last_deletion_attempt_at = now() - interval '3 days'`)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "exhausted_users=1")
	e.Want("main", `SELECT deletion_attempts FROM import_placeholder_user_details WHERE id = 7`, "15")
}

func TestPlaceholderUserCleanup_NamespaceMustBeGone(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(7, 0, `NULL`)
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1`)
	s := e.Service("", e.WithQueue)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "")
	e.Exec("main", `DELETE FROM namespaces`)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=1")
}

func TestPlaceholderUserCleanup_JobsStartASecondApartOverAllPages(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	for id := range 5 {
		e.Detail(20-3*id, 0, `NULL`)
	}
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=5")
	e.Want("main", `SELECT string_agg((args ->> 'placeholder_user_id') || '+' || extract(epoch FROM scheduled_at - started_at)::int, ' ' ORDER BY scheduled_at)
		FROM maintenance.river_job, maintenance.runs`, "8+0 11+1 14+2 17+3 20+4")
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "5")
}

func TestPlaceholderUserCleanup_IdsOfNothingAndLessAreClaimedToo(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	for _, id := range []int{-9_000_000_000_000_000_000, -5, -4, 0, 1} {
		e.Detail(id, 14, `NULL`)
	}
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, true), "scheduled_jobs=5 exhausted_users=5")
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=5 exhausted_users=5")
	e.Want("main", servicetest.JobsOfPlaceholders, "-9000000000000000000 -5 -4 0 1")
	e.Want("main", `SELECT count(*) FROM import_placeholder_user_details WHERE deletion_attempts = 15`, "5")
}

// The job of a user who is claimed again keeps its row for as long as its transaction lasts, which is longer than a claim
// can wait.
func TestPlaceholderUserCleanup_UserWhoseJobIsAtWorkDoesNotFailTheRun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(7, 0, `NULL`)
	e.Detail(8, 0, `NULL`)
	e.Insert(servicetest.JobOf(repo.DeletePlaceholderUser{PlaceholderUserID: 7}))
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'running', attempted_at = now()`)
	e.Exec("main", `BEGIN; SELECT FROM maintenance.river_job WHERE state = 'running' FOR SHARE`)
	r := servicetest.RunPlaceholders(t, e.Service("", e.WithQueue), false)
	e.Exec("main", `COMMIT`)
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "scheduled_jobs=1")
	e.Want("main", servicetest.JobsOfPlaceholders, "7 8")
}

func TestPlaceholderUserCleanup_AttemptAndJobExistBothOrNeither(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(7, 0, `NULL`)
	s := e.Service("", e.WithQueue)
	e.Exec("main", `ALTER TABLE maintenance.river_job ADD CONSTRAINT refused CHECK (kind <> 'delete_placeholder_user')`)
	servicetest.WantState(t, servicetest.RunPlaceholders(t, s, false), "failed")
	e.Want("main", `SELECT deletion_attempts FROM import_placeholder_user_details`, "0")
	e.Exec("main", `ALTER TABLE maintenance.river_job DROP CONSTRAINT refused`)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=1")
}

func TestPlaceholderUserCleanup_LockedRowWaitsForTheNextRun(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	for id := range 3 {
		e.Detail(id+1, 0, `NULL`)
	}
	ctx := context.Background()
	other, err := pgx.Connect(ctx, e.URLs["main"])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(ctx) }()
	tx, err := other.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT FROM import_placeholder_user_details WHERE id IN (1, 2) FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	// A page made empty by locks is not the end.
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=1")
	e.Want("main", servicetest.JobsOfPlaceholders, "3")
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=2")
}

func TestPlaceholderUserCleanup_WaitingJobIsNotDoubled(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(7, 0, `NULL`)
	e.Detail(8, 0, `NULL`)
	e.Exec("main", `UPDATE import_placeholder_user_details SET placeholder_user_id = 7 WHERE id = 8`)
	s := e.Service("", e.WithQueue)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, true), "scheduled_jobs=1")
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=1")
	e.Exec("main", `UPDATE import_placeholder_user_details SET last_deletion_attempt_at = now() - interval '3 days'`)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, true), "")
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "")
	e.Want("main", `SELECT string_agg(deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "2 2")
}

func TestPlaceholderUserCleanup_TwoRunsCountEachRowOnce(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Exec("main", `INSERT INTO users (id, username, email, projects_limit, user_type, organization_id) SELECT i, i, i, 0, 15, 1 FROM generate_series(1, 3000) i`)
	e.Exec("main", `INSERT INTO import_placeholder_user_details (placeholder_user_id, organization_id, created_at, updated_at) SELECT i, 1, now(), now() FROM generate_series(1, 3000) i`)
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 50 }))
	first, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.PlaceholderUsers, Async: true})
	if err != nil {
		t.Fatal(err)
	}
	// The first run's lease is taken from it in the middle.
	e.Exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	second := servicetest.RunPlaceholders(t, s, false)
	first = servicetest.Ended(t, s, first.ID)
	servicetest.WantState(t, second, "succeeded")
	if first.State == "failed" && first.Reason != "LEASE_LOST" {
		t.Errorf("first run failed: %s %s", first.Reason, first.Error)
	}
	e.Want("main", `SELECT count(*) || ' ' || sum(deletion_attempts) FROM import_placeholder_user_details`, "3000 3000")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "3000")
	if n := first.Counts["scheduled_jobs"] + second.Counts["scheduled_jobs"]; n != 3000 {
		t.Errorf("the runs counted %d jobs, want 3000", n)
	}
}

func TestPlaceholderUserCleanup_HeldLeaseRefusesARequest(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(7, 0, `NULL`)
	e.Exec("main", `INSERT INTO maintenance.leases VALUES ('placeholder_user_cleanup', 'other', 3, now(), now(), now() + interval '1 hour')`)
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.Schedule = servicetest.EveryMinute }))
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.PlaceholderUsers})
	if _, held := errors.AsType[*service.LeaseHeldError](err); !held {
		t.Errorf("error %v, want that the lease is held", err)
	}
	if tick := e.Fire(s, servicetest.PlaceholderUsers); tick.State != "skipped" {
		t.Errorf("tick: %v, want it skipped", tick.State)
	}
	e.Want("main", `SELECT deletion_attempts FROM import_placeholder_user_details`, "0")
}

func TestPlaceholderUserCleanup_DryRunCountsAndWritesNothing(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(1, 14, `now() - interval '3 days'`)
	e.Detail(2, 0, `NULL`)
	e.Detail(3, 0, `NULL`)
	before := e.Value("main", `SELECT md5(string_agg(d::text, '|')) FROM import_placeholder_user_details d`)
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	r := servicetest.RunPlaceholders(t, s, true)
	servicetest.WantState(t, r, "succeeded")
	servicetest.WantCounts(t, r, "scheduled_jobs=3 exhausted_users=1")
	e.Want("main", `SELECT md5(string_agg(d::text, '|')) FROM import_placeholder_user_details d`, before)
	e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
	e.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
}

func TestPlaceholderUserCleanup_BacklogTellsDueDeferredAndDead(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(1, 0, `NULL`)
	e.Detail(2, 3, `now() - interval '3 days'`)
	e.Detail(3, 3, `now() - interval '1 day'`)
	e.Detail(4, 15, `now() - interval '9 days'`)
	e.Detail(5, 2, `NULL`)
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1 WHERE id = 5`)
	st, err := e.Service("", e.WithQueue).Status(context.Background(), servicetest.PlaceholderUsers)
	if err != nil {
		t.Fatal(err)
	}
	if b := st[0].Backlog; b.Pending != 3 || b.Due != 2 || b.Deferred != 1 || b.Dead != 1 || b.OldestAt.IsZero() {
		t.Errorf("backlog %+v", b)
	}
}

func TestPlaceholderUserCleanup_WhatItOrItsJobsNeedIsNamed(t *testing.T) {
	t.Parallel()
	for sql, named := range map[string]string{
		`DROP TABLE import_placeholder_user_details`:      "no table import_placeholder_user_details",
		`DROP TABLE ghost_user_migrations`:                "no table ghost_user_migrations",
		`ALTER TABLE users DROP COLUMN user_type CASCADE`: "no column user_type in its table users",
		servicetest.StateIsANumber:                        "users.state of database main has the type integer",
	} {
		e := servicetest.NewPlaceholders(t)
		e.Exec("main", sql)
		s := e.Service("", e.WithQueue)
		for _, dry := range []bool{false, true} {
			_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.PlaceholderUsers, DryRun: dry})
			if missing, ok := errors.AsType[*service.NotConfiguredError](err); !ok || !strings.Contains(missing.Missing, named) {
				t.Errorf("error %v, want %q", err, named)
			}
		}
		st, err := s.Status(context.Background(), servicetest.PlaceholderUsers)
		if err != nil || st[0].Condition != service.ConditionNotConfigured || !strings.Contains(st[0].ConditionDetail, named) {
			t.Errorf("condition %v %q, error %v", st[0].Condition, st[0].ConditionDetail, err)
		}
	}
}

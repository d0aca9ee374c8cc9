package service_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/placeholderuser"
)

const placeholderWorker = "placeholder_user_cleanup"

// placeholderEstate has organization 1 and a namespace 1 of an import.
func placeholderEstate(t *testing.T) *estate {
	t.Helper()
	e := newEstate(t, "main", "main")
	e.exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	e.exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) VALUES (1, 'import', 'import', 'Group', 1)`)
	return e
}

// detail makes a user and its detail with the same id; attempted is an SQL expression.
func (e *estate) detail(id, attempts int, attempted string, userType ...int) {
	e.t.Helper()
	kind := 15
	if len(userType) > 0 {
		kind = userType[0]
	}
	e.exec("main", `INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id) VALUES ($1, $2, $2, 0, 'active', $3, 1)`,
		id, fmt.Sprintf("u%d", id), kind)
	e.exec("main", `INSERT INTO import_placeholder_user_details (id, placeholder_user_id, deletion_attempts, organization_id, last_deletion_attempt_at, created_at, updated_at)
		VALUES ($1, $1, $2, 1, `+attempted+`, now(), now())`, id, attempts)
}

func runPlaceholders(t *testing.T, s *service.Service, dry bool) service.Run {
	t.Helper()
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: placeholderWorker, DryRun: dry})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const jobsOfPlaceholders = `SELECT string_agg(args ->> 'placeholder_user_id', ' ' ORDER BY scheduled_at) FROM maintenance.river_job WHERE kind = 'delete_placeholder_user'`

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
			e := placeholderEstate(t)
			e.detail(7, c.attempts, c.attempted)
			r := runPlaceholders(t, e.service("", e.withQueue), false)
			wantState(t, r, "succeeded")
			e.want("main", `SELECT deletion_attempts FROM import_placeholder_user_details`, c.after)
			want := "NULL"
			if c.claimed {
				want = "7"
				e.want("main", `SELECT d.last_deletion_attempt_at = r.started_at AND d.updated_at = r.started_at AND j.scheduled_at = r.started_at
					FROM import_placeholder_user_details d, maintenance.runs r, maintenance.river_job j`, "true")
			}
			e.want("main", jobsOfPlaceholders, want)
		})
	}
}

func TestPlaceholderUserCleanup_WarnsAtTheLastAttemptOnly(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.detail(7, 14, `now() - interval '3 days'`)
	e.detail(8, 13, `now() - interval '3 days'`)
	var logs lockedBuffer
	s := e.service("", e.withQueue, func(c *service.Config) { c.Logger = slog.New(slog.NewJSONHandler(&logs, nil)) })
	wantCounts(t, runPlaceholders(t, s, false), "scheduled_jobs=2 exhausted_users=1")
	warning := `"msg":"Maximum deletion attempts (15) reached. Making the final attempt to delete the placeholder user."`
	if got := logs.String(); strings.Count(got, warning) != 1 || !strings.Contains(got, `"placeholder_user_id":7`) {
		t.Errorf("log: %s", got)
	}
	e.want("main", jobsOfPlaceholders, "7 8")
	e.exec("main", `UPDATE import_placeholder_user_details SET last_deletion_attempt_at = now() - interval '3 days'`)
	wantCounts(t, runPlaceholders(t, s, false), "exhausted_users=1")
	e.want("main", `SELECT deletion_attempts FROM import_placeholder_user_details WHERE id = 7`, "15")
}

// lockedBuffer is a log that the run's goroutines write and the test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestPlaceholderUserCleanup_NamespaceMustBeGone(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.detail(7, 0, `NULL`)
	e.exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1`)
	s := e.service("", e.withQueue)
	wantCounts(t, runPlaceholders(t, s, false), "")
	e.exec("main", `DELETE FROM namespaces`)
	wantCounts(t, runPlaceholders(t, s, false), "scheduled_jobs=1")
}

func TestPlaceholderUserCleanup_JobsStartASecondApartOverAllPages(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	for id := range 5 {
		e.detail(20-3*id, 0, `NULL`)
	}
	s := e.service("", e.withQueue, with(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	wantCounts(t, runPlaceholders(t, s, false), "scheduled_jobs=5")
	e.want("main", `SELECT string_agg((args ->> 'placeholder_user_id') || '+' || extract(epoch FROM scheduled_at - started_at)::int, ' ' ORDER BY scheduled_at)
		FROM maintenance.river_job, maintenance.runs`, "8+0 11+1 14+2 17+3 20+4")
	wantCounts(t, runPlaceholders(t, s, false), "")
	e.want("main", `SELECT count(*) FROM maintenance.river_job`, "5")
}

func TestPlaceholderUserCleanup_IdsOfNothingAndLessAreClaimedToo(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	for _, id := range []int{-9_000_000_000_000_000_000, -5, -4, 0, 1} {
		e.detail(id, 14, `NULL`)
	}
	s := e.service("", e.withQueue, with(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	wantCounts(t, runPlaceholders(t, s, true), "scheduled_jobs=5 exhausted_users=5")
	wantCounts(t, runPlaceholders(t, s, false), "scheduled_jobs=5 exhausted_users=5")
	e.want("main", jobsOfPlaceholders, "-9000000000000000000 -5 -4 0 1")
	e.want("main", `SELECT count(*) FROM import_placeholder_user_details WHERE deletion_attempts = 15`, "5")
}

func TestPlaceholderUserCleanup_AttemptAndJobExistBothOrNeither(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.detail(7, 0, `NULL`)
	s := e.service("", e.withQueue)
	e.exec("main", `ALTER TABLE maintenance.river_job ADD CONSTRAINT refused CHECK (kind <> 'delete_placeholder_user')`)
	wantState(t, runPlaceholders(t, s, false), "failed")
	e.want("main", `SELECT deletion_attempts FROM import_placeholder_user_details`, "0")
	e.exec("main", `ALTER TABLE maintenance.river_job DROP CONSTRAINT refused`)
	wantCounts(t, runPlaceholders(t, s, false), "scheduled_jobs=1")
}

func TestPlaceholderUserCleanup_LockedRowWaitsForTheNextRun(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	for id := range 3 {
		e.detail(id+1, 0, `NULL`)
	}
	ctx := context.Background()
	other, err := pgx.Connect(ctx, e.urls["main"])
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
	s := e.service("", e.withQueue, with(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	wantCounts(t, runPlaceholders(t, s, false), "scheduled_jobs=1")
	e.want("main", jobsOfPlaceholders, "3")
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	wantCounts(t, runPlaceholders(t, s, false), "scheduled_jobs=2")
}

func TestPlaceholderUserCleanup_WaitingJobIsNotDoubled(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.detail(7, 0, `NULL`)
	e.detail(8, 0, `NULL`)
	e.exec("main", `UPDATE import_placeholder_user_details SET placeholder_user_id = 7 WHERE id = 8`)
	s := e.service("", e.withQueue)
	wantCounts(t, runPlaceholders(t, s, true), "scheduled_jobs=1")
	wantCounts(t, runPlaceholders(t, s, false), "scheduled_jobs=1")
	e.exec("main", `UPDATE import_placeholder_user_details SET last_deletion_attempt_at = now() - interval '3 days'`)
	wantCounts(t, runPlaceholders(t, s, true), "")
	wantCounts(t, runPlaceholders(t, s, false), "")
	e.want("main", `SELECT string_agg(deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "2 2")
}

func TestPlaceholderUserCleanup_TwoRunsCountEachRowOnce(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.exec("main", `INSERT INTO users (id, username, email, projects_limit, user_type, organization_id) SELECT i, i, i, 0, 15, 1 FROM generate_series(1, 3000) i`)
	e.exec("main", `INSERT INTO import_placeholder_user_details (placeholder_user_id, organization_id, created_at, updated_at) SELECT i, 1, now(), now() FROM generate_series(1, 3000) i`)
	s := e.service("", e.withQueue, with(func(c *placeholderuser.Config) { c.BatchSize = 50 }))
	first, err := s.RunBatch(context.Background(), service.RunRequest{Worker: placeholderWorker, Async: true})
	if err != nil {
		t.Fatal(err)
	}
	// The first run's lease is taken from it in the middle.
	e.exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	second := runPlaceholders(t, s, false)
	for first.State == "running" {
		time.Sleep(20 * time.Millisecond)
		if first, err = s.Run(context.Background(), first.ID); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, second, "succeeded")
	if first.State == "failed" && first.Reason != "LEASE_LOST" {
		t.Errorf("first run failed: %s %s", first.Reason, first.Error)
	}
	e.want("main", `SELECT count(*) || ' ' || sum(deletion_attempts) FROM import_placeholder_user_details`, "3000 3000")
	e.want("main", `SELECT count(*) FROM maintenance.river_job`, "3000")
	if n := first.Counts["scheduled_jobs"] + second.Counts["scheduled_jobs"]; n != 3000 {
		t.Errorf("the runs counted %d jobs, want 3000", n)
	}
}

func TestPlaceholderUserCleanup_HeldLeaseRefusesARequest(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.detail(7, 0, `NULL`)
	e.exec("main", `INSERT INTO maintenance.leases VALUES ('placeholder_user_cleanup', 'other', 3, now(), now(), now() + interval '1 hour')`)
	s := e.service("", e.withQueue)
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: placeholderWorker})
	if _, held := errors.AsType[*service.LeaseHeldError](err); !held {
		t.Errorf("error %v, want that the lease is held", err)
	}
	tick, ours, err := s.RunScheduled(context.Background(), placeholderWorker, time.Now().Truncate(time.Minute))
	if err != nil || !ours || tick.State != "skipped" {
		t.Errorf("tick: %v %v %v, want it skipped", tick.State, ours, err)
	}
	e.want("main", `SELECT deletion_attempts FROM import_placeholder_user_details`, "0")
}

func TestPlaceholderUserCleanup_DryRunCountsAndWritesNothing(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.detail(1, 14, `now() - interval '3 days'`)
	e.detail(2, 0, `NULL`)
	e.detail(3, 0, `NULL`)
	before := e.value("main", `SELECT md5(string_agg(d::text, '|')) FROM import_placeholder_user_details d`)
	s := e.service("", e.withQueue, with(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	r := runPlaceholders(t, s, true)
	wantState(t, r, "succeeded")
	wantCounts(t, r, "scheduled_jobs=3 exhausted_users=1")
	e.want("main", `SELECT md5(string_agg(d::text, '|')) FROM import_placeholder_user_details d`, before)
	e.want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
	e.want("main", `SELECT count(*) FROM maintenance.leases`, "0")
}

func TestPlaceholderUserCleanup_BacklogTellsDueDeferredAndDead(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.detail(1, 0, `NULL`)
	e.detail(2, 3, `now() - interval '3 days'`)
	e.detail(3, 3, `now() - interval '1 day'`)
	e.detail(4, 15, `now() - interval '9 days'`)
	e.detail(5, 2, `NULL`)
	e.exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1 WHERE id = 5`)
	st, err := e.service("", e.withQueue).Status(context.Background(), placeholderWorker)
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
		stateIsANumber: "users.state of database main has the type integer",
	} {
		e := placeholderEstate(t)
		e.exec("main", sql)
		s := e.service("", e.withQueue)
		for _, dry := range []bool{false, true} {
			_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: placeholderWorker, DryRun: dry})
			if missing, is := errors.AsType[*service.NotConfiguredError](err); !is || !strings.Contains(missing.Missing, named) {
				t.Errorf("error %v, want %q", err, named)
			}
		}
		st, err := s.Status(context.Background(), placeholderWorker)
		if err != nil || st[0].Condition != service.ConditionNotConfigured || !strings.Contains(st[0].ConditionDetail, named) {
			t.Errorf("condition %v %q, error %v", st[0].Condition, st[0].ConditionDetail, err)
		}
	}
}

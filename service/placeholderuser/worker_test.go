package placeholderuser_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/placeholderuser"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// The time between two attempts is the same in any time zone of the process and of the database.
func TestPlaceholderUserCleanup_ClaimsWhatIsEligible(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name      string
		attempts  int
		attempted string
		claimed   bool
	}{
		{"never attempted", 0, `NULL`, true},
		{"attempted three days ago", 2, `now() - interval '3 days'`, true},
		{"attempted yesterday", 1, `now() - interval '1 day'`, false},
		{"exhausted", 15, `now() - interval '3 days'`, false},
		{"beyond exhausted", 16, `NULL`, false},
		{"one attempt left", 14, `now() - interval '3 days'`, true},
		{"attempted in the future", 3, `now() + interval '1 day'`, false},
		{"negative number", -2, `NULL`, true},
		{"attempted infinitely ago", 1, `'-infinity'`, true},
		{"attempted 48 hours ago", 1, `now() - interval '48 hours 1 second'`, true},
		{"attempted almost 48 hours ago", 1, `now() - interval '47 hours'`, false},
	}
	for _, zone := range append(servicetest.Zones(), "") {
		t.Run(zone, func(t *testing.T) {
			e := servicetest.NewPlaceholders(servicetest.Parallel(t))
			for i, c := range cases {
				e.Detail(1+i, c.attempts, c.attempted)
			}
			if zone == "" {
				servicetest.WantState(t, servicetest.RunPlaceholders(t, e.Service("", e.WithQueue), false), "succeeded")
			} else {
				e.RunIn(zone, servicetest.PlaceholderUsers)
			}
			for i, c := range cases {
				want := fmt.Sprintf("%d attempts, 0 jobs", c.attempts)
				if c.claimed {
					want = fmt.Sprintf("%d attempts, 1 jobs of this run", c.attempts+1)
				}
				got := e.Value("main", `SELECT d.deletion_attempts || ' attempts, ' || count(j) || ' jobs' || CASE WHEN bool_and(d.last_deletion_attempt_at = r.started_at
						AND d.updated_at = r.started_at AND j.scheduled_at - r.started_at < interval '1 minute') THEN ' of this run' ELSE '' END
					FROM maintenance.runs r, import_placeholder_user_details d
					LEFT JOIN maintenance.river_job j ON (j.args ->> 'placeholder_user_id')::bigint = d.placeholder_user_id
					WHERE d.id = $1 GROUP BY d.id`, 1+i)
				if got != want {
					t.Errorf("%s: %s, want %s", c.name, got, want)
				}
			}
		})
	}
}

// With gaps between the ids, several details of one user, and others that are not due among them.
func TestPlaceholderUserCleanup_WalksOverAllPages(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 3 }))
	for _, n := range servicetest.PageEdges(3) {
		e.Exec("main", `DELETE FROM import_placeholder_user_details; DELETE FROM users WHERE user_type = 15; DELETE FROM maintenance.river_job`)
		for i := range n {
			e.Detail(10+7*i, 0, `NULL`)
			e.Detail(13+7*i, 15, `NULL`)
		}
		counts := fmt.Sprintf("scheduled_jobs=%d", n)
		servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, true), counts)
		servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), counts)
		e.Want("main", `SELECT count(DISTINCT args ->> 'placeholder_user_id') FROM maintenance.river_job`, fmt.Sprint(n))
		e.Want("main", `SELECT count(*) FROM import_placeholder_user_details WHERE deletion_attempts = 1`, fmt.Sprint(n))
	}
}

func TestPlaceholderUserCleanup_WarnsAtTheLastAttemptOnly(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
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

func TestPlaceholderUserCleanup_NamespaceMustBeGoneAndAttemptAndJobExistBothOrNeither(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	e.Detail(7, 0, `NULL`)
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1`)
	s := e.Service("", e.WithQueue)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "")
	e.Exec("main", `DELETE FROM namespaces;
		ALTER TABLE maintenance.river_job ADD CONSTRAINT refused CHECK (kind <> 'delete_placeholder_user')`)
	servicetest.WantState(t, servicetest.RunPlaceholders(t, s, false), "failed")
	e.Want("main", `SELECT deletion_attempts FROM import_placeholder_user_details`, "0")
	e.Exec("main", `ALTER TABLE maintenance.river_job DROP CONSTRAINT refused`)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=1")
}

func TestPlaceholderUserCleanup_JobsStartASecondApartOverAllPages(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
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
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
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
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
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

func TestPlaceholderUserCleanup_LockedRowWaitsForTheNextRun(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	for id := range 3 {
		e.Detail(id+1, 0, `NULL`)
	}
	release := e.Hold(`SELECT FROM import_placeholder_user_details WHERE id IN (1, 2) FOR UPDATE`)
	// A page made empty by locks is not the end.
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 2 }))
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=1")
	e.Want("main", servicetest.JobsOfPlaceholders, "3")
	release()
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=2")
}

func TestPlaceholderUserCleanup_WaitingJobIsNotDoubled(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
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

func TestPlaceholderUserCleanup_BacklogTellsDueDeferredAndDead(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	e.Detail(1, 0, `NULL`)
	e.Detail(2, 3, `now() - interval '3 days'`)
	e.Detail(3, 3, `now() - interval '1 day'`)
	e.Detail(4, 15, `now() - interval '9 days'`)
	e.Detail(5, 2, `NULL`)
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1 WHERE id = 5`)
	if b := servicetest.StatusOf(t, e.Service("", e.WithQueue), servicetest.PlaceholderUsers).Backlog; b.Pending != 3 || b.Due != 2 ||
		b.Deferred != 1 || b.Dead != 1 || b.OldestAt.IsZero() {
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

func TestPlaceholderUserCleanup_DryRunNamesTheFirstThousandAndCountsTheRest(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	e.Detail(1, 14, `now() - interval '3 days'`)
	e.Detail(2, 0, `NULL`)
	e.Exec("main", `INSERT INTO import_placeholder_user_details (id, placeholder_user_id, deletion_attempts, organization_id, created_at, updated_at)
		SELECT i, 2, 0, 1, now(), now() FROM generate_series(3, 1005) i`)
	s := e.Service("", e.WithQueue)
	r := servicetest.RunPlaceholders(t, s, true)
	servicetest.WantCounts(t, r, "scheduled_jobs=2 exhausted_users=1")
	if len(r.Candidates) != 1000 || r.MoreCandidates != 5 {
		t.Errorf("%d candidates and %d more", len(r.Candidates), r.MoreCandidates)
	}
	r.Candidates = r.Candidates[:3]
	servicetest.WantCandidates(t, r,
		"placeholder 1 u1 queue the last attempt",
		"placeholder 2 u2 queue",
		"placeholder 2 u2 queue JOB_WAITING: a job for it waits already",
	)
	// The digest is that of all, also of those not listed.
	e.Exec("main", `DELETE FROM import_placeholder_user_details WHERE id = 1005`)
	if again := servicetest.RunPlaceholders(t, s, true); again.CandidatesDigest == r.CandidatesDigest {
		t.Error("one is gone, and the digest is the same")
	}
}

func TestPlaceholderUserCleanup_ARunHeldToAPlanClaimsNobodyElse(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	for id := range 4 {
		e.Detail(id+1, 0, `NULL`)
	}
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1 WHERE id = 3`)
	e.Gate("main", "import_placeholder_user_details", "OLD.id = 1")
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholderuser.Config) { c.BatchSize = 1 }))
	r := servicetest.RunPlanned(e, s, servicetest.PlaceholderUsers, func() {
		e.Detail(9, 0, `NULL`)
		e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = NULL WHERE id = 3`)
	})
	servicetest.WantCounts(t, r, "scheduled_jobs=3")
	e.Want("main", servicetest.JobsOfPlaceholders, "1 2 4")
	e.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM import_placeholder_user_details WHERE deletion_attempts = 0`, "3 9")
}

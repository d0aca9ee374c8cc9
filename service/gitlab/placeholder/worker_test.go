package placeholder_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/placeholder"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestMain(m *testing.M) { servicetest.Main(m) }

func TestContract(t *testing.T) {
	servicetest.Contract(t, servicetest.Fixture{
		Worker: placeholder.Name,
		Schema: "main",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
		},
		Due: func(e *servicetest.Estate, n int) {
			for id := range n {
				e.Detail(id+1, 0, "NULL::timestamptz")
			}
		},
		Done:     servicetest.Change{Event: "UPDATE", Table: "import_placeholder_user_details", Thing: `r ->> 'id'`},
		Settings: map[string]string{"batch_size": "1"},
	})
}

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
				assert.That(t, got == want, "%s: %s, want %s", c.name, got, want)
			}
		})
	}
}

func TestPlaceholderUserCleanup_Runs(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	servicetest.Cases(t, e, map[string]func(*servicetest.Estate){
		"walks over all pages":                                                 walksOverAllPages,
		"warns at the last attempt only":                                       warnsAtTheLastAttemptOnly,
		"namespace must be gone and attempt and job exist both or neither":     namespaceMustBeGoneAndAttemptAndJobExistBothOrNeither,
		"jobs start a second apart over all pages also those of IDs below one": jobsStartASecondApartOverAllPagesAlsoThoseOfIDsBelowOne,
		"user whose job is at work does not fail the run":                      userWhoseJobIsAtWorkDoesNotFailTheRun,
		"locked row waits for the next run":                                    lockedRowWaitsForTheNextRun,
		"waiting job is not doubled":                                           waitingJobIsNotDoubled,
		"backlog tells due deferred and dead":                                  backlogTellsDueDeferredAndDead,
		"dry run names the first thousand and counts the rest":                 dryRunNamesTheFirstThousandAndCountsTheRest,
		"a run held to a plan claims nobody else":                              aRunHeldToAPlanClaimsNobodyElse,
		"queues the user with itself as actor":                                 queuesTheUserWithItselfAsActor,
	})
}

// With gaps between the ids, several details of one user, and others that are not due among them.
func walksOverAllPages(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholder.Config) { c.BatchSize = 3 }))
	for _, n := range servicetest.PageEdges(3) {
		e.Exec("main", `DELETE FROM import_placeholder_user_details; DELETE FROM users WHERE user_type = 15; DELETE FROM maintenance.river_job`)
		for i := range n {
			e.Detail(10+7*i, 0, `NULL`)
			e.Detail(13+7*i, 15, `NULL`)
		}
		counts := fmt.Sprintf("scheduled_jobs=%d", n)
		servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, true), counts)
		servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), counts)
		e.Want("main", `SELECT count(DISTINCT args ->> 'placeholder_user_id') FROM maintenance.river_job`, fmt.Sprint(n))
		e.Want("main", `SELECT count(*) FROM import_placeholder_user_details WHERE deletion_attempts = 1`, fmt.Sprint(n))
	}
}

func warnsAtTheLastAttemptOnly(e *servicetest.Estate) {
	e.Detail(7, 14, `now() - interval '3 days'`)
	e.Detail(8, 13, `now() - interval '3 days'`)
	var logs servicetest.Buffer
	s := e.Service("", e.WithQueue, func(c *service.Config) { c.Logger = slog.New(slog.NewJSONHandler(&logs, nil)) })
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "scheduled_jobs=2 exhausted_users=1")
	warning := `"msg":"Maximum deletion attempts (15) reached. Making the final attempt to delete the placeholder user."`
	if got := logs.String(); strings.Count(got, warning) != 1 || !strings.Contains(got, `"placeholder_user_id":7`) {
		e.T.Errorf("log: %s", got)
	}
	e.Want("main", servicetest.JobsOfPlaceholders, "7 8")
	e.Exec("main", `UPDATE import_placeholder_user_details SET last_deletion_attempt_at = now() - interval '3 days'`)
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "exhausted_users=1")
	e.Want("main", `SELECT deletion_attempts FROM import_placeholder_user_details WHERE id = 7`, "15")
}

func namespaceMustBeGoneAndAttemptAndJobExistBothOrNeither(e *servicetest.Estate) {
	e.Detail(7, 0, `NULL`)
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1`)
	s := e.Service("", e.WithQueue)
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "")
	e.Exec("main", `DELETE FROM namespaces;
		ALTER TABLE maintenance.river_job ADD CONSTRAINT refused CHECK (kind <> 'delete_placeholder_user')`)
	servicetest.WantState(e.T, servicetest.RunPlaceholders(e.T, s, false), "failed")
	e.Want("main", `SELECT deletion_attempts FROM import_placeholder_user_details`, "0")
	e.Exec("main", `ALTER TABLE maintenance.river_job DROP CONSTRAINT refused`)
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "scheduled_jobs=1")
}

func jobsStartASecondApartOverAllPagesAlsoThoseOfIDsBelowOne(e *servicetest.Estate) {
	for _, id := range []int{-9_000_000_000_000_000_000, -5, -4, 0, 1} {
		e.Detail(id, 14, `NULL`)
	}
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholder.Config) { c.BatchSize = 2 }))
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, true), "scheduled_jobs=5 exhausted_users=5")
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "scheduled_jobs=5 exhausted_users=5")
	e.Want("main", `SELECT string_agg((args ->> 'placeholder_user_id') || '+' || extract(epoch FROM scheduled_at - started_at)::int, ' ' ORDER BY scheduled_at)
		FROM maintenance.river_job, maintenance.runs WHERE NOT dry_run`, "-9000000000000000000+0 -5+1 -4+2 0+3 1+4")
	e.Want("main", `SELECT count(*) FROM import_placeholder_user_details WHERE deletion_attempts = 15`, "5")
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "5")
}

// The job of a user who is claimed again keeps its row during its transaction. That is longer than
// a claim can wait.
func userWhoseJobIsAtWorkDoesNotFailTheRun(e *servicetest.Estate) {
	e.Detail(7, 0, `NULL`)
	e.Detail(8, 0, `NULL`)
	e.Insert(servicetest.JobOf(jobqueue.DeletePlaceholderUser{PlaceholderUserID: 7}))
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'running', attempted_at = now()`)
	e.Exec("main", `BEGIN; SELECT FROM maintenance.river_job WHERE state = 'running' FOR SHARE`)
	r := servicetest.RunPlaceholders(e.T, e.Service("", e.WithQueue), false)
	e.Exec("main", `COMMIT`)
	servicetest.WantRun(e.T, r, "succeeded", "scheduled_jobs=1")
	e.Want("main", servicetest.JobsOfPlaceholders, "7 8")
}

func lockedRowWaitsForTheNextRun(e *servicetest.Estate) {
	for id := range 3 {
		e.Detail(id+1, 0, `NULL`)
	}
	release := e.Hold(`SELECT FROM import_placeholder_user_details WHERE id IN (1, 2) FOR UPDATE`)
	// A page made empty by locks is not the end.
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholder.Config) { c.BatchSize = 2 }))
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "scheduled_jobs=1")
	e.Want("main", servicetest.JobsOfPlaceholders, "3")
	release()
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "scheduled_jobs=2")
}

func waitingJobIsNotDoubled(e *servicetest.Estate) {
	e.Detail(7, 0, `NULL`)
	e.Detail(8, 0, `NULL`)
	e.Exec("main", `UPDATE import_placeholder_user_details SET placeholder_user_id = 7 WHERE id = 8`)
	s := e.Service("", e.WithQueue)
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, true), "scheduled_jobs=1")
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "scheduled_jobs=1")
	e.Exec("main", `UPDATE import_placeholder_user_details SET last_deletion_attempt_at = now() - interval '3 days'`)
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, true), "")
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "")
	e.Want("main", `SELECT string_agg(deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "2 2")
}

func backlogTellsDueDeferredAndDead(e *servicetest.Estate) {
	e.Detail(1, 0, `NULL`)
	e.Detail(2, 3, `now() - interval '3 days'`)
	e.Detail(3, 3, `now() - interval '1 day'`)
	e.Detail(4, 15, `now() - interval '9 days'`)
	e.Detail(5, 2, `NULL`)
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1 WHERE id = 5`)
	b := servicetest.StatusOf(e.T, e.Service("", e.WithQueue), servicetest.PlaceholderUsers).Backlog
	assert.That(e.T, b.Pending == 3 && b.Due == 2 && b.Deferred == 1 && b.Dead == 1 &&
		!b.OldestAt.IsZero(), "backlog %+v", b)
}

func TestPlaceholderUserCleanup_WhatItOrItsJobsNeedIsNamed(t *testing.T) {
	t.Parallel()
	for sql, named := range map[string]string{
		`DROP TABLE import_placeholder_user_details`:      "no table import_placeholder_user_details",
		`DROP TABLE ghost_user_migrations`:                "no table ghost_user_migrations",
		`ALTER TABLE users DROP COLUMN user_type CASCADE`: "no column user_type in table users",
		servicetest.StateIsANumber:                        "column users.state of database main has type integer",
	} {
		e := servicetest.NewPlaceholders(t)
		e.Exec("main", sql)
		s := e.Service("", e.WithQueue)
		for _, dry := range []bool{false, true} {
			_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.PlaceholderUsers, DryRun: dry})
			missing, ok := errors.AsType[*fault.NotConfiguredError](err)
			assert.That(t, ok && strings.Contains(missing.Missing, named), "error %v, want %q", err, named)
		}
		servicetest.WantConditionOf(t, s, servicetest.PlaceholderUsers, status.ConditionNotConfigured, named)
	}
}

func dryRunNamesTheFirstThousandAndCountsTheRest(e *servicetest.Estate) {
	e.Detail(1, 14, `now() - interval '3 days'`)
	e.Detail(2, 0, `NULL`)
	e.Exec("main", `INSERT INTO import_placeholder_user_details (id, placeholder_user_id, deletion_attempts, organization_id, created_at, updated_at)
		SELECT i, 2, 0, 1, now(), now() FROM generate_series(3, 1005) i`)
	s := e.Service("", e.WithQueue)
	r := servicetest.RunPlaceholders(e.T, s, true)
	servicetest.WantCounts(e.T, r, "scheduled_jobs=2 exhausted_users=1")
	assert.That(e.T, len(r.Candidates) == 1000 && r.MoreCandidates == 5,
		"%d candidates and %d more", len(r.Candidates), r.MoreCandidates)
	r.Candidates = r.Candidates[:3]
	servicetest.WantCandidates(e.T, r,
		"placeholder 1 u1 queue last attempt",
		"placeholder 2 u2 queue",
		"placeholder 2 u2 queue JOB_WAITING: a job for this candidate is already waiting",
	)
	// The digest is that of all, also of those not listed.
	e.Exec("main", `DELETE FROM import_placeholder_user_details WHERE id = 1005`)
	if again := servicetest.RunPlaceholders(e.T, s, true); again.CandidatesDigest == r.CandidatesDigest {
		e.T.Error("one is gone, and the digest is the same")
	}
}

func aRunHeldToAPlanClaimsNobodyElse(e *servicetest.Estate) {
	for id := range 4 {
		e.Detail(id+1, 0, `NULL`)
	}
	e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = 1 WHERE id = 3`)
	e.Gate("main", "import_placeholder_user_details", "OLD.id = 1")
	s := e.Service("", e.WithQueue, servicetest.With(func(c *placeholder.Config) { c.BatchSize = 1 }))
	r := servicetest.RunPlanned(e, s, servicetest.PlaceholderUsers, func() {
		e.Detail(9, 0, `NULL`)
		e.Exec("main", `UPDATE import_placeholder_user_details SET namespace_id = NULL WHERE id = 3`)
	})
	servicetest.WantCounts(e.T, r, "scheduled_jobs=3")
	e.Want("main", servicetest.JobsOfPlaceholders, "1 2 4")
	e.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM import_placeholder_user_details WHERE deletion_attempts = 0`, "3 9")
}

func TestDeletePlaceholderUser_LooksAtTheUserAndItsReferences(t *testing.T) {
	t.Parallel()
	const refused, queued = "delete_placeholder_user cancelled STILL_REFERENCED", "delete_placeholder_user completed, delete_user available"
	e := servicetest.NewPlaceholders(t)
	e.Detail(1, 0, `NULL`, 0)
	var logs servicetest.Buffer
	s := e.Service("", e.WithQueue, servicetest.LogTo(&logs))
	for i, c := range []struct {
		userType  int
		reference string
		want      string
		// named is what the warning reports, "" for no warning.
		named string
	}{
		{15, ``, queued, ""},
		{17, ``, "delete_placeholder_user completed NOT_A_PLACEHOLDER", ""},
		{0, ``, "delete_placeholder_user completed NOT_A_PLACEHOLDER", ""},
		{15, `INSERT INTO notes (noteable_type, author_id, organization_id)
			VALUES ('Issue', {user}, 1)`, refused, `"table":"notes","column":"author_id"`},
		{15, `INSERT INTO notes (noteable_type, resolved_by_id, organization_id) VALUES ('Issue', {user}, 1)`, queued, ""},
		{15, `INSERT INTO notes (noteable_type, updated_by_id, organization_id) VALUES ('Issue', {user}, 1)`, queued, ""},
		{15, `INSERT INTO issues (last_edited_by_id, namespace_id) VALUES ({user}, 1)`, refused, `"table":"issues","column":"last_edited_by_id"`},
		{15, `INSERT INTO award_emoji (user_id) VALUES ({user})`, refused, `"table":"award_emoji","column":"user_id"`},
		{15, `INSERT INTO events (author_id, action, group_id, created_at, updated_at) VALUES ({user}, 1, 1, now(), now())`, queued, ""},
		{15, `INSERT INTO epics (group_id, iid, title, author_id, updated_by_id) VALUES (1, 1, '', 1, {user})`, queued, ""},
		{15, `INSERT INTO epics (group_id, iid, title, author_id, assignee_id)
			VALUES (1, 2, '', 1, {user})`, refused, `"table":"epics","column":"assignee_id"`},
		// Optional tables may be missing.
		{15, `DROP TABLE epics, lists CASCADE`, queued, ""},
	} {
		user := 10 + i
		e.Detail(user, 0, `NULL`, c.userType)
		e.Exec("main", strings.ReplaceAll(c.reference, "{user}", fmt.Sprint(user)))
		logs.Reset()
		e.Insert(jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: int64(user)}})
		e.Work(s, "delete_placeholder_user")
		e.Want("main", servicetest.StateOfJobs, c.want)
		warned := strings.Contains(logs.String(), "Placeholder user is still referenced in other tables")
		assert.That(t, warned == (c.named != "") && strings.Contains(logs.String(), c.named),
			"%s: want a warning with %q, log: %s", c.reference, c.named, logs.String())
		e.Exec("main", `DELETE FROM maintenance.river_job`)
	}
}

func TestDeletePlaceholderUser_ReferencesMayBeNarrowerThanTheID(t *testing.T) {
	t.Parallel()
	const wide = 3_000_000_000
	e := servicetest.NewPlaceholders(t)
	e.Exec("main", devdb.NarrowKeys("author_id"))
	e.Detail(wide, 0, `NULL`)
	e.Insert(jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: wide}})
	e.Work(e.Service("", e.WithQueue), "delete_placeholder_user")
	e.Want("main", servicetest.StateOfJobs, "delete_placeholder_user completed, delete_user available")
}

func queuesTheUserWithItselfAsActor(e *servicetest.Estate) {
	e.Detail(7, 0, `NULL`)
	var logs servicetest.Buffer
	s := e.Service("", e.WithQueue, servicetest.LogTo(&logs))
	servicetest.WantCounts(e.T, servicetest.RunPlaceholders(e.T, s, false), "scheduled_jobs=1")
	e.Work(s, "delete_placeholder_user")
	e.Want("main", `SELECT args FROM maintenance.river_job WHERE kind = 'delete_user'`,
		`{"reason": "Placeholder user is no longer referenced", "user_id": 7, "deleted_by_id": 7, "skip_authorization": true}`)
	e.Insert(jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: 7}})
	e.Work(s, "delete_placeholder_user")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'delete_user'`, "1")
	// An unknown user is skipped quietly.
	logs.Reset()
	e.Exec("main", `DELETE FROM maintenance.river_job`)
	e.Insert(jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: 99}})
	e.Work(s, "delete_placeholder_user")
	e.Want("main", servicetest.StateOfJobs, "delete_placeholder_user completed TARGET_GONE")
	assert.That(e.T, logs.String() == "", "log: %s", logs.String())
}

func TestDeletePlaceholderUser_LooksInEveryDatabase(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "all", "main", "ci", "sec")
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	e.Detail(7, 0, `NULL`)
	e.Exec("main", `INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 7)`)
	e.Exec("ci", `INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 7)`)
	s := e.Service("", e.WithQueue)
	attempt := func(user int64, want string) {
		t.Helper()
		e.Insert(jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: user}})
		e.Work(s, "delete_placeholder_user")
		e.Want("main", `SELECT coalesce(nullif(metadata ->> 'reason', ''), state::text) FROM maintenance.river_job WHERE kind = 'delete_placeholder_user' ORDER BY id DESC LIMIT 1`, want)
	}
	e.Exec("ci", `INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 7)`)
	attempt(7, "STILL_REFERENCED")
	e.Exec("ci", `DELETE FROM ci_pipeline_schedules`)
	e.Exec("sec", `INSERT INTO vulnerabilities (project_id, author_id, title, resolved_by_id, created_at, updated_at) VALUES (1, 1, '', 7, now(), now())`)
	attempt(7, "STILL_REFERENCED")
	e.Exec("sec", `UPDATE vulnerabilities SET resolved_by_id = NULL, dismissed_by_id = 7`)
	// Main's own copy of a table of ci does not count while ci is configured.
	attempt(7, "completed")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'delete_user'`, "1")
	// A table that its database misses is searched for in main.
	for i, reference := range []string{
		`INSERT INTO vulnerabilities (project_id, author_id, title, created_at, updated_at) VALUES (1, 8, '', now(), now())`,
		`INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 9)`,
	} {
		e.Detail(8+i, 0, `NULL`)
		e.Exec("main", reference)
		for _, name := range []string{"ci", "sec"} {
			e.Exec(name, `DROP TABLE IF EXISTS `+strings.Fields(reference)[2]+` CASCADE`)
		}
		attempt(int64(8+i), "STILL_REFERENCED")
	}
}

func TestDeletePlaceholderUser_DatabaseThatIsDownIsNoAnswer(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "all", "main", "ci")
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	e.Detail(7, 0, `NULL`)
	s := e.Service("", e.WithQueue)
	e.Insert(jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: 7}})
	e.Open[1].Close()
	e.Work(s, "delete_placeholder_user")
	// One second after its first attempt River takes it for available, not retryable.
	e.Want("main", `SELECT string_agg(kind || ' ' || (state IN ('available', 'retryable')) || ' ' || attempt || ' ' || cardinality(errors), ', ')
		FROM maintenance.river_job`, "delete_placeholder_user true 1 1")
	assert.Must(s.Status(context.Background(), servicetest.PlaceholderUsers))(t)
}

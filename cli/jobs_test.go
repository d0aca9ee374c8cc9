package cli_test

import (
	"strings"
	"testing"
)

func TestJobs_ListsAndRetriesThem(t *testing.T) {
	conn := prepared(t)
	t.Setenv("CARETAKER_JOBS_ENABLED", "false")
	r := serving(t)
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, state, args, attempt, max_attempts, finalized_at, metadata, errors) VALUES
		('delete_user', 'cancelled', '{"user_id": 7, "deleted_by_id": null, "reason": "No active token assigned"}', 1, 25, now(),
		 '{"outcome": "refused", "reason": "INTERNAL_USER"}', NULL),
		('destroy_group', 'discarded', '{"group_id": 8}', 25, 25, now(), '{"outcome": "discarded", "reason": ""}',
		 ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 25, "error": "a database is unreachable", "trace": ""}'::jsonb])`)
	r.want(t, 0, "jobs", "ARGUMENTS", `reason="No active token assigned" user_id=7`, "cancelled", "refused INTERNAL_USER",
		"25/25", "discarded a database is unreachable")
	if out := r.want(t, 0, "jobs --kind destroy_group --state discarded"); strings.Contains(out, "delete_user") {
		t.Errorf("not filtered:\n%s", out)
	}
	r.want(t, 0, "jobs --page-size 1", "older jobs: --page-token ")
	jobs, _ := document(t, r.want(t, 0, "jobs --output json --kind delete_user"))["jobs"].([]any)
	if len(jobs) != 1 {
		t.Fatalf("%d jobs, want 1", len(jobs))
	}
	job, _ := jobs[0].(map[string]any)
	args, _ := job["args"].(map[string]any)
	if job["state"] != "cancelled" || job["reason"] != "INTERNAL_USER" || args["user_id"] != 7.0 {
		t.Errorf("got %v", job)
	}
	r.want(t, 0, "jobs show 2", "job 2 destroy_group discarded", "for     group_id=8", "attempt 25 of 25", "25       2040-01-01 00:00:00  a database is unreachable")
	r.want(t, 0, "jobs retry 2", "job 2 destroy_group is available", "caretaker jobs show 2")
	job, _ = document(t, r.want(t, 0, "jobs retry 1 --output json"))["job"].(map[string]any)
	if job["state"] != "available" || job["id"] != "1" {
		t.Errorf("got %v", job)
	}
	r.want(t, 2, "jobs show 77", "there is no job with this id")
	r.want(t, 2, "jobs 2", "caretaker jobs show JOB")
	r.want(t, 2, "jobs retry 77", "there is no job with this id; caretaker jobs")
	r.want(t, 2, "jobs retry -5", "an argument that begins with - is taken for a flag")
	r.want(t, 2, "jobs retry x", `"x" is not the ID of a job`)
	r.want(t, 2, "jobs retry", "--help")
	r.want(t, 2, "jobs --state lost", "available, scheduled, retryable")
}

func TestJobs_SayWhatARefusalOrAFailureIsAbout(t *testing.T) {
	conn := prepared(t)
	t.Setenv("CARETAKER_JOBS_ENABLED", "false")
	r := serving(t)
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, state, args, attempt, max_attempts, finalized_at, metadata, errors) VALUES
		('delete_placeholder_user', 'cancelled', '{"placeholder_user_id": 7}', 1, 25, now(), '{"outcome": "refused", "reason": "STILL_REFERENCED"}',
		 ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 1, "error": "refused: STILL_REFERENCED: notes.author_id refers to it", "trace": ""}'::jsonb]),
		('destroy_group', 'discarded', '{"group_id": 8}', 25, 25, now(), '{"outcome": "discarded", "reason": "STILL_REFERENCED"}',
		 ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 25, "error": "STILL_REFERENCED: t.group_id still refers to it", "trace": ""}'::jsonb]),
		('destroy_group', 'discarded', '{"group_id": 9}', 25, 25, now(), '{"outcome": "discarded", "reason": "PROCESS_GONE"}',
		 ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 25, "error": "the process has died", "trace": ""}'::jsonb])`)
	out := r.want(t, 0, "jobs", "refused STILL_REFERENCED: notes.author_id refers to it", "discarded STILL_REFERENCED: t.group_id still refers to it",
		"discarded PROCESS_GONE: the process has died")
	if strings.Contains(out, "STILL_REFERENCED: STILL_REFERENCED") {
		t.Errorf("a reason is said twice:\n%s", out)
	}
}

func TestServe_WorksJobsUnlessTheyAreSwitchedOff(t *testing.T) {
	conn := prepared(t)
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, args, max_attempts) VALUES ('delete_placeholder_user', '{"placeholder_user_id": 1}', 25)`)
	attempts := func() (n int) {
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM maintenance.river_job WHERE attempt > 0`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Setenv("CARETAKER_JOBS_ENABLED", "false")
	off := serving(t)
	if !strings.Contains(off.log.String(), `"jobs":false`) {
		t.Errorf("the log does not say so:\n%s", off.log.String())
	}
	off.stop()
	if code := <-off.exit; code != 0 {
		t.Errorf("exit %d", code)
	}
	if n := attempts(); n != 0 {
		t.Errorf("%d jobs are worked although they are switched off", n)
	}
	t.Setenv("CARETAKER_JOBS_ENABLED", "true")
	on := serving(t)
	eventually(t, "jobs are worked", &on.log, func() bool { return attempts() == 1 })
}

func TestServe_RefusesAQueueThatIsNotMigrated(t *testing.T) {
	conn := prepared(t)
	execute(t, conn, `DROP TABLE maintenance.river_migration`)
	want(t, 1, "serve", "run caretaker migrate")
}

package cli_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestJobs_ListsAndRetriesThemAndSaysWhatFailed(t *testing.T) {
	sh, conn := newPrepared(t)
	sh.set("CARETAKER_JOBS_ENABLED", "false")
	r := sh.serving()
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, state, args, attempt, max_attempts, finalized_at, metadata, errors) VALUES
		('delete_user', 'cancelled', '{"user_id": 7, "deleted_by_id": null, "reason": "No active token assigned"}', 1, 25, now(),
		 '{"outcome": "refused", "reason": "INTERNAL_USER"}', NULL),
		('destroy_group', 'discarded', '{"group_id": 8}', 25, 25, now(), '{"outcome": "discarded", "reason": ""}',
		 ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 25, "error": "a database is unreachable", "trace": ""}'::jsonb])`)
	r.want(0, "jobs", "ARGUMENTS", `user_id=7 reason="No active token assigned"`, "cancelled", "refused INTERNAL_USER",
		"25/25", "discarded a database is unreachable")
	assert.Lacks(t, r.want(0, "jobs --kind destroy_group --state discarded"), "delete_user")
	r.want(0, "jobs --limit 1", "to see older jobs, use a larger --limit or --all")
	jobs, _ := document(t, r.want(0, "jobs --output json --kind delete_user"))["jobs"].([]any)
	assert.Require(t, len(jobs) == 1, "%d jobs, want 1", len(jobs))
	job, _ := jobs[0].(map[string]any)
	args, _ := job["args"].(map[string]any)
	assert.That(t, job["state"] == "cancelled" && job["reason"] == "INTERNAL_USER" && args["user_id"] == 7.0, "got %v", job)
	r.want(0, "jobs show 2", "job 2 destroy_group discarded", "for     group_id=8", "attempt 25 "+
		"of 25", "attempt 25, started 2040-01-01 00:00:00 UTC: a database is unreachable")
	r.want(0, "jobs retry 2", "job 2 destroy_group is available", "caretaker jobs show 2")
	job, _ = document(t, r.want(0, "jobs retry 1 --output json"))["job"].(map[string]any)
	assert.That(t, job["state"] == "available" && job["id"] == "1", "got %v", job)
	r.want(2, "jobs show 77", "job 77 not found")
	r.want(2, "jobs 2", "caretaker jobs show JOB")
	r.want(2, "jobs retry 77", "job 77 not found: find its ID in the list of jobs")
	r.want(2, "jobs retry -5", "arguments that start with - are read as flags")
	r.want(2, "jobs retry x", `"x" is not the ID of a job`)
	r.want(2, "jobs retry", "--help")
	r.want(2, "jobs --state lost", "available, scheduled, retryable")
	// A refusal or a failure reports what it is about.
	execute(t, conn, `TRUNCATE maintenance.river_job RESTART IDENTITY`)
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, state, args, attempt, max_attempts, finalized_at, metadata, errors) VALUES
		('delete_placeholder_user', 'cancelled', '{"placeholder_user_id": 7}', 1, 25, now(), '{"outcome": "refused", "reason": "STILL_REFERENCED"}',
		 ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 1, "error": "refused: STILL_REFERENCED: notes.author_id refers to it", "trace": ""}'::jsonb]),
		('destroy_group', 'discarded', '{"group_id": 8}', 25, 25, now(), '{"outcome": "discarded", "reason": "STILL_REFERENCED"}',
		 ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 25, "error": "STILL_REFERENCED: t.group_id still refers to it", "trace": ""}'::jsonb]),
		('destroy_group', 'discarded', '{"group_id": 9}', 25, 25, now(), '{"outcome": "discarded", "reason": "PROCESS_GONE"}',
		 ARRAY['{"at": "2040-01-01T00:00:00Z", "attempt": 25, "error": "the process has died", "trace": ""}'::jsonb])`)
	out := r.want(0, "jobs", "refused STILL_REFERENCED: notes.author_id refers to it", "discarded STILL_REFERENCED: t.group_id still refers to it",
		"discarded PROCESS_GONE: the process has died")
	assert.Lacks(t, out, "STILL_REFERENCED: STILL_REFERENCED")
}

func TestServe_WorksJobsUnlessTheyAreSwitchedOffOrNotMigrated(t *testing.T) {
	sh, conn := newPrepared(t)
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, args, max_attempts) VALUES ('delete_placeholder_user', '{"placeholder_user_id": 1}', 25)`)
	attempts := func() (n int) {
		assert.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM maintenance.river_job WHERE attempt > 0`).Scan(&n))
		return n
	}
	sh.set("CARETAKER_JOBS_ENABLED", "false")
	off := sh.serving()
	assert.Contains(t, off.log.String(), `"jobs":false`)
	off.stop()
	assert.Equal(t, <-off.exit, 0, "exit")
	assert.Equal(t, attempts(), 0, "jobs are worked although they are switched off")
	sh.set("CARETAKER_JOBS_ENABLED", "true")
	on := sh.serving()
	eventually(t, "jobs are worked", &on.log, func() bool { return attempts() == 1 })
	on.stop()
	assert.Equal(t, <-on.exit, 0, "exit")
	// A queue that is not migrated is refused.
	execute(t, conn, `DROP TABLE maintenance.river_migration`)
	sh.want(1, "serve", "run `caretaker migrate`")
}

func TestJobsOutside_ListsPathsAndMarksThemAsDone(t *testing.T) {
	sh, conn := newPrepared(t)
	sh.set("CARETAKER_JOBS_ENABLED", "false")
	r := sh.serving()
	const run = "0190a1b2-0000-7000-8000-000000000001"
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, state, args, attempt, max_attempts, finalized_at, metadata) VALUES
		('destroy_group', 'completed', '{"group_id": 7}', 1, 25, now(), '{"outcome": "succeeded", "worked_ms": 61500, "run_id": "`+run+`", "trace_id": "abc"}');
		INSERT INTO maintenance.receipts (sequence, at, job_id, worker, "table", action, rule, rows, keys_digest, requested_by, hash)
		VALUES (1, now(), 1, 'destroy_group', 'projects', 'deleted', 'r', 3, '', '', '');
		INSERT INTO maintenance.outside_paths (run_id, job_id, kind, path)
		SELECT CASE WHEN i > 3 THEN '`+run+`'::uuid END, CASE WHEN i <= 3 THEN 1 END, 'project_repository', '@hashed/' || i FROM generate_series(1, 4) i`)
	r.want(0, "jobs outside", "KIND", "@hashed/1", "@hashed/4", "job 1", "run "+run[:13])
	r.want(0, "jobs outside done 1 2", "2 paths marked as done")
	r.want(0, "jobs show 1", "worked  1m1.5s", "run     "+run, "trace   abc", "left 3 paths "+
		"outside the database (1 not marked as done): run `caretaker jobs outside 1` to list the paths", "projects  3    "+
		"    0")
	assert.Equal(t, r.want(0, "jobs outside --plain"), "3\t@hashed/3\n4\t@hashed/4\n")
	assert.Equal(t, r.want(0, "jobs outside 1 --all --plain"), "1\t@hashed/1\n2\t@hashed/2\n3\t@hashed/3\n")
	assert.Equal(t, r.want(0, "jobs outside --plain --run "+run), "4\t@hashed/4\n")
	r.want(0, "jobs outside --limit 1", "to see more paths, ")
	if paths, _ := document(t, r.want(0, "jobs outside --pending -o json"))["paths"].([]any); len(paths) != 2 {
		t.Errorf("got %v", paths)
	}
	execute(t, conn, `INSERT INTO maintenance.outside_paths (run_id, job_id, kind, path)
		SELECT run_id, job_id, kind, E'@hashed/5\n7\t@hashed/6' FROM maintenance.outside_paths WHERE id = 3`)
	assert.Lacks(t, r.want(1, "jobs outside --plain", `path 5 skipped`), "@hashed/6\n")
	execute(t, conn, `DELETE FROM maintenance.outside_paths WHERE id = 5`)
	r.want(2, "jobs outside done 3 99", "unknown path 99", "so no path was marked: run `caretaker jobs outside` to list the IDs")
	r.want(2, "jobs outside done x", `"x" is not the ID of a path`)
	r.want(2, "jobs outside x", `"x" is not the ID of a job`)
	r.want(2, "jobs outside 1 --run "+run, "not both")
	r.want(2, "jobs outside --run x", "matches no recorded run")
	r.want(2, "jobs outside done", "--help", "missing argument ID")
	r.want(2, "jobs outside 424242", "job 424242 not found")
	r.want(2, "jobs outside 424242 --plain", "job 424242 not found")
	r.want(0, "jobs outside done 3", "1 path marked as done")
	r.want(0, "jobs outside 1")
	execute(t, conn, `DELETE FROM maintenance.outside_paths WHERE id IN (1, 2)`)
	r.want(0, "jobs show 1", "left 1 path outside the database (0 not marked as done): run `caretaker jobs "+
		"outside 1`")
	execute(t, conn, `DELETE FROM maintenance.river_job`)
	r.want(0, "jobs outside 1")
}

func TestJobsCancel_SaysWhatItDidAndWhatIsWrong(t *testing.T) {
	sh, conn := newPrepared(t)
	sh.set("CARETAKER_JOBS_ENABLED", "false")
	r := sh.serving()
	execute(t, conn, `INSERT INTO maintenance.river_job (kind, state, args, attempt, max_attempts, attempted_at, finalized_at, metadata) VALUES
		('delete_user', 'available', '{"user_id": 7}', 0, 25, NULL, NULL, '{}'), ('destroy_group', 'running', '{"group_id": 8}', 1, 25, now(), NULL, '{}'),
		('delete_user', 'completed', '{"user_id": 9}', 1, 25, now(), now(), '{"outcome": "succeeded"}'),
		('delete_user', 'cancelled', '{"user_id": 10}', 1, 25, now(), now(), '{"outcome": "refused", "reason": "PROTECTED"}')`)
	r.want(0, "jobs cancel 1 --reason mistaken", "job 1 delete_user is cancelled")
	r.want(0, "jobs show 1", "cancelled CANCELLED", "cancelled by ", ": mistaken")
	r.want(0, "jobs cancel 2 --reason mistaken", "job 2 destroy_group is running: it stops after "+
		"its current statement")
	r.want(0, "jobs cancel 1 --reason again", "job 1 delete_user is cancelled")
	r.want(1, "jobs cancel 3 --reason late", "job 3 has already ended: succeeded")
	r.want(1, "jobs cancel 3 --reason late --output json", `"outcome"`, "job 3 has already ended")
	r.want(1, "jobs cancel 4 --reason late", "job 4 has already ended: refused PROTECTED")
	r.want(0, "jobs retry 1", "job 1 delete_user is available")
	r.want(2, "jobs cancel 1", "--reason REASON is required")
	r.want(2, "jobs cancel 77 --reason r", "job 77 not found")
	r.want(2, "jobs cancel x --reason r", `"x" is not the ID of a job`)
}

func TestProtect_ListsAndEndsProtections(t *testing.T) {
	sh, _ := newPrepared(t)
	r := sh.serving()
	r.want(0, "protect user 7 --reason evidence", "user 7 is protected permanently")
	r.want(0, "protect group 8 --reason later --for 8h", "group 8 is protected until 2")
	r.want(0, "protect user 7 --reason mine --for 8h", "user 7 is already protected permanently by ",
		" (evidence): to shorten the protection, run `caretaker unprotect` first")
	r.want(0, "protect group 8 --reason later --for 1h", "group 8 is already protected until 2")
	r.want(0, "protect group 8 --reason later --for 9h", "group 8 is protected until 2")
	out := r.want(0, "protected", "KIND   ID", "group  8", "user   7", "evidence")
	assert.That(t, strings.Index(out, "group") <= strings.Index(out, "user "), "not in order:\n%s", out)
	assert.Lacks(t, r.want(0, "protected --kind user"), "later")
	r.want(0, "protected --limit 1", "to see more, ")
	p, _ := document(t, r.want(0, "unprotect user 7 --output json"))["protection"].(map[string]any)
	assert.That(t, p["id"] == "7" && p["reason"] == "evidence", "got %v", p)
	r.want(2, "unprotect user 7", "no protection has this kind and id: check the list of protections")
	r.want(0, "unprotect group 8", "group 8 is no longer protected")
	r.want(2, "protect project 7 --reason x", `unknown kind "project": use user or group`)
	r.want(2, "protect user x --reason x", `"x" is not the ID of a user`)
	r.want(2, "protect user 7", "--reason REASON is required")
	r.want(2, "protect user", "missing argument ID")
	r.want(2, "protect user 7 --reason x --for 1ns", "--for: must be from 1s to 87600h")
	r.want(2, "protected 7", "unknown command")
}

func TestProtect_OfAnUnknownTargetNeedsYes(t *testing.T) {
	sh := newShell(t)
	sh.people()
	r := sh.serving()
	for _, kind := range []string{"user", "group"} {
		r.want(2, "protect "+kind+" 4711 --reason typo", kind+" 4711 not found: check the id in the table ",
			", or use --yes to protect a target that does not exist yet")
		r.want(0, "protect "+kind+" 4711 --reason early --yes", kind+" 4711 is protected permanently")
	}
	r.want(0, "protect user 7 --reason evidence", "user 7 is protected permanently")
	r.want(0, "protect group 100 --reason evidence", "group 100 is protected permanently")
}

// people makes a database in which a user, a group and a placeholder can be planned, which the environment names.
func (sh *shell) people() *pgx.Conn {
	sh.t.Helper()
	conn := sh.database("main", servicetest.Migrated("all"))
	execute(sh.t, conn, `
		INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
		INSERT INTO users (id, name, email, username, projects_limit, state, user_type, organization_id) VALUES
			(5, 'Ghost', 'ghost@x', 'ghost', 0, 'active', 5, 1), (7, 'Sam', 'sam@x', 'sam', 0, 'active', 0, 1), (9, 'P', 'p@x', 'placeholder_9', 0, 'active', 15, 1);
		INSERT INTO namespaces (id, name, path, type, organization_id, traversal_ids) VALUES (100, 'acme', 'acme', 'Group', 1, '{100}');
		INSERT INTO routes (source_id, source_type, path, name, namespace_id) VALUES (100, 'Namespace', 'acme', 'acme', 100);
		INSERT INTO emails (user_id, email) VALUES (7, 'sam2@x'), (7, 'sam3@x')`)
	return conn
}

var anyDigest = regexp.MustCompile(`[0-9a-f]{64}`)

const planOfUser = `user 7 sam
  counts  exact
  digest  DIGEST
TABLE   MOVED  NULLIFIED  DELETED  KEPT
emails  0      0          2        0
users   0      0          1        0
`

func TestPlan_ShowsWhatADeletionWouldDo(t *testing.T) {
	sh := newShell(t)
	sh.people()
	sh.set("CARETAKER_JOBS_ENABLED", "false")
	r := sh.serving()
	assert.Equal(t, anyDigest.ReplaceAllString(r.want(0, "plan user 7"), "DIGEST"), planOfUser)
	r.want(0, "plan group 100", "group 100 acme\n  refused NO_LONGER_MARKED: the group is not marked for deletion", "namespaces         0      0          1        0\n")
	r.want(0, "plan placeholder 9", "placeholder 9 placeholder_9\n  jobs    delete_user\n", "users  0      0          1        0\n")
	for command, message := range map[string]string{
		"plan user 4711":        "user 4711 not found: check the id in the table users",
		"plan group 7":          "group 7 not found: check the id in the table namespaces (type Group)",
		"plan placeholder 4711": "placeholder 4711 not found",
		"plan project 7":        `unknown kind "project": use user, group or placeholder`,
		"plan usr 7":            "did you mean user?",
		"plan user x":           `"x" is not the ID of a user`,
		"plan user 0":           `"0" is not the ID of a user`,
		"plan user -1":          `"-1" is not an ID: use a number above 0`,
		"plan user":             "missing argument ID",
		"plan":                  "missing argument user|group|placeholder",
		"plan user 7 8":         `unexpected argument "8"`,
	} {
		r.want(2, command, message)
	}
	// As JSON it is the answer.
	text := r.want(0, "plan user 7")
	plan, _ := document(t, r.want(0, "plan user 7 -o json"))["plan"].(map[string]any)
	digest, _ := plan["digest"].(string)
	tables, _ := plan["tables"].([]any)
	assert.That(t, plan["kind"] == "user" && plan["id"] == "7" && plan["name"] == "sam" &&
		plan["exact"] == true && plan["refused"] == nil && len(tables) == 2 && digest != "" &&
		strings.Contains(text, digest), "got %v", plan)
	r.want(0, "protect user 7 --reason evidence")
	r.want(0, "plan user 7", "  refused PROTECTED: ", "evidence")
	plan, _ = document(t, r.want(0, "plan user 7 -o json"))["plan"].(map[string]any)
	if refused, _ := plan["refused"].(map[string]any); refused["reason"] != "PROTECTED" || plan["digest"] == digest {
		t.Errorf("got %v", plan)
	}
	r.want(2, "protect usr 7 --reason x", "did you mean user?")
	r.want(2, "run "+
		"ghost_user_migraton", `unknown worker "ghost_user_migraton": known workers are `, "did you mean ghost_user_migration?")
	r.want(2, "run "+worker+" --database mian", "did you mean main?")
	_, _, errOut := r.sh.caretaker("run", worker, "--database", "mian", "--address", r.address)
	assert.Equal(t, strings.Count(errOut, "did you mean"), 1, errOut)
	r.want(2, "runs --since 24h --until 30h", "--until: is before since")
	r.want(2, "jobs --kind delete_usr", "did you mean delete_user?")
	r.want(2, "status --addrss "+r.address, "unknown flag: --addrss (did you mean --address?)")
	r.want(2, "status --zzzzzzz", "unknown flag: --zzzzzzz\n")
}

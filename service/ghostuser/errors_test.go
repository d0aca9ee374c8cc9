package ghostuser_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const forbidSnippetsSQL = `CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
	CREATE TRIGGER forbid BEFORE DELETE ON snippets FOR EACH ROW EXECUTE FUNCTION forbid()`

func TestGhostUserMigration_SnippetsGoOrStayByTheirProject(t *testing.T) {
	g := newDoomed(parallel(t), 10)
	g.Exec("main", `INSERT INTO snippets (id, author_id, project_id, organization_id) VALUES (1, 10, 1, NULL), (2, 10, NULL, 1);
		INSERT INTO snippet_repositories (snippet_id, disk_path) VALUES (1, '@snippets/1'), (2, '@snippets/2');
		INSERT INTO notes (noteable_type, noteable_id, author_id, project_id) VALUES ('Snippet', 1, 7, 1), ('Snippet', 2, 7, 1), ('Issue', 2, 7, 1);
		INSERT INTO award_emoji (name, user_id, awardable_id, awardable_type) SELECT 'x', 7, id, 'Note' FROM notes`)
	g.Run(g.Service(), "migrated_users=1 moved_rows=1 deleted_rows=8")
	g.Want("main", `SELECT string_agg(id || ' ' || author_id, ',') FROM snippets`, "1 5")
	g.Want("main", `SELECT string_agg(disk_path, ',') FROM snippet_repositories`, "@snippets/1")
	g.Want("main", `SELECT string_agg(noteable_type || noteable_id, ',' ORDER BY id) FROM notes`, "Snippet1,Issue2")
	g.Want("main", `SELECT count(*) FROM award_emoji`, "2")
	g.WantLog(1, `"left_outside":["@snippets/2"]`)
	g.Want("main", `SELECT string_agg(concat_ws(' ', kind, path, job_id), ',') FROM maintenance.outside_paths WHERE run_id IN (SELECT id FROM maintenance.runs)`,
		"snippet_repository @snippets/2")
}

func TestGhostUserMigration_AnErrorPutsTheUserOffAndTheNextIsWorked(t *testing.T) {
	g := newDoomed(parallel(t), 10, 11)
	g.Exec("main", `INSERT INTO snippets (id, author_id, organization_id) VALUES (1, 10, 1); UPDATE issues SET author_id = 10`)
	g.Exec("main", forbidSnippetsSQL)
	s := g.Service()
	r := g.Run(s, "failed_users=1 migrated_users=1 moved_rows=1 deleted_rows=4")
	if r.Reason != "1 user failed" || r.OverLimit {
		t.Errorf("reason %q, over limit %t", r.Reason, r.OverLimit)
	}
	g.WantLater(10, 30*time.Minute)
	g.WantGone(11)
	g.Want("main", `SELECT count(*) FROM snippets`, "1")
	g.Want("main", `SELECT author_id FROM issues`, "5")
	g.WantLog(1, `"level":"ERROR"`, "snippets", `"user_id":10`, "no")
	g.Run(s, "")
	g.Exec("main", `DROP TRIGGER forbid ON snippets; UPDATE ghost_user_migrations SET consume_after = now()`)
	g.Run(s, "migrated_users=1 deleted_rows=5")
	g.WantGone(10)
}

func TestGhostUserMigration_AStatementCancelledFromOutsideIsAnError(t *testing.T) {
	g := newDoomed(parallel(t), 10, 11)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	g.Exec("main", `CREATE FUNCTION cancel() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(0.3); RETURN NEW; END $$;
		CREATE TRIGGER cancel BEFORE UPDATE ON issues FOR EACH ROW EXECUTE FUNCTION cancel()`)
	g.Run(g.Service(), "failed_users=1 migrated_users=1 deleted_rows=4")
	g.WantLater(10, 30*time.Minute)
	g.WantLog(1, `"level":"ERROR"`, "issues.author_id", "57014")
}

// Each user has something of its own that keeps it, from 10 on.
func TestGhostUserMigration_WhatStillRefersToTheUserIsNamed(t *testing.T) {
	g := servicetest.NewGhosts(parallel(t))
	const issue = `INSERT INTO issues (id, author_id, namespace_id) VALUES (1000 + {user}, {user}, 101); `
	trigger := func(event, table, column, body string) string {
		return `CREATE FUNCTION f_{user}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + body + ` END $$;
			CREATE TRIGGER t_{user} BEFORE ` + event + ` ON ` + table + ` FOR EACH ROW WHEN (OLD.` + column + ` = {user}) EXECUTE FUNCTION f_{user}()`
	}
	cases := []struct{ sql, says string }{
		{`CREATE TABLE owing (id bigint, debtor_id bigint REFERENCES users); INSERT INTO owing VALUES (1, {user})`, "STILL_REFERENCED: owing.debtor_id"},
		{`CREATE TABLE bound (id bigint, debtor_id bigint REFERENCES users ON DELETE RESTRICT); INSERT INTO bound VALUES (1, {user})`, "STILL_REFERENCED: bound.debtor_id"},
		{`CREATE TABLE reset (id bigint, debtor_id bigint REFERENCES users ON DELETE SET DEFAULT); INSERT INTO reset VALUES (1, {user})`, "STILL_REFERENCED: reset.debtor_id"},
		{`CREATE SCHEMA far; CREATE TABLE far.away (id bigint, debtor_id bigint REFERENCES users); INSERT INTO far.away VALUES (1, {user})`, "STILL_REFERENCED: away.debtor_id"},
		{`UPDATE projects SET namespace_id = {user}`, "PERSONAL_PROJECTS"},
		{`UPDATE projects SET creator_id = {user}; ALTER TABLE projects ALTER creator_id SET NOT NULL`, "projects.creator_id is NOT NULL"},
		{`CREATE UNIQUE INDEX ON timelogs (user_id, issue_id); INSERT INTO timelogs (time_spent, user_id, issue_id, created_at, updated_at)
			VALUES (1, {user}, 1, now(), now()), (1, 5, 1, now(), now())`, "move timelogs.user_id"},
		{`INSERT INTO snippets (id, author_id, organization_id) VALUES (1, {user}, 1); CREATE TABLE citing (snippet_id bigint REFERENCES snippets);
			INSERT INTO citing VALUES (1)`, "STILL_REFERENCED: citing.snippet_id"},
		{issue + trigger("UPDATE", "issues", "author_id", "RETURN NULL;"), "issues.author_id from being changed"},
		{issue + trigger("UPDATE", "issues", "author_id", "NEW.author_id := OLD.author_id; RETURN NEW;"), "issues.author_id from being changed"},
		{`UPDATE issues SET closed_by_id = {user} WHERE id = 1; ` + trigger("UPDATE", "issues", "closed_by_id", "NEW.closed_by_id := OLD.closed_by_id; RETURN NEW;"),
			"issues.closed_by_id from being changed"},
		{`INSERT INTO emails (user_id, email) VALUES ({user}, 'x'); ` + trigger("DELETE", "emails", "user_id", "RETURN NULL;"), "emails.user_id from being deleted"},
	}
	for i, c := range cases {
		g.Doomed(10 + i)
		g.Exec("main", strings.ReplaceAll(c.sql, "{user}", fmt.Sprint(10+i)))
	}
	s := g.Service()
	g.Runs(s, true)
	g.Want("main", `SELECT count(*) FROM ghost_user_migrations WHERE consume_after < now()`, fmt.Sprint(len(cases)))
	g.Log.Reset()
	if r := g.Run(s, ""); r.Counts["failed_users"] != int64(len(cases)) || r.Counts["moved_rows"] != 0 {
		t.Errorf("counts %v", r.Counts)
	}
	for i, c := range cases {
		g.WantLater(10+i, 30*time.Minute)
		g.WantLog(1, `"level":"ERROR"`, c.says, fmt.Sprintf(`"user_id":%d,`, 10+i))
	}
	// Of the personal namespace with a project nothing is gone.
	g.Want("main", `SELECT (SELECT count(*) FROM namespaces WHERE id = 14) + (SELECT count(*) FROM routes WHERE source_id = 14)`, "2")
	g.Exec("main", `UPDATE projects SET namespace_id = 100; UPDATE ghost_user_migrations SET consume_after = now() WHERE user_id = 14`)
	g.Run(s, "migrated_users=1 deleted_rows=4")
	g.WantGone(14)
}

func TestGhostUserMigration_TheGhostMayHaveTheSameAlready(t *testing.T) {
	g := newDoomed(parallel(t), 10)
	g.Exec("main", `INSERT INTO award_emoji (name, user_id, awardable_id, awardable_type) VALUES ('x', 5, 1, 'Issue'), ('x', 10, 1, 'Issue')`)
	g.Run(g.Service(), "migrated_users=1 moved_rows=1 deleted_rows=4")
	g.Want("main", `SELECT count(*) FROM award_emoji WHERE user_id = 5`, "2")
}

func TestGhostUserMigration_GroupsThatLoseTheirScheduleAreNamedAndHeld(t *testing.T) {
	g := newDoomed(parallel(t), 10)
	g.Exec("main", `INSERT INTO application_settings (deletion_adjourned_period) VALUES (7); UPDATE namespaces SET state = 2 WHERE id = 100`)
	g.Exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (100, 10, '2020-01-01')`)
	s := g.Service(g.WithQueue)
	g.Run(s, "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
	g.WantLog(1, `"level":"WARN"`, `"group_ids":[100]`, `"user_id":10`)
	g.Want("main", `SELECT count(*) FROM group_deletion_schedules`, "0")
	r := servicetest.Must(s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.AdjournedGroups}))(t)
	servicetest.WantCounts(t, r, "held_groups=1")
	g.WantLog(1, `"level":"WARN"`, "SCHEDULE_LOST", `"group_id":100`)
}

func TestGhostUserMigration_AFailedUserIsLoggedWithItsReasonTableAndColumn(t *testing.T) {
	g := newDoomed(parallel(t), 10, 11, 12)
	g.Exec("main", `CREATE TABLE owing (id bigint, debtor_id bigint REFERENCES users); INSERT INTO owing VALUES (1, 10)`)
	g.Exec("main", `UPDATE projects SET namespace_id = 11; INSERT INTO snippets (id, author_id, organization_id) VALUES (1, 12, 1)`)
	g.Exec("main", forbidSnippetsSQL)
	g.Run(g.Service(), "failed_users=3")
	failed := `"msg":"user failed"`
	g.WantLog(1, failed, `"user_id":10`, `"reason":"STILL_REFERENCED"`, `"table":"owing","column":"debtor_id"`)
	g.WantLog(1, failed, `"user_id":11`, `"reason":"PERSONAL_PROJECTS"`)
	g.WantLog(1, failed, `"user_id":12`, `"reason":""`, `"table":"snippets","column":"author_id"`)
}

func TestGhostUserMigration_ADryRunSaysSoInEveryLine(t *testing.T) {
	g := newDoomed(parallel(t), 10)
	g.User(11, 1)
	g.Queue(11)
	g.Runs(g.Service(), true)
	g.WantLog(0, "user migrated")
	g.WantLog(1, `"msg":"user would be migrated"`, `"user_id":10`)
	g.WantLog(1, `"msg":"user refused"`, `"user_id":11`)
	if all, dry := strings.Count(g.Log.String(), `"run_id"`), strings.Count(g.Log.String(), `"dry_run":true`); all != dry || all < 4 {
		t.Errorf("%d of %d lines say that it was a dry run: %s", dry, all, g.Log)
	}
}

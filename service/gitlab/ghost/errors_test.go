package ghost_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

const forbidSnippetsSQL = `CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
	CREATE TRIGGER forbid BEFORE DELETE ON snippets FOR EACH ROW EXECUTE FUNCTION forbid()`

func TestGhostUserMigration_OneUserAndTheOthers(t *testing.T) {
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), map[string]func(*servicetest.Ghosts){
		"snippets go or stay by their project":                            snippetsGoOrStayByTheirProject,
		"an error puts the user off and the next is worked":               anErrorPutsTheUserOffAndTheNextIsWorked,
		"dry run names the users and what becomes of them":                dryRunNamesTheUsersAndWhatBecomesOfThem,
		"a user who vanishes before the turn is no error":                 aUserWhoVanishesBeforeTheTurnIsNoError,
		"a ghost that a trigger swallows holds up no other user":          aGhostThatATriggerSwallowsHoldsUpNoOtherUser,
		"a user whom only the last step cannot delete stays in the queue": aUserWhomOnlyTheLastStepCannotDeleteStaysInTheQueue,
	})
}

func snippetsGoOrStayByTheirProject(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Exec("main", `INSERT INTO snippets (id, author_id, project_id, organization_id) VALUES (1, 10, 1, NULL), (2, 10, NULL, 1);
		INSERT INTO snippet_repositories (snippet_id, disk_path) VALUES (1, '@snippets/1'), (2, '@snippets/2');
		INSERT INTO notes (noteable_type, noteable_id, author_id, project_id) VALUES ('Snippet', 1, 7, 1), ('Snippet', 2, 7, 1), ('Issue', 2, 7, 1);
		INSERT INTO award_emoji (name, user_id, awardable_id, awardable_type) SELECT 'x', 7, id, 'Note' FROM notes;
		INSERT INTO award_emoji (name, user_id, awardable_id, awardable_type) VALUES ('x', 5, 1, 'Issue'), ('x', 10, 1, 'Issue')`)
	g.Run(g.Service(), "migrated_users=1 moved_rows=2 deleted_rows=8")
	g.Want("main", `SELECT string_agg(id || ' ' || author_id, ',') FROM snippets`, "1 5")
	g.Want("main", `SELECT string_agg(disk_path, ',') FROM snippet_repositories`, "@snippets/1")
	g.Want("main", `SELECT string_agg(noteable_type || noteable_id, ',' ORDER BY id) FROM notes`, "Snippet1,Issue2")
	// The ghost may have the same already.
	g.Want("main", `SELECT count(*) || ' ' || count(*) FILTER (WHERE user_id = 5) FROM award_emoji`, "4 2")
	g.WantLog(1, `"left_outside":["@snippets/2"]`)
	g.Want("main", `SELECT string_agg(concat_ws(' ', kind, path, job_id), ',') FROM maintenance.outside_paths WHERE run_id IN (SELECT id FROM maintenance.runs)`,
		"snippet_repository @snippets/2")
}

func anErrorPutsTheUserOffAndTheNextIsWorked(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	g.Exec("main", `INSERT INTO snippets (id, author_id, organization_id) VALUES (1, 10, 1); UPDATE issues SET author_id = 10`)
	g.Exec("main", forbidSnippetsSQL)
	s := g.Service()
	r := g.Run(s, "failed_users=1 migrated_users=1 moved_rows=1 deleted_rows=4")
	assert.That(g.T, r.Reason == "1 user failed" && !r.OverLimit, "reason %q, over limit %t", r.Reason, r.OverLimit)
	g.WantLater(10, 30*time.Minute)
	g.WantGone(11)
	g.Want("main", `SELECT count(*) FROM snippets`, "1")
	g.Want("main", `SELECT author_id FROM issues`, "5")
	g.WantLog(1, `"level":"ERROR"`, `"msg":"user deletion failed"`, `"user_id":10`, `"reason":""`, `"table":"snippets","column":"author_id"`, "no")
	g.Run(s, "")
	g.Exec("main", `DROP TRIGGER forbid ON snippets; UPDATE ghost_user_migrations SET consume_after = now()`)
	g.Run(s, "migrated_users=1 deleted_rows=5")
	g.WantGone(10)
}

func dryRunNamesTheUsersAndWhatBecomesOfThem(g *servicetest.Ghosts) {
	g.User(10, 0)
	g.User(11, 2)
	g.User(12, 0)
	g.Queue(10, 11, 12)
	g.Exec("main", `CREATE TABLE clinging (id bigserial PRIMARY KEY, user_id bigint REFERENCES users);
		INSERT INTO clinging (user_id) VALUES (12)`)
	s := g.Service()
	r := g.Runs(s, true)
	servicetest.WantCandidates(g.T, r,
		"user 10 u10 delete",
		"user 12 u12 postpone STILL_REFERENCED: clinging.user_id still refers to the target",
		"user 11 u11 postpone INTERNAL_USER: users of type 2 are not deleted",
	)
	g.WantLog(0, "user migrated and deleted")
	g.WantLog(1, `"msg":"contributions would be moved and user deleted"`, `"user_id":10`)
	g.WantLog(1, `"msg":"user deletion refused"`, `"user_id":11`)
	all, dry := strings.Count(g.Log.String(), `"run_id"`), strings.Count(g.Log.String(), `"dry_run":true`)
	assert.That(g.T, all == dry && all >= 4, "%d of %d lines say that it was a dry run: %s", dry, all, g.Log)
	assert.That(g.T, r.CandidatesDigest != "", "all were looked at, and there is no digest")
	// In no time not all can be checked.
	if r := g.Runs(g.Service(servicetest.Lasting(time.Nanosecond)), true); r.CandidatesDigest != "" || !r.OverLimit {
		g.T.Errorf("got %+v", r)
	}
}

func aUserWhoVanishesBeforeTheTurnIsNoError(g *servicetest.Ghosts) {
	g.Doomed(10, 11, 12)
	g.Exec("main", `CREATE FUNCTION take_along() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM users WHERE id = 11; RETURN NULL; END $$;
		CREATE TRIGGER take_along AFTER DELETE ON users FOR EACH ROW WHEN (OLD.id = 10) EXECUTE FUNCTION take_along()`)
	g.Run(g.Service(), "migrated_users=2 deleted_rows=8")
	g.WantGone(12)
	g.Want("main", `SELECT count(*) FROM ghost_user_migrations`, "0")
}

func aGhostThatATriggerSwallowsHoldsUpNoOtherUser(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	g.Exec("main", `CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER swallow BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION swallow(); UPDATE users SET organization_id = 2 WHERE id = 10`)
	g.Run(g.Service(), "failed_users=1 migrated_users=1 deleted_rows=4")
	g.WantLater(10, 30*time.Minute)
	g.WantGone(11)
	g.WantLog(1, `"level":"ERROR"`, `"user_id":10`, "KEPT_BY_TRIGGER: a trigger or rule kept rows of users from being added, but raised no error: check the table's triggers and rules")
}

func aUserWhomOnlyTheLastStepCannotDeleteStaysInTheQueue(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Exec("main", `ALTER TABLE users ADD FOREIGN KEY (created_by_id) REFERENCES users (id) ON DELETE CASCADE; UPDATE users SET created_by_id = 10 WHERE id = 10;
		ALTER TABLE ghost_user_migrations ADD FOREIGN KEY (initiator_user_id) REFERENCES users (id) ON DELETE CASCADE; UPDATE ghost_user_migrations SET initiator_user_id = 10;
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON users FOR EACH ROW EXECUTE FUNCTION refuse()`)
	s := g.Service()
	g.Run(s, "failed_users=1 deleted_rows=3")
	g.WantLater(10, 30*time.Minute)
	g.Exec("main", `DROP TRIGGER refuse ON users; UPDATE ghost_user_migrations SET consume_after = now()`)
	g.Run(s, "migrated_users=1 deleted_rows=1")
	g.WantGone(10)
}

// Each user has something of its own that keeps it, from 10 on.
func TestGhostUserMigration_WhatStillRefersToTheUserIsNamed(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	const issue = `INSERT INTO issues (id, author_id, namespace_id) VALUES (1000 + {user}, {user}, 101); `
	trigger := func(event, table, column, body string) string {
		return `CREATE FUNCTION f_{user}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + body + ` END $$;
			CREATE TRIGGER t_{user} BEFORE ` + event + ` ON ` + table + ` FOR EACH ROW WHEN (OLD.` + column +
			` = {user}) EXECUTE FUNCTION f_{user}()`
	}
	cases := []struct{ says, sql string }{
		{"STILL_REFERENCED: owing.debtor_id", `CREATE TABLE owing (id bigint, debtor_id bigint REFERENCES users);
			INSERT INTO owing VALUES (1, {user})`},
		{"STILL_REFERENCED: bound.debtor_id", `CREATE TABLE bound (id bigint, debtor_id bigint REFERENCES users ON DELETE RESTRICT);
			INSERT INTO bound VALUES (1, {user})`},
		{"STILL_REFERENCED: reset.debtor_id", `CREATE TABLE reset (id bigint, debtor_id bigint REFERENCES users ON DELETE SET DEFAULT);
			INSERT INTO reset VALUES (1, {user})`},
		{"STILL_REFERENCED: away.debtor_id", `CREATE SCHEMA far; CREATE TABLE far.away (id bigint, debtor_id bigint REFERENCES users);
			INSERT INTO far.away VALUES (1, {user})`},
		{"PERSONAL_PROJECTS", `UPDATE projects SET namespace_id = {user}`},
		{"projects.creator_id cannot be cleared, because the column is NOT NULL", `UPDATE projects SET creator_id = {user}; ALTER TABLE projects ALTER creator_id SET NOT NULL`},
		{"move timelogs.user_id", `CREATE UNIQUE INDEX ON timelogs (user_id, issue_id);
			INSERT INTO timelogs (time_spent, user_id, issue_id, created_at, updated_at) VALUES (1, {user}, 1, now(), now()), (1, 5, 1, now(),
			now())`},
		{"STILL_REFERENCED: citing.snippet_id", `INSERT INTO snippets (id, author_id, organization_id) VALUES (1, {user}, 1);
			CREATE TABLE citing (snippet_id bigint REFERENCES snippets); INSERT INTO citing VALUES (1)`},
		{"issues.author_id from being changed", issue + trigger("UPDATE", "issues", "author_id", "RETURN NULL;")},
		{"issues.author_id from being changed", issue + trigger("UPDATE", "issues", "author_id", "NEW.author_id := OLD.author_id; RETURN NEW;")},
		{"issues.closed_by_id from being changed", `UPDATE issues SET closed_by_id = {user} WHERE id = 1; ` +
			trigger("UPDATE", "issues", "closed_by_id", "NEW.closed_by_id := OLD.closed_by_id; RETURN NEW;")},
		// Another session may cancel a statement.
		{"issues.author_id on main: 57014", issue + trigger("UPDATE", "issues", "author_id",
			"PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(0.3); RETURN NEW;")},
		{"emails.user_id from being deleted", `INSERT INTO emails (user_id, email) VALUES ({user}, 'x'); ` +
			trigger("DELETE", "emails", "user_id", "RETURN NULL;")},
	}
	for i, c := range cases {
		g.Doomed(10 + i)
		g.Exec("main", strings.ReplaceAll(c.sql, "{user}", fmt.Sprint(10+i)))
	}
	s := g.Service()
	g.Runs(s, true)
	g.Want("main", `SELECT count(*) FROM ghost_user_migrations WHERE consume_after < now()`, fmt.Sprint(len(cases)))
	g.Log.Reset()
	r := g.Run(s, "")
	assert.That(t, r.Counts["failed_users"] == int64(len(cases)) && r.Counts["moved_rows"] == 0, "counts %v", r.Counts)
	for i, c := range cases {
		g.WantLater(10+i, 30*time.Minute)
		g.WantLog(1, `"level":"ERROR"`, c.says, fmt.Sprintf(`"user_id":%d,`, 10+i))
	}
	// A line has the reason, the table and the column on their own too.
	g.WantLog(1, `"msg":"user deletion failed"`, `"user_id":10`, `"reason":"STILL_REFERENCED"`, `"table":"owing","column":"debtor_id"`)
	g.WantLog(1, `"msg":"user deletion failed"`, `"user_id":14`, `"reason":"PERSONAL_PROJECTS"`)
	// Of the personal namespace with a project nothing is gone.
	g.Want("main", `SELECT (SELECT count(*) FROM namespaces WHERE id = 14) + (SELECT count(*) FROM routes WHERE source_id = 14)`, "2")
	g.Exec("main", `UPDATE projects SET namespace_id = 100; UPDATE ghost_user_migrations SET consume_after = now() WHERE user_id = 14`)
	g.Run(s, "migrated_users=1 deleted_rows=4")
	g.WantGone(14)
}

func TestGhostUserMigration_GroupsThatLoseTheirScheduleAreNamedAndHeld(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `INSERT INTO application_settings (deletion_adjourned_period) VALUES (7); UPDATE namespaces SET state = 2 WHERE id = 100`)
	g.Exec("main", `INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (100, 10, '2020-01-01')`)
	s := g.Service(g.WithQueue)
	g.Run(s, "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
	g.WantLog(1, `"level":"WARN"`, `"group_ids":[100]`, `"user_id":10`)
	g.Want("main", `SELECT count(*) FROM group_deletion_schedules`, "0")
	r := assert.Must(s.RunBatch(context.Background(), run.Request{Worker: servicetest.AdjournedGroups}))(t)
	servicetest.WantCounts(t, r, "held_groups=1")
	g.WantLog(1, `"level":"WARN"`, "SCHEDULE_LOST", `"group_id":100`)

	// Schedules without a group are deleted with their user.
	g.Doomed(11)
	g.Exec("main", `ALTER TABLE group_deletion_schedules DROP group_id;
		INSERT INTO group_deletion_schedules (user_id, marked_for_deletion_on) VALUES (11, '2020-01-01')`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
	g.WantGone(11)
	g.Want("main", `SELECT count(*) FROM group_deletion_schedules`, "0")
}

func TestGhostUserMigration_ADryRunCountsAUserWhoWouldFail(t *testing.T) {
	type failing struct{ says, sql string }
	cases := map[string]func(*servicetest.Ghosts){}
	const noGhost = "cannot create a ghost user, because column users."
	for name, users := range map[string][]failing{
		"references": {
			{"STILL_REFERENCED: namespaces.parent_id still refers to the target", `INSERT INTO namespaces (id, name, path, type, organization_id, parent_id)
				VALUES (1000, 'orphan', 'orphan', 'Project', 1, {user})`},
			{"badges.holder_id cannot be cleared, because the column is NOT NULL", `CREATE TABLE badges (id bigserial PRIMARY KEY,
				holder_id bigint NOT NULL REFERENCES users ON DELETE SET NULL); INSERT INTO badges (holder_id) VALUES ({user})`},
			{"letters.email_id cannot be cleared, because the column is NOT NULL", `CREATE TABLE letters (id bigserial PRIMARY KEY,
				email_id bigint NOT NULL REFERENCES emails ON DELETE SET NULL);
				INSERT INTO emails (id, user_id, email) VALUES (1, {user}, 'x'); INSERT INTO letters (email_id) VALUES (1)`},
			// Another row of the same table, and a row that waits for what refers to it.
			{"STILL_REFERENCED: links.before_id still refers to the target", `CREATE TABLE links (id bigserial PRIMARY KEY,
				user_id bigint REFERENCES users ON DELETE CASCADE, before_id bigint REFERENCES links);
				INSERT INTO links (id, user_id, before_id) VALUES (1, {user}, NULL), (2, 7, 1)`},
			{"STILL_REFERENCED: heads.tail_id still refers to the target", `CREATE TABLE heads (id bigserial PRIMARY KEY,
				user_id bigint REFERENCES users ON DELETE CASCADE, tail_id bigint);
				CREATE TABLE tails (id bigserial PRIMARY KEY, head_id bigint REFERENCES heads ON DELETE CASCADE);
				ALTER TABLE heads ADD FOREIGN KEY (tail_id) REFERENCES tails; INSERT INTO heads (id, user_id) VALUES (1, {user});
				INSERT INTO tails VALUES (1, 1); UPDATE heads SET tail_id = 1`},
		},
		"no ghost, and a column that nobody knows": {{noGhost + "shoe_size is NOT NULL", `ALTER TABLE users
			ADD shoe_size integer NOT NULL DEFAULT 42; ALTER TABLE users ALTER shoe_size DROP DEFAULT`}},
		"no ghost, and the state is a number": {{noGhost + "state has type integer, for which caretaker has no value", `ALTER TABLE users
			ALTER state DROP DEFAULT, ALTER state TYPE integer USING 0`}},
		"no ghost, and the states do not include its own": {{noGhost + "state has type sleep, for which caretaker has no value", `CREATE TYPE
			sleep AS ENUM ('asleep', 'blocked'); ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE sleep USING 'blocked'`}},
	} {
		cases[name] = func(g *servicetest.Ghosts) {
			for i, c := range users {
				g.Doomed(10 + i)
				g.Exec("main", strings.ReplaceAll(c.sql, "{user}", fmt.Sprint(10+i)))
			}
			if len(users) == 1 {
				g.Exec("main", `DELETE FROM users WHERE id = 5; UPDATE issues SET author_id = 10`)
			}
			s, counts := g.Service(), fmt.Sprintf("failed_users=%d", len(users))
			servicetest.WantRun(g.T, g.Runs(s, true), control.RunSucceeded, counts)
			g.Run(s, counts)
			for i, c := range users {
				g.WantLog(2, `"level":"ERROR"`, c.says, fmt.Sprintf(`"user_id":%d,`, 10+i))
				g.WantLater(10+i, 30*time.Minute)
				// Nothing of the personal namespace is gone.
				g.Want("main", fmt.Sprintf(`SELECT count(*) FROM routes WHERE source_id = %d`, 10+i), "1")
			}
		}
	}
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), cases)
}

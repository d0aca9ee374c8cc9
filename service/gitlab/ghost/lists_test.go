package ghost_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_WorksListedAndOtherTables(t *testing.T) {
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), map[string]func(*servicetest.Ghosts){
		"author and editor of an issue are the ghost and assignees go": authorAndEditorOfAnIssueAreTheGhostAndAssigneesGo,
		"tables in no list go in bounded statements before the user":   tablesInNoListGoInBoundedStatementsBeforeTheUser,
		"listed tables are worked in bounded statements":               listedTablesAreWorkedInBoundedStatements,
		"every column is as its list says":                             everyColumnIsAsItsListSays(false),
		"every column is as its list says, with hard_delete":           everyColumnIsAsItsListSays(true),
		"a tenth of the users may fail without a warning":              failedOneOf(10, 0),
		"more than a tenth may not":                                    failedOneOf(9, 1),
	})
}

func authorAndEditorOfAnIssueAreTheGhostAndAssigneesGo(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Exec("main", `INSERT INTO issues (id, author_id, last_edited_by_id, project_id, namespace_id, iid) VALUES (2, 10, 10, 1, 101, 2), (3,
		7, 10, 1, 101, 3);
		INSERT INTO issue_assignees (user_id, issue_id, namespace_id) VALUES (10, 1, 101), (7, 1, 101);
		INSERT INTO merge_request_assignees (user_id, merge_request_id, project_id) VALUES (10, 1, 1), (7, 1, 1);
		INSERT INTO merge_request_reviewers (user_id, merge_request_id, project_id, created_at) VALUES (10, 1, 1, now())`)
	r := g.Run(g.Service(), "migrated_users=1 moved_rows=3 deleted_rows=7")
	g.Want("main", `SELECT (SELECT string_agg(user_id::text, ',') FROM issue_assignees) || ' ' || (SELECT string_agg(user_id::text, ',') FROM merge_request_assignees)
		|| ' ' || (SELECT count(*) FROM merge_request_reviewers) || ' ' || (SELECT count(*) FROM merge_requests)`, "7 7 0 1")
	g.Want("main", `SELECT string_agg(concat_ws(' ', id, author_id, last_edited_by_id), ', ' ORDER BY id) FROM issues`, "1 7, 2 5 5, 3 7 5")
	g.WantGone(10)
	assert.That(g.T, !r.OverLimit && r.Reason == "", "over limit %t, reason %q", r.OverLimit, r.Reason)
	g.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.users' AND primary_key_value = 10`, "1")
	g.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.namespaces' AND primary_key_value = 10`, "1")
	g.WantLog(1, `"msg":"user migrated and deleted"`, `"user_id":10`, `"issues":{"move":3}`)
}

func tablesInNoListGoInBoundedStatementsBeforeTheUser(g *servicetest.Ghosts) {
	g.Exec("main", `CREATE TABLE diaries (id bigserial PRIMARY KEY, keeper_id bigint REFERENCES users ON DELETE CASCADE);
		CREATE TABLE pages (id bigserial PRIMARY KEY, diary_id bigint REFERENCES diaries ON DELETE CASCADE);
		CREATE TABLE badges (id bigserial PRIMARY KEY, holder_id bigint REFERENCES users ON DELETE SET NULL);
		CREATE INDEX ON diaries (keeper_id); CREATE INDEX ON pages (diary_id); CREATE INDEX ON badges (holder_id)`)
	g.Doomed(10)
	g.Fill("main", "diaries", "keeper_id", "CASE WHEN i <= 25000 THEN 10 ELSE 7 END", 25_100)
	g.Fill("main", "pages", "diary_id", "i + 24000", 1100)
	g.Fill("main", "badges", "holder_id", "10", 21_000)
	spy(g, "diaries", "pages", "badges")
	g.Run(g.Service(), "migrated_users=1 deleted_rows=26004 nullified_rows=21000")
	g.WantGone(10)
	wantBounded(g, "badges UPDATE=21000", "diaries DELETE=25000", "pages DELETE=1000")
	g.Want("main", `SELECT (SELECT count(*) FROM diaries WHERE keeper_id = 7) + (SELECT count(*) FROM pages)`, "200")
}

func listedTablesAreWorkedInBoundedStatements(g *servicetest.Ghosts) {
	g.Doomed(10)
	g.Fill("main", "issues", "author_id, closed_by_id, updated_by_id, namespace_id", "7, 10, 10, 101", 21_000)
	g.Fill("main", "events", "author_id, project_id, action, created_at, updated_at", "10, 1, 1, now(), now()", 21_000)
	g.Fill("main", "todos", "user_id, author_id, project_id, target_type, action, state, created_at, updated_at", "10, 7, 1, 'Issue', 1, 'pending', now(), now()", 5_000)
	spy(g, "issues", "events", "todos")
	g.Run(g.Service(), "migrated_users=1 deleted_rows=26004 nullified_rows=42000")
	g.WantGone(10)
	wantBounded(g, "events DELETE=21000", "issues UPDATE=42000", "todos DELETE=5000")
	g.Want("main", `SELECT count(*) FROM issues WHERE closed_by_id IS NOT NULL OR updated_by_id IS NOT NULL OR author_id <> 7`, "0")
}

// spySQL notes how many rows each statement changes.
const spySQL = `CREATE TABLE spied (n serial, what text, rows bigint);
	CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO spied (what, rows) SELECT TG_TABLE_NAME || ' ' || TG_OP, count(*) FROM changed; RETURN NULL; END $$`

// spy watches the statements on some tables, and on users.
func spy(g *servicetest.Ghosts, tables ...string) {
	g.T.Helper()
	g.Exec("main", spySQL)
	for _, table := range append(tables, "users") {
		for _, event := range []string{"DELETE", "UPDATE"} {
			g.Exec("main", fmt.Sprintf(`CREATE TRIGGER spy_%[2]s AFTER %[2]s ON %[1]s REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION spy()`, table, event))
		}
	}
}

// wantBounded fails the test unless so many rows were changed, "table ACTION=rows", and no statement changed more than it
// may, the user last of all.
func wantBounded(g *servicetest.Ghosts, want ...string) {
	g.T.Helper()
	g.Want("main", `SELECT string_agg(what || '=' || rows, ' ' ORDER BY what) FROM (SELECT what, sum(rows) AS rows FROM spied WHERE rows > 0 GROUP BY what) s`,
		strings.Join(append(want, "users DELETE=1"), " "))
	g.Want("main", `SELECT coalesce(string_agg(what || ' ' || rows, ', '), '') FROM spied WHERE rows > 20000`, "")
	g.Want("main", `SELECT what FROM spied WHERE rows > 0 ORDER BY n DESC LIMIT 1`, "users DELETE")
}

// wholeRun is a dry run and a run of users, and what is to come of both.
type wholeRun struct {
	doomed      []int
	counts, sql string
	left        left
}

// left are values of queries after the run.
type left = map[string]string

func (c wholeRun) check(g *servicetest.Ghosts) {
	g.Doomed(c.doomed...)
	g.Exec("main", c.sql)
	tables := []string{"users", "namespaces", "routes", "issues", "emails", "members", "ghost_user_migrations", "maintenance.leases"}
	before, s := g.State("main", tables...), g.Service()
	servicetest.WantRun(g.T, g.Runs(s, true), control.RunSucceeded, c.counts)
	g.WantSame("main", before, tables...)
	r := g.Run(s, "")
	servicetest.WantCounts(g.T, r, c.counts)
	assert.That(g.T, !r.OverLimit, "over limit")
	g.WantGone(c.doomed...)
	for sql, want := range c.left {
		g.Want("main", sql, want)
	}
}

func TestGhostUserMigration_ADryRunCountsWhatARunDoesAndChangesNothing(t *testing.T) {
	const queued, issueAuthor = `SELECT count(*) FROM ghost_user_migrations`, `SELECT author_id FROM issues`
	cases := map[string]func(*servicetest.Ghosts){}
	for name, c := range map[string]wholeRun{
		"an empty queue creates no ghost": {nil, "", `DELETE FROM users WHERE id = 5`, left{
			`SELECT count(*) FROM users WHERE user_type = 5`: "0",
		}},
		"a ghost is created": {[]int{10}, "migrated_users=1 moved_rows=1 nullified_rows=1 deleted_rows=5", `
			DELETE FROM users WHERE id = 5; UPDATE issues SET author_id = 10, closed_by_id = 10;
			INSERT INTO emails (user_id, email) VALUES (10, 'x')`, left{
			`SELECT count(*) FROM issues i JOIN users u ON u.id = i.author_id WHERE u.user_type = 5`: "1",
		}},
		"the first ghost of an organization is used": {[]int{10}, "migrated_users=1 moved_rows=1 deleted_rows=4", `
			INSERT INTO users (id, email, username, projects_limit, user_type, organization_id)
			VALUES (3, 'g3', 'g3', 0, 5, 2), (4, 'g4', 'g4', 0, 5, 1), (6, 'g6', 'g6', 0, 5, 1); UPDATE issues SET author_id = 10`, left{issueAuthor: "4"}},
		"a row of the queue without a user is not counted": {[]int{10}, "migrated_users=1 deleted_rows=4", `
			ALTER TABLE ghost_user_migrations DROP CONSTRAINT ghost_user_migrations_user_id_fkey;
			INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (999, now(), now());
			UPDATE ghost_user_migrations SET initiator_user_id = 12345 WHERE user_id = 10`, left{queued: "0"}},
		"a row of the queue that names nobody": {[]int{10}, "migrated_users=1 deleted_rows=4", `
			ALTER TABLE ghost_user_migrations ALTER user_id DROP NOT NULL, ALTER hard_delete DROP NOT NULL;
			UPDATE ghost_user_migrations SET hard_delete = NULL;
			INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) VALUES (NULL, '2020-01-01', now(), now())`, left{queued: "0"}},
		"rows that refer to each other": {[]int{10}, "migrated_users=1 deleted_rows=7", `
			CREATE TABLE links (id bigserial PRIMARY KEY,
			user_id bigint REFERENCES users ON DELETE CASCADE, before_id bigint REFERENCES links);
			INSERT INTO links (id, user_id, before_id) VALUES (1, 10, 2), (2, 10, 1), (3, 10, 3)`, nil},
		"what the user has made of itself": {[]int{10}, "migrated_users=1 nullified_rows=1 deleted_rows=6", `
			UPDATE users SET created_by_id = 10 WHERE id = 10;
			INSERT INTO members (source_type, source_id, type, user_id, access_level, created_by_id, member_namespace_id)
			VALUES ('Namespace', 10, 'GroupMember', 10, 50, 10, 10), ('Namespace', 10, 'GroupMember', 7, 50, 10, 10);
			INSERT INTO namespace_details (namespace_id, creator_id) VALUES (10, 10) ON CONFLICT (namespace_id) DO UPDATE SET creator_id = 10`, left{
			`SELECT (SELECT count(*) FROM members) + (SELECT count(*) FROM namespace_details WHERE namespace_id = 10)`: "0",
		}},
		"a hard delete leaves what others did": {[]int{10}, "migrated_users=1 nullified_rows=2 deleted_rows=10", `
			UPDATE ghost_user_migrations SET hard_delete = true;
			UPDATE issues SET last_edited_by_id = 10; UPDATE merge_requests SET merge_user_id = 10;
			INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (2, 10, 1, 101, 2);
			INSERT INTO merge_requests (id, target_branch, source_branch, source_project_id, target_project_id, author_id, iid) VALUES (2, 'a', 'c', 1, 1, 10, 2);
			INSERT INTO notes (id, noteable_type, noteable_id, author_id, project_id) VALUES (1, 'Issue', 1, 10, 1), (2, 'Issue', 2, 7, 1), (3, 'Issue', 1, 7, 1);
			INSERT INTO award_emoji (id, name, user_id, awardable_id, awardable_type) VALUES (1, 'x', 10, 1, 'Issue'), (2, 'x', 7, 1, 'Note'), (3, 'x', 7, 3, 'Note')`, left{
			`SELECT string_agg(id::text, ',') FROM issues`: "1", `SELECT string_agg(id::text, ',') FROM merge_requests`: "1",
			`SELECT string_agg(id::text, ',') FROM notes`: "3", `SELECT string_agg(id::text, ',') FROM award_emoji`: "3",
			`SELECT coalesce(i.last_edited_by_id, m.merge_user_id) FROM issues i, merge_requests m`: "NULL",
		}},
	} {
		cases[name] = c.check
	}
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), cases)
}

func TestGhostUserMigration_ADryRunAndARunPassOverTablesAndColumnsThatAreNotThere(t *testing.T) {
	wholeRun{[]int{10}, "migrated_users=1 moved_rows=1 deleted_rows=4", `
		UPDATE issues SET author_id = 10, last_edited_by_id = 10;
		DROP TABLE epics, saved_views, vulnerabilities, p_ci_builds, group_deletion_schedules, project_authorizations, todos, users_star_projects CASCADE;
		ALTER TABLE issues DROP last_edited_by_id; ALTER TABLE notes DROP resolved_by_id`, left{`SELECT author_id FROM issues`: "5"}}.
		check(servicetest.NewGhosts(servicetest.Parallel(t)))
}

func failedOneOf(users, warnings int) func(g *servicetest.Ghosts) {
	return func(g *servicetest.Ghosts) {
		g.User(9, 1)
		g.Queue(9)
		for i := range users - 1 {
			g.Doomed(10 + i)
		}
		g.Run(g.Service(), fmt.Sprintf("failed_users=1 migrated_users=%d deleted_rows=%d", users-1, 4*(users-1)))
		g.WantLog(warnings, `"level":"WARN"`, "many user deletions failed")
	}
}

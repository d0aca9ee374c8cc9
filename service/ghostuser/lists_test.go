package ghostuser_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantGhostRows fails the test for each row that is not as its action leaves it.
func wantGhostRows(g *servicetest.Ghosts, rows []servicetest.GhostRow, hardDelete bool) {
	g.T.Helper()
	for _, r := range rows {
		action := r.Normal
		if hardDelete {
			action = r.Hard
		}
		want := map[string]string{"G": "5", "N": "null", "D": "gone", "K": "10"}[action]
		got := g.Value(r.Database, fmt.Sprintf(`SELECT coalesce((SELECT coalesce(%[2]s::text, 'null') FROM %[1]s t WHERE to_jsonb(t) - '%[2]s' = $1::jsonb), 'gone')`,
			r.Table, r.Column), r.Rest)
		assert.That(g.T, got == want, "%s: %s, want %s", r.Line, got, want)
	}
}

func TestGhostUserMigration_DoesWithEveryColumnWhatItsListSays(t *testing.T) {
	t.Parallel()
	for _, three := range []bool{false, true} {
		for _, hard := range []bool{false, true} {
			t.Run(fmt.Sprintf("databases apart %t, hard delete %t", three, hard), func(t *testing.T) {
				g := servicetest.NewGhosts(servicetest.Parallel(t))
				if three {
					g = servicetest.NewThreeGhosts(t)
				}
				for name := range g.SQL {
					g.Exec(name, `SET session_replication_role = replica`)
				}
				rows := g.InsertRows()
				for name := range g.SQL {
					g.Exec(name, `RESET session_replication_role`)
				}
				g.Doomed(10)
				g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1`, hard)
				s := g.Service()
				dry := g.Runs(s, true)
				servicetest.WantState(t, dry, "succeeded")
				r := g.Run(s, "")
				wantGhostRows(g, rows, hard)
				g.WantGone(10)
				assert.That(t, fmt.Sprint(r.Counts, r.Tables) == fmt.Sprint(dry.Counts, dry.Tables),
					"the dry run counted %v %v, the run %v %v", dry.Counts, dry.Tables, r.Counts, r.Tables)
				want := map[string]int64{"moved_rows": 27, "nullified_rows": 37}
				if hard {
					want = map[string]int64{"moved_rows": 6, "nullified_rows": 37 + 11}
				}
				for key, n := range want {
					assert.That(t, r.Counts[key] == n, "%s = %d, want %d", key, r.Counts[key], n)
				}
				again := g.Run(s, "")
				servicetest.WantCounts(t, again, "")
			})
		}
	}
}

func TestGhostUserMigration_AuthorAndEditorOfAnIssueAreTheGhostAndAssigneesGo(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
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
	assert.That(t, !r.OverLimit && r.Reason == "", "over limit %t, reason %q", r.OverLimit, r.Reason)
	g.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.users' AND primary_key_value = 10`, "1")
	g.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.namespaces' AND primary_key_value = 10`, "1")
	g.WantLog(1, `"msg":"user migrated"`, `"user_id":10`, `"issues":{"move":3}`)
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

func TestGhostUserMigration_TablesInNoListGoInBoundedStatementsBeforeTheUser(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
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

func TestGhostUserMigration_ListedTablesAreWorkedInBoundedStatements(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Fill("main", "issues", "author_id, closed_by_id, updated_by_id, namespace_id", "7, 10, 10, 101", 21_000)
	g.Fill("main", "events", "author_id, project_id, action, created_at, updated_at", "10, 1, 1, now(), now()", 21_000)
	g.Fill("main", "todos", "user_id, author_id, project_id, target_type, action, state, created_at, updated_at", "10, 7, 1, 'Issue', 1, 'pending', now(), now()", 5_000)
	spy(g, "issues", "events", "todos")
	g.Run(g.Service(), "migrated_users=1 deleted_rows=26004 nullified_rows=42000")
	g.WantGone(10)
	wantBounded(g, "events DELETE=21000", "issues UPDATE=42000", "todos DELETE=5000")
	g.Want("main", `SELECT count(*) FROM issues WHERE closed_by_id IS NOT NULL OR updated_by_id IS NOT NULL OR author_id <> 7`, "0")
}

func TestGhostUserMigration_HardDeleteTakesWhatTheUserWroteAndLeavesWhatOthersDid(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = true; UPDATE issues SET last_edited_by_id = 10; UPDATE merge_requests SET merge_user_id = 10;
		INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (2, 10, 1, 101, 2);
		INSERT INTO merge_requests (id, target_branch, source_branch, source_project_id, target_project_id, author_id, iid) VALUES (2, 'a', 'c', 1, 1, 10, 2);
		INSERT INTO notes (id, noteable_type, noteable_id, author_id, project_id) VALUES (1, 'Issue', 1, 10, 1), (2, 'Issue', 2, 7, 1), (3, 'Issue', 1, 7, 1);
		INSERT INTO award_emoji (id, name, user_id, awardable_id, awardable_type) VALUES (1, 'x', 10, 1, 'Issue'), (2, 'x', 7, 1, 'Note'), (3, 'x', 7, 3, 'Note')`)
	g.Run(g.Service(), "migrated_users=1 nullified_rows=2 deleted_rows=10")
	for table, want := range map[string]string{"issues": "1", "merge_requests": "1", "notes": "3", "award_emoji": "3"} {
		g.Want("main", `SELECT string_agg(id::text, ',') FROM `+table, want)
	}
	g.Want("main", `SELECT coalesce(i.last_edited_by_id, m.merge_user_id) FROM issues i, merge_requests m`, "NULL")
}

func TestGhostUserMigration_WhatTheUserHasMadeOfItselfGoesWithIt(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `UPDATE users SET created_by_id = 10 WHERE id = 10; INSERT INTO members (source_type, source_id, type, user_id, access_level, created_by_id, member_namespace_id)
		VALUES ('Namespace', 10, 'GroupMember', 10, 50, 10, 10), ('Namespace', 10, 'GroupMember', 7, 50, 10, 10);
		INSERT INTO namespace_details (namespace_id, creator_id) VALUES (10, 10) ON CONFLICT (namespace_id) DO UPDATE SET creator_id = 10`)
	g.Run(g.Service(), "")
	g.WantGone(10)
	g.Want("main", `SELECT (SELECT count(*) FROM members) + (SELECT count(*) FROM namespace_details WHERE namespace_id = 10)`, "0")
}

func TestGhostUserMigration_ADryRunCreatesNoGhostAndChangesNothing(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `DELETE FROM users WHERE id = 5; UPDATE issues SET author_id = 10, closed_by_id = 10; INSERT INTO emails (user_id, email) VALUES (10, 'x')`)
	tables := []string{"users", "namespaces", "routes", "issues", "emails", "ghost_user_migrations", "maintenance.leases"}
	before := g.State("main", tables...)
	s := g.Service()
	dry := g.Runs(s, true)
	servicetest.WantState(t, dry, repo.RunSucceeded)
	servicetest.WantCounts(t, dry, "migrated_users=1 moved_rows=1 nullified_rows=1 deleted_rows=5")
	g.WantSame("main", before, tables...)
	g.Run(s, "migrated_users=1 moved_rows=1 nullified_rows=1 deleted_rows=5")
}

func TestGhostUserMigration_ATenthOfTheUsersMayFailWithoutAWarning(t *testing.T) {
	t.Parallel()
	for humans, warnings := range map[int]int{9: 0, 8: 1} {
		t.Run(fmt.Sprint(humans), func(t *testing.T) {
			g := servicetest.NewGhosts(servicetest.Parallel(t))
			g.User(9, 1)
			g.Queue(9)
			for i := range humans {
				g.Doomed(10 + i)
			}
			g.Run(g.Service(), fmt.Sprintf("failed_users=1 migrated_users=%d deleted_rows=%d", humans, 4*humans))
			g.WantLog(warnings, `"level":"WARN"`, "many users failed")
		})
	}
}

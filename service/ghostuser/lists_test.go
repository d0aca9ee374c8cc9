package ghostuser_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/ghostuser"
	"github.com/caretaker-go/caretaker/service/run"
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
				servicetest.WantCounts(t, g.Run(s, ""), "")
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

func TestGhostUserMigration_ADryRunCountsWhatARunDoesAndChangesNothing(t *testing.T) {
	t.Parallel()
	const queued, issueAuthor = `SELECT count(*) FROM ghost_user_migrations`, `SELECT author_id FROM issues`
	type left = map[string]string // values of queries after the run
	for name, c := range map[string]struct {
		doomed      []int
		counts, sql string
		left        left
	}{
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
		"tables and columns that are not there": {[]int{10}, "migrated_users=1 moved_rows=1 deleted_rows=4", `
			UPDATE issues SET author_id = 10, last_edited_by_id = 10;
			DROP TABLE epics, saved_views, vulnerabilities, p_ci_builds, group_deletion_schedules, project_authorizations, todos, users_star_projects CASCADE;
			ALTER TABLE issues DROP last_edited_by_id; ALTER TABLE notes DROP resolved_by_id`, left{issueAuthor: "5"}},
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
		t.Run(name, func(t *testing.T) {
			g := newDoomed(servicetest.Parallel(t), c.doomed...)
			g.Exec("main", c.sql)
			tables := []string{"users", "namespaces", "routes", "issues", "emails", "members", "ghost_user_migrations", "maintenance.leases"}
			before, s := g.State("main", tables...), g.Service()
			servicetest.WantRun(t, g.Runs(s, true), repo.RunSucceeded, c.counts)
			g.WantSame("main", before, tables...)
			r := g.Run(s, "")
			servicetest.WantCounts(t, r, c.counts)
			assert.That(t, !r.OverLimit, "over limit")
			g.WantGone(c.doomed...)
			for sql, want := range c.left {
				g.Want("main", sql, want)
			}
		})
	}
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

// leases are the leases of a database, with whether they are held.
const ghostLeases = `SELECT coalesce(string_agg(name || ' ' || (expires_at > now()), ',' ORDER BY name), '') FROM maintenance.leases`

func TestGhostUserMigration_FencesEveryDatabaseWhileItRuns(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	g.Gate("main", "issues")
	g.Shut("main", servicetest.App)
	s := g.Service()
	r := g.Begin(s)
	g.AtGate("main", servicetest.App)
	for name := range g.SQL {
		g.Want(name, ghostLeases, "ghost_user_migration true")
	}
	leases, err := s.Leases(context.Background(), servicetest.GhostUsers)
	assert.That(t, err == nil && len(leases) == 1 && leases[0].Database == "main", "leases %+v, %v", leases, err)
	g.Lift("main", servicetest.App)
	servicetest.WantState(t, servicetest.Ended(t, s, r.ID), repo.RunSucceeded)
	for name := range g.SQL {
		g.Want(name, ghostLeases, "ghost_user_migration false")
	}
}

func TestGhostUserMigration_ALeaseHeldInAnyDatabaseKeepsItFromRunning(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10)
	s := g.Service(servicetest.With(func(c *ghostuser.Config) { c.Schedule = servicetest.EveryMinute }))
	for _, where := range []string{"main", "sec", "ci"} {
		g.Exec(where, `INSERT INTO maintenance.leases VALUES ('ghost_user_migration', 'somebody', 7, now(), now(), now() + interval '1 hour')
			ON CONFLICT (name) DO UPDATE SET holder = 'somebody', epoch = 7, expires_at = excluded.expires_at`)
		_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.GhostUsers})
		var held *run.LeaseHeldError
		assert.That(t, errors.As(err, &held) && held.Lease.Holder == "somebody" && held.Lease.Database == where, "got %v", err)
		g.Want("main", `SELECT count(*) FROM maintenance.runs WHERE NOT dry_run`, "0")
		dry := g.Runs(s, true)
		assert.That(t, dry.State == repo.RunSucceeded && dry.Counts["migrated_users"] == 1, "a dry run is %s, %v", dry.State, dry.Counts)
		if where == "ci" {
			break
		}
		g.Exec(where, `UPDATE maintenance.leases SET expires_at = now()`)
	}
	r := g.Fire(s, servicetest.GhostUsers)
	assert.That(t, r.State == repo.RunSkipped && strings.HasPrefix(r.Reason, "LEASE_HELD"), "%+v", r)
	for _, name := range []string{"main", "sec"} {
		g.Want(name, `SELECT count(*) FROM maintenance.leases WHERE expires_at > now()`, "0")
	}
	g.Want("ci", `SELECT holder || ' ' || epoch FROM maintenance.leases`, "somebody 7")
	g.Want("main", `SELECT count(*) FROM users WHERE id = 10`, "1")
}

func TestGhostUserMigration_ADatabaseThatDoesNotAnswerFailsTheRun(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	before := g.Value("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`)
	down := assert.Must(repo.Open(context.Background(), "ci", "postgres://nobody@127.0.0.1:1/nowhere?connect_timeout=1"))(t)
	t.Cleanup(down.Close)
	s := g.Service(func(c *service.Config) { c.Databases = []*repo.Database{g.Open[0], down, g.Open[2]} })
	for _, dry := range []bool{true, false} {
		r := g.Runs(s, dry)
		servicetest.WantRun(t, r, repo.RunFailed, "")
		assert.That(t, r.Error != "", "no error is named")
	}
	g.Want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (10, 11)`, "2")
	g.Want("main", `SELECT author_id FROM issues`, "10")
	for _, name := range []string{"main", "sec"} {
		g.Want(name, `SELECT count(*) FROM maintenance.leases WHERE expires_at > now()`, "0")
	}
}

func TestGhostUserMigration_ADatabaseThatGoesAwayInTheMiddleFailsTheRun(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10, 11)
	before := g.Value("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	g.Exec("ci", `INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 10)`)
	g.Gate("ci", "p_ci_pipelines")
	g.Shut("ci", servicetest.App)
	s := g.Service()
	r := g.Begin(s)
	g.AtGate("ci", servicetest.App)
	g.Exec("main", `ALTER DATABASE `+g.Value("ci", `SELECT current_database()`)+` ALLOW_CONNECTIONS false`)
	g.Exec("ci", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker'`)
	r = servicetest.Ended(t, s, r.ID)
	servicetest.WantRun(t, r, repo.RunFailed, "moved_rows=1")
	g.Want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (10, 11)`, "2")
}

func TestGhostUserMigration_ALeaseThatIsLostInAnyDatabaseFailsTheRunAndReschedulesNobody(t *testing.T) {
	g := servicetest.NewThreeGhosts(servicetest.Parallel(t))
	g.Doomed(10)
	before := g.Value("main", `SELECT consume_after FROM ghost_user_migrations`)
	g.Exec("sec", `INSERT INTO vulnerabilities (project_id, author_id, title, created_at, updated_at) VALUES (1, 10, 'v', now(), now())`)
	g.Gate("main", "merge_requests")
	g.Exec("main", `UPDATE merge_requests SET author_id = 10`)
	g.Shut("main", servicetest.App)
	s := g.Service()
	r := g.Begin(s)
	g.AtGate("main", servicetest.App)
	g.Exec("sec", `UPDATE maintenance.leases SET epoch = epoch + 1, holder = 'another'`)
	g.Lift("main", servicetest.App)
	servicetest.WantLost(t, servicetest.Ended(t, s, r.ID))
	g.Want("sec", `SELECT author_id FROM vulnerabilities`, "10")
	g.Want("main", `SELECT consume_after FROM ghost_user_migrations`, before)
	g.Want("sec", `SELECT holder || ' ' || (expires_at > now()) FROM maintenance.leases`, "another true")
}

func TestGhostUserMigration_ATableThatMustNotBeReadIsNamed(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	s := denied(g, `REVOKE ALL ON reviews FROM {role}`)
	r := g.Runs(s, false)
	servicetest.WantState(t, r, repo.RunFailed)
	assert.That(t, strings.Contains(r.Error, "reviews") && strings.Contains(r.Error, "SELECT"), "error %q", r.Error)
	g.Want("main", `SELECT count(*) FROM ghost_user_migrations WHERE consume_after < now()`, "1")
	// The status names an essential one.
	g.Exec("main", `DO $$ BEGIN EXECUTE format('REVOKE ALL ON ghost_user_migrations FROM tester_%s', (SELECT oid FROM pg_database
		WHERE datname = current_database())); END $$`)
	servicetest.WantDetail(t, servicetest.StatusOf(t, s, servicetest.GhostUsers), "grant SELECT", "ghost_user_migrations")
}

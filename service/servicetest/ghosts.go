package servicetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/run"
)

// Ghosts has an organization with a ghost (5), a group (100) with a project (1), and user 7. A
// merge request (1), an issue (1) and an epic (1) belong to the user.
type Ghosts struct {
	*Estate
	Log *Buffer
}

const ghostFixtureSQL = `
INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'one', now(), now()), (2, 'two', now(), now());
INSERT INTO users (id, email, username, projects_limit, state, user_type, organization_id) VALUES (5, 'ghost@x', 'ghost', 0, 'active', 5, 1), (7, 'seven@x', 'seven', 0, 'active', 0, 1);
INSERT INTO namespaces (id, name, path, type, organization_id, traversal_ids) VALUES (100, 'group', 'group', 'Group', 1, '{100}'), (7, 'seven', 'seven', 'User', 1, '{7}');
INSERT INTO namespaces (id, name, path, type, organization_id, parent_id, traversal_ids) VALUES (101, 'project', 'project', 'Project', 1, 100, '{100,101}');
UPDATE namespaces SET owner_id = 7 WHERE id = 7;
INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id) VALUES (1, 'project', 'project', 100, 101, 1);
INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES (1, 'of seven', 7, 1, 101, 1);
INSERT INTO merge_requests (id, target_branch, source_branch, source_project_id, target_project_id, author_id, iid) VALUES (1, 'a', 'b', 1, 1, 7, 1);
INSERT INTO epics (id, group_id, iid, title, author_id) VALUES (1, 100, 1, 'of seven', 7);
SELECT setval('issues_id_seq', 10), setval('merge_requests_id_seq', 10), setval('epics_id_seq', 10), setval('users_id_seq', 1000), setval('namespaces_id_seq', 1000)`

// NewGhosts has all tables in main.
func NewGhosts(t *testing.T) *Ghosts {
	t.Helper()
	return New(t, "all", "main").Ghosts()
}

// Ghosts makes them on an estate.
func (e *Estate) Ghosts() *Ghosts {
	e.T.Helper()
	g := &Ghosts{Estate: e, Log: &Buffer{}}
	g.Exec("main", ghostFixtureSQL)
	return g
}

// NewThreeGhosts has the tables in main, ci and sec.
func NewThreeGhosts(t *testing.T) *Ghosts {
	t.Helper()
	e := New(t, "main", "main")
	for _, name := range []string{"ci", "sec"} {
		e.Add(name, Databases.Clone(t, Migrated(name)))
	}
	return e.Ghosts()
}

// Service logs JSON into g.log.
func (g *Ghosts) Service(change ...func(*service.Config)) *service.Service {
	g.T.Helper()
	return g.Estate.Service("", append([]func(*service.Config){LogTo(g.Log)}, change...)...)
}

// User makes a blocked user of a type in organization 1, with a personal namespace of the same id and its route.
func (g *Ghosts) User(id, userType int) {
	g.T.Helper()
	g.Exec("main", fmt.Sprintf(`
		INSERT INTO users (id, email, username, projects_limit, state, user_type, organization_id) VALUES (%[1]d, 'u%[1]d@x', 'u%[1]d', 0, 'blocked', %[2]d, 1);
		INSERT INTO namespaces (id, name, path, type, organization_id, owner_id, traversal_ids) VALUES (%[1]d, 'u%[1]d', 'u%[1]d', 'User', 1, %[1]d, '{%[1]d}');
		INSERT INTO routes (source_id, source_type, path, name, namespace_id) VALUES (%[1]d, 'Namespace', 'u%[1]d', 'u%[1]d', %[1]d)`, id, userType))
}

// Queue puts users into the queue, due in this order.
func (g *Ghosts) Queue(ids ...int) {
	g.T.Helper()
	for i, id := range ids {
		g.Exec("main", `INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at)
			VALUES ($1, now() - interval '1 hour' + $2 * interval '1 second', now(), now())`, id, i)
	}
}

// Doomed makes human users and queues them.
func (g *Ghosts) Doomed(ids ...int) {
	g.T.Helper()
	for _, id := range ids {
		g.User(id, 0)
	}
	g.Queue(ids...)
}

// Run runs the worker. The run must succeed and have these counts, "" for any.
func (g *Ghosts) Run(s *service.Service, counts string) run.Run {
	g.T.Helper()
	r := g.Runs(s, false)
	WantState(g.T, r, control.RunSucceeded)
	if counts != "" {
		WantCounts(g.T, r, counts)
	}
	return r
}

// Runs runs the worker, whatever comes of it.
func (g *Ghosts) Runs(s *service.Service, dry bool) run.Run {
	g.T.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: GhostUsers, DryRun: dry})
	if err != nil {
		g.T.Fatal(err)
	}
	WantSums(g.T, r)
	return r
}

// Settled runs the worker again where a user was deferred, because the test came too late on a slow
// machine. The worker waits a second for a lock. The counts are those of all runs.
func (g *Ghosts) Settled(s *service.Service, r run.Run) run.Run {
	g.T.Helper()
	for r.Counts["deferred_users"] > 0 {
		g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
		next := g.Runs(s, false)
		for key, n := range r.Counts {
			if key != "deferred_users" {
				next.Counts[key] += n
			}
		}
		r = next
	}
	return r
}

// Begin starts a run and returns at once.
func (g *Ghosts) Begin(s *service.Service) run.Run {
	g.T.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: GhostUsers, Async: true})
	if err != nil {
		g.T.Fatal(err)
	}
	return r
}

// WantGone fails the test unless the users are gone, with their personal namespaces and rows of the queue.
func (g *Ghosts) WantGone(ids ...int) {
	g.T.Helper()
	for _, id := range ids {
		g.Want("main", fmt.Sprintf(`SELECT (SELECT count(*) FROM users WHERE id = %[1]d) + (SELECT count(*) FROM namespaces WHERE type = 'User' AND owner_id = %[1]d)
			+ (SELECT count(*) FROM ghost_user_migrations WHERE user_id = %[1]d) + (SELECT count(*) FROM routes WHERE source_type = 'Namespace' AND source_id = %[1]d)`, id), "0")
	}
}

// WantLater fails the test unless the user is there and a run has postponed it by so long.
func (g *Ghosts) WantLater(id int, wait time.Duration) {
	g.T.Helper()
	g.Want("main", fmt.Sprintf(`SELECT count(*) FROM users WHERE id = %d`, id), "1")
	g.Want("main", fmt.Sprintf(`SELECT EXISTS (SELECT FROM maintenance.runs
		WHERE consume_after - interval '%d s' BETWEEN started_at AND coalesce(finished_at, clock_timestamp()))
		FROM ghost_user_migrations WHERE user_id = %d`, int(wait.Seconds()), id), "true")
}

// WantLog fails the test unless there are so many log lines with all these words.
func (g *Ghosts) WantLog(times int, words ...string) {
	g.T.Helper()
	n := 0
	for line := range strings.Lines(g.Log.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			n++
		}
	}
	if n != times {
		g.T.Errorf("%d lines with %q, want %d, in %s", n, words, times, g.Log)
	}
}

// Fill makes rows of a table, given as columns and one row of values, for each number i up to n.
func (g *Ghosts) Fill(database, table, columns, values string, n int) {
	g.T.Helper()
	g.Exec(database, fmt.Sprintf(`INSERT INTO %s (%s) SELECT %s FROM generate_series(1, %d) AS i`, table, columns, values, n))
}

// SlowIssues gives a user so many issues, every thousandth of which takes most of a second to change.
func (g *Ghosts) SlowIssues(user, n int) {
	g.T.Helper()
	g.Fill("main", "issues", "author_id, namespace_id", fmt.Sprintf("%d, 101", user), n)
	g.Exec("main", `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$;
		CREATE TRIGGER dawdle BEFORE UPDATE ON issues FOR EACH ROW WHEN (OLD.id % 100 = 0) EXECUTE FUNCTION dawdle()`)
}

// Lasting makes runs as long as this.
func Lasting(d time.Duration) func(*service.Config) {
	return func(c *service.Config) { service.Settings[ghost.Config](c).MaxRuntime = d }
}

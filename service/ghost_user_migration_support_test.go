package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/ghostuser"
)

const ghostWorker = "ghost_user_migration"

// ghostEstate has an organization with a ghost (5), a group (100) with a project (1), and user 7, to whom a merge request
// (1), an issue (1) and an epic (1) belong.
type ghostEstate struct {
	*estate
	log *lockedBuffer
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

// newGhosts has all tables in main.
func newGhosts(t *testing.T) *ghostEstate {
	t.Helper()
	g := &ghostEstate{estate: newEstate(t, "all", "main"), log: &lockedBuffer{}}
	g.exec("main", ghostFixtureSQL)
	return g
}

// newThreeGhosts has the tables in main, ci and sec.
func newThreeGhosts(t *testing.T) *ghostEstate {
	t.Helper()
	g := &ghostEstate{estate: newEstate(t, "main", "main"), log: &lockedBuffer{}}
	for _, name := range []string{"ci", "sec"} {
		g.add(name, databases.Clone(t, migrated(name)))
	}
	g.exec("main", ghostFixtureSQL)
	return g
}

// service logs JSON into g.log.
func (g *ghostEstate) service(change ...func(*service.Config)) *service.Service {
	g.t.Helper()
	return g.estate.service("", append([]func(*service.Config){logTo(g.log)}, change...)...)
}

// lasting makes runs as long as this.
func lasting(d time.Duration) func(*service.Config) {
	return func(c *service.Config) { service.Settings[ghostuser.Config](c).MaxRuntime = d }
}

// user makes a blocked user of a type in organization 1, with a personal namespace of the same id and its route.
func (g *ghostEstate) user(id, userType int) {
	g.t.Helper()
	g.exec("main", fmt.Sprintf(`
		INSERT INTO users (id, email, username, projects_limit, state, user_type, organization_id) VALUES (%[1]d, 'u%[1]d@x', 'u%[1]d', 0, 'blocked', %[2]d, 1);
		INSERT INTO namespaces (id, name, path, type, organization_id, owner_id, traversal_ids) VALUES (%[1]d, 'u%[1]d', 'u%[1]d', 'User', 1, %[1]d, '{%[1]d}');
		INSERT INTO routes (source_id, source_type, path, name, namespace_id) VALUES (%[1]d, 'Namespace', 'u%[1]d', 'u%[1]d', %[1]d)`, id, userType))
}

// queue puts users into the queue, due in this order.
func (g *ghostEstate) queue(ids ...int) {
	g.t.Helper()
	for i, id := range ids {
		g.exec("main", `INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at)
			VALUES ($1, now() - interval '1 hour' + $2 * interval '1 second', now(), now())`, id, i)
	}
}

// doomed makes human users and queues them.
func (g *ghostEstate) doomed(ids ...int) {
	g.t.Helper()
	for _, id := range ids {
		g.user(id, 0)
	}
	g.queue(ids...)
}

// run runs the worker; the run must succeed and have these counts, "" for any.
func (g *ghostEstate) run(s *service.Service, counts string) service.Run {
	g.t.Helper()
	r := g.runs(s, false)
	wantState(g.t, r, repo.RunSucceeded)
	if counts != "" {
		wantCounts(g.t, r, counts)
	}
	return r
}

func (g *ghostEstate) runs(s *service.Service, dry bool) service.Run {
	g.t.Helper()
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: ghostWorker, DryRun: dry})
	if err != nil {
		g.t.Fatal(err)
	}
	wantSums(g.t, r)
	return r
}

// settled runs the worker again where a user was deferred, because the test came too late on a slow machine: a lock is
// waited for a second. The counts are those of all runs.
func (g *ghostEstate) settled(s *service.Service, r service.Run) service.Run {
	g.t.Helper()
	for r.Counts["deferred_users"] > 0 {
		g.exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
		next := g.runs(s, false)
		for key, n := range r.Counts {
			if key != "deferred_users" {
				next.Counts[key] += n
			}
		}
		r = next
	}
	return r
}

// begin starts a run and returns at once.
func (g *ghostEstate) begin(s *service.Service) service.Run {
	g.t.Helper()
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: ghostWorker, Async: true})
	if err != nil {
		g.t.Fatal(err)
	}
	return r
}

// wantGone fails the test unless the users are gone, with their personal namespaces and rows of the queue.
func (g *ghostEstate) wantGone(ids ...int) {
	g.t.Helper()
	for _, id := range ids {
		g.want("main", fmt.Sprintf(`SELECT (SELECT count(*) FROM users WHERE id = %[1]d) + (SELECT count(*) FROM namespaces WHERE type = 'User' AND owner_id = %[1]d)
			+ (SELECT count(*) FROM ghost_user_migrations WHERE user_id = %[1]d) + (SELECT count(*) FROM routes WHERE source_type = 'Namespace' AND source_id = %[1]d)`, id), "0")
	}
}

// wantLater fails the test unless the user is there and waits in the queue for so long, but for a few seconds that the
// test took.
func (g *ghostEstate) wantLater(id int, wait time.Duration) {
	g.t.Helper()
	g.want("main", fmt.Sprintf(`SELECT count(*) FROM users WHERE id = %d`, id), "1")
	g.want("main", fmt.Sprintf(`SELECT consume_after - now() BETWEEN interval '%[2]d s' - interval '25 s' AND interval '%[2]d s' FROM ghost_user_migrations WHERE user_id = %[1]d`,
		id, int(wait.Seconds())), "true")
}

// wantLog fails the test unless there are so many log lines with all these words.
func (g *ghostEstate) wantLog(times int, words ...string) {
	g.t.Helper()
	n := 0
	for line := range strings.Lines(g.log.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			n++
		}
	}
	if n != times {
		g.t.Errorf("%d lines with %q, want %d, in %s", n, words, times, g.log)
	}
}

// fill makes rows of a table, given as columns and one row of values, for each number i up to n.
func (g *ghostEstate) fill(database, table, columns, values string, n int) {
	g.t.Helper()
	g.exec(database, fmt.Sprintf(`INSERT INTO %s (%s) SELECT %s FROM generate_series(1, %d) AS i`, table, columns, values, n))
}

// reset forgets what was logged so far.
func (l *lockedBuffer) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

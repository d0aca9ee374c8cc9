package repo_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// bigGroups are 30,000 groups in trees of 30 on three levels, with 300,000 members, 30,000 invitations, a route and a
// project each. Every hundredth is marked, half of them in each store.
const bigGroups = `
INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
ALTER TABLE namespaces SET (autovacuum_enabled = off);
ALTER TABLE namespace_details SET (autovacuum_enabled = off);
ALTER TABLE members SET (autovacuum_enabled = off);
ALTER TABLE group_group_links SET (autovacuum_enabled = off);
ALTER TABLE routes SET (autovacuum_enabled = off);
ALTER TABLE projects SET (autovacuum_enabled = off);
ALTER TABLE users SET (autovacuum_enabled = off);
INSERT INTO users (id, username, email, projects_limit, organization_id, state, user_type)
SELECT i, 'u' || i, 'u' || i, 0, 1, 'active', CASE WHEN i % 10 = 0 THEN 6 ELSE 0 END FROM generate_series(1, 3000) i;
INSERT INTO namespaces (id, name, path, type, parent_id, organization_id)
SELECT i, 'n' || i, 'n' || i || CASE WHEN i % 100 = 0 THEN '-deletion_scheduled-' || i ELSE '' END, 'Group',
  CASE WHEN i % 30 = 0 THEN NULL WHEN i % 30 < 6 THEN i - i % 30 ELSE i - i % 30 + i % 5 + 1 END, 1 FROM generate_series(0, 29999) i;
INSERT INTO namespaces (id, name, path, type, parent_id, organization_id)
SELECT 100000 + i, 'p' || i, 'p' || i, 'Project', i, 1 FROM generate_series(0, 29998) i;
INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id)
SELECT i, 'p' || i, 'p' || i, i, 100000 + i, 1 FROM generate_series(0, 29998) i;
INSERT INTO routes (source_type, source_id, namespace_id, path, name)
SELECT 'Namespace', n.id, n.id, concat_ws('/', a.path, p.path, n.path), concat_ws(' / ', a.name, p.name, n.name)
FROM namespaces n LEFT JOIN namespaces p ON p.id = n.parent_id LEFT JOIN namespaces a ON a.id = p.parent_id WHERE n.type = 'Group';
INSERT INTO routes (source_type, source_id, namespace_id, path, name)
SELECT 'Project', p.id, p.project_namespace_id, r.path || '/' || p.path, r.name || ' / ' || p.name
FROM projects p JOIN routes r ON r.source_type = 'Namespace' AND r.source_id = p.namespace_id;
INSERT INTO members (source_type, source_id, type, user_id, access_level, member_namespace_id)
SELECT 'Namespace', i % 30000, 'GroupMember', 1 + (i / 30000 + i * 7) % 3000, 50, i % 30000 FROM generate_series(1, 300000) i;
INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, created_at, updated_at)
SELECT i, (i * 13 + 1) % 30000, 50, now(), now() FROM generate_series(0, 29999) i;
INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
SELECT i, 1 + i % 3000, (now() AT TIME ZONE 'UTC')::date - 20 FROM generate_series(0, 29999, 200) i;
UPDATE namespace_details SET deletion_scheduled_at = now() - interval '20 days', state_metadata = jsonb_build_object('deletion_scheduled_by_user_id', 1 + namespace_id % 3000)
WHERE namespace_id % 200 = 100 AND namespace_id < 30000`

// groupBench is the database with them.
type groupBench struct {
	*repo.Database
	t      *testing.T
	stores gitlab.GroupStores
	fence  fencing.Fence
	due    gitlab.Adjournment
	queue  jobqueue.Queue
}

func newGroupBench(t *testing.T, d *repo.Database) *groupBench {
	t.Helper()
	ctx := context.Background()
	b := &groupBench{Database: d, t: t}
	var err error
	if b.stores, err = d.Groups.GroupStores(ctx); err != nil || b.stores.Missing != "" {
		t.Fatal(err, b.stores.Missing)
	}
	lease := assert.Must(d.Leases.AcquireLease(ctx, "groups", "test", time.Hour))(t)
	now, err := d.Now(ctx)
	assert.NoError(t, err)
	b.fence, b.due = lease.Fence, gitlab.Adjournment{At: now, Days: 14}
	if b.queue, err = scheduler.NewQueue(d, scheduler.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// calls of a run.
func (b *groupBench) runCalls() map[string]func(context.Context) error {
	var page []int64
	for i := range int64(100) {
		page = append(page, 100*i)
	}
	return map[string]func(context.Context) error{
		"candidates": func(ctx context.Context) error {
			return second(b.Groups.GroupCandidates(ctx, b.stores, b.due, 0, generous))
		},
		"due": func(ctx context.Context) error {
			groups, err := b.Groups.DueGroups(ctx, b.stores, b.due, page, generous)
			assert.That(b.t, len(groups) == len(page), "%d groups are due, want %d", len(groups), len(page))
			return err
		},
		"forget": func(ctx context.Context) error { return b.Groups.DeleteStaleRemovals(ctx, by(b.fence)) },
		"lost":   func(ctx context.Context) error { return third(b.Groups.LostMarks(ctx, b.stores, 3000, generous)) },
		"odd":    func(ctx context.Context) error { return third(b.Groups.OddSchedules(ctx, b.stores, 3000, generous)) },
		"restore": func(ctx context.Context) error {
			p := by(b.fence)
			p.Transaction = time.Minute
			r, err := b.Groups.RestoreGroup(ctx, p, b.stores, b.due, 12000)
			assert.That(b.t, r.Restored, "%+v", r)
			return err
		},
	}
}

// calls of a job.
func (b *groupBench) jobCalls() map[string]func(context.Context) error {
	lock := unguarded()
	members := func(of gitlab.Memberships) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := b.Groups.RemoveMembers(ctx, lock, of, b.queue, func(int64) jobqueue.Job { return jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 1}} })
			return err
		}
	}
	return map[string]func(context.Context) error{
		"begin": func(ctx context.Context) error {
			p := unguarded()
			p.Transaction = time.Minute
			_, err := b.Groups.BeginGroupRemoval(ctx, p, b.stores, b.due, jobqueue.DestroyGroup{GroupID: 15000, UserID: new(int64(1))})
			return err
		},
		"fail": func(ctx context.Context) error {
			return b.Groups.FailGroupRemoval(ctx, unguarded(), b.stores, 15000, "why")
		},
		"tree": func(ctx context.Context) error {
			tree, err := b.Groups.GroupTree(ctx, 15000, generous, func() error { return nil })
			assert.That(b.t, len(tree) == 30 && tree[29] == 15000, "tree %v", tree)
			return err
		},
		"projects": func(ctx context.Context) error { return second(b.Groups.GroupProjects(ctx, 15000, 0, generous)) },
		"project": func(ctx context.Context) error {
			catalog, err := b.Schema.Tables(ctx, gitlab.ProjectTables())
			if err == nil {
				_, err = repo.Of(catalog.Database).Groups.FindProject(ctx, catalog, 9000, generous)
			}
			return err
		},
		"members":                  members(gitlab.Memberships{SourceType: "Namespace", SourceID: 9001}),
		"members of the namespace": members(gitlab.Memberships{SourceID: 18000}),
		"project's row": func(ctx context.Context) error {
			return b.Groups.RemoveProject(ctx, lock, gitlab.ProjectToRemove{ID: 9002, NamespaceID: 109002, Routed: true}, gitlab.Removed{GroupID: 1})
		},
		"group's row": func(ctx context.Context) error {
			return second(b.Groups.RemoveGroup(ctx, lock, b.stores, 29999, gitlab.Removed{GroupID: 29999}))
		},
	}
}

// ours reports whether a statement is one of this package's that finds rows.
func ours(sql string) bool {
	for _, start := range []string{"SELECT set_config", "begin", "commit", "rollback", "INSERT", "savepoint", "release"} {
		if strings.HasPrefix(strings.TrimSpace(sql), start) {
			return false
		}
	}
	return !strings.Contains(sql, "river_job") && !strings.Contains(sql, "server_version_num")
}

func TestGroups_PlansKeepToIndexes(t *testing.T) {
	for _, c := range plannings() {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			url := databases.Clone(t, c.loaded("repo_big_groups", bigGroups))
			conn := servicetest.Connect(t, url)
			if c.analyzed {
				assert.Must(conn.Exec(context.Background(), "ANALYZE"))(t)
			}
			d, heard := listening(t, url)
			b := newGroupBench(t, d)
			calls := b.runCalls()
			maps.Copy(calls, b.jobCalls())
			for name, call := range calls {
				t.Run(name, func(t *testing.T) { wantIndexPlansOfAll(t, conn, heard, call) })
			}
		})
	}
}

func TestGroups_DatesAreTheSameWhateverTheSessionAndHowFarOffTheyAre(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	b.exec(`INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
		INSERT INTO users (id, username, email, projects_limit, organization_id) VALUES (1, 'u', 'u', 0, 1);
		INSERT INTO namespaces (id, name, path, type, organization_id) SELECT i, i, i, 'Group', 1 FROM generate_series(1, 5) i;
		INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
		VALUES (1, 1, '2026-11-01'), (2, 1, '5874897-12-31'), (3, 1, 'infinity'), (4, 1, '-infinity'), (5, 1, '4000-01-01 BC');
		UPDATE namespace_details SET deletion_scheduled_at = '2026-11-07', state_metadata = '{"deletion_scheduled_by_user_id": 1}'`)
	// Midnight of UTC is on another day in both.
	for _, zone := range []string{"Pacific/Kiritimati", "Pacific/Pago_Pago"} {
		d := b.inZone(zone, "cache_statement")
		s := assert.Must(d.Groups.GroupStores(t.Context()))(t)
		for day, want := range map[int]string{20: "[]", 21: "[1 4 5]"} {
			at := time.Date(2026, 11, day, 0, 0, 0, 0, time.UTC)
			due, err := d.Groups.DueGroups(t.Context(), s, gitlab.Adjournment{At: at, Days: 14}, []int64{1, 2, 3, 4, 5}, generous)
			var ids []int64
			for _, g := range due {
				ids = append(ids, g.ID)
			}
			if got := fmt.Sprint(ids); err != nil || got != want {
				t.Errorf("%s, on the %dth: due are %s, %v, want %s", zone, day, got, err, want)
			}
		}
	}
	d := servicetest.Open(t, b.with("datestyle=SQL,DMY"))
	s := assert.Must(d.Groups.GroupStores(context.Background()))(t)
	odd, _, err := d.Groups.OddSchedules(context.Background(), s, 0, generous)
	var got []string
	for _, o := range odd {
		got = append(got, o.LegacyDate+" "+o.DetailsDate)
	}
	want := []string{"2026-11-01 2026-11-07", "5874897-12-31 2026-11-07", "infinity 2026-11-07", "-infinity 2026-11-07", "4000-01-01 BC 2026-11-07"}
	assert.That(t, err == nil && slices.Equal(got, want), "%q, %v, want %q", got, err, want)
	at := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	backlog := assert.Must(d.Groups.GroupBacklog(context.Background(), s, gitlab.Adjournment{At: at, Days: 7}, generous))(t)
	assert.That(t, backlog.Pending == 5 && backlog.Due == 3 &&
		backlog.OldestAt.Equal(time.Date(2026, 11, 7, 0, 0, 0, 0, time.UTC)), "%+v", backlog)
}

// wantIndexPlansOfAll is wantIndexPlans for a transaction of several statements.
func wantIndexPlansOfAll(t *testing.T, conn *pgx.Conn, heard *listener, call func(context.Context) error) {
	t.Helper()
	heard.statements = nil
	assert.NoError(t, call(context.Background()))
	settings := sent{`SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`, nil}
	for _, s := range heard.statements {
		if !ours(s.sql) {
			continue
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			nodes, text := plan(t, conn, []sent{settings, s}, mode)
			wantIndexes(t, nodes, text)
		}
	}
}

func TestDatabase_CreateGhost_LooksForAFreeNameWithoutReadingAllUsers(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "all")
	b.exec(`CREATE INDEX ON users (lower(username));
		INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'one', now(), now());
		INSERT INTO users (id, email, username, projects_limit, organization_id) SELECT i, 'u' || i || '@x', 'u' || i, 0, 1 FROM generate_series(1, 30000) i;
		INSERT INTO users (id, email, username, projects_limit, organization_id) VALUES (40000, 'a@x', 'GHOST', 0, 1), (40001, 'ghost1@noreply.invalid', 'b', 0, 1);
		SELECT setval('users_id_seq', 50000); ANALYZE users`)
	ctx := context.Background()
	d, heard := listening(t, b.url)
	catalog := assert.Must(d.Schema.Tables(ctx, gitlab.GhostTables()))(t)
	queue, missing := repo.Of(catalog.Database).Ghosts.Queue(ctx, catalog)
	lease, err := d.Leases.AcquireLease(ctx, "ghost_user_migration", "us", time.Minute)
	assert.Require(t, err == nil && missing == "", "%v %v", missing, err)
	heard.statements = nil
	id := assert.Must(d.Ghosts.CreateGhost(ctx, by(lease.Fence), queue, new(int64(1))))(t)
	var name string
	if err := b.sql.QueryRow(ctx, `SELECT username FROM users WHERE id = $1`, id).Scan(&name); err != nil || name != "ghost2" {
		t.Errorf("ghost %q, %v", name, err)
	}
	var batch []sent
	for _, s := range heard.statements {
		if strings.Contains(s.sql, "INSERT INTO users") || strings.Contains(s.sql, "enable_seqscan") {
			batch = append(batch, s)
		}
	}
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		nodes, text := plan(t, b.sql, batch, mode)
		wantIndexes(t, nodes, text)
	}
}

func TestDatabase_DeleteMigratedUser_LooksForAMomentOnly(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "all")
	b.exec(`INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'one', now(), now());
		INSERT INTO users (id, email, username, projects_limit, organization_id) VALUES (1, 'a@x', 'a', 0, 1), (2, 'b@x', 'b', 0, 1);
		INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (1, now(), now()), (2, now(), now());
		INSERT INTO chat_names (user_id, team_id, chat_id, created_at, updated_at) VALUES (1, 't', 'c', now(), now()), (2, 't', 'c', now(), now())`)
	ctx := context.Background()
	d := servicetest.Open(t, b.url)
	wanted := gitlab.GhostTables()
	wanted["chat_names"] = []string{"user_id"}
	catalog := assert.Must(d.Schema.Tables(ctx, wanted))(t)
	queue, _ := repo.Of(catalog.Database).Ghosts.Queue(ctx, catalog)
	lease := assert.Must(d.Leases.AcquireLease(ctx, "ghost_user_migration", "us", time.Minute))(t)
	for user, slow := range map[int64]bool{1: false, 2: true} {
		rows, _ := rowset.RowsOf(catalog, "chat_names", "user_id", rowset.IDs(user)...)
		if slow {
			rows.Condition = "pg_sleep(60) IS NOT NULL"
		}
		left, err := d.Ghosts.DeleteMigratedUser(ctx, fencing.Permit{
			Guard: lease.Guard(), Limits: fencing.Limits{Statement: 10 * time.Second, Lock: time.Second},
		}, queue, user, []rowset.Rows{rows})
		assert.That(t, err == nil && left != slow, "%t, %v, though the look is slow: %t", left, err, slow)
	}
	users := b.value(`(SELECT string_agg(id::text, ',') FROM users)`)
	queued := b.value(`(SELECT string_agg(user_id::text, ',') FROM ghost_user_migrations)`)
	assert.That(t, users == "1" && queued == "1", "users %s, queue %s, want 1", users, queued)
}

// deadlocked is a queue whose first insert ends its transaction, after something else has happened.
type deadlocked struct {
	jobqueue.Queue
	meanwhile func()
	inserted  []jobqueue.Job
}

func (q *deadlocked) InsertJobs(ctx context.Context, _ jobqueue.Tx, jobs []jobqueue.Job) (int, error) {
	spans.CountQueued(ctx, "delete_placeholder_user", len(jobs))
	if q.meanwhile != nil {
		q.meanwhile()
		q.meanwhile = nil
		return 0, &pgconn.PgError{Severity: "ERROR", Code: "40P01", Message: "deadlock detected"}
	}
	q.inserted = append(q.inserted, jobs...)
	return len(jobs), nil
}

func TestClaimPlaceholders_SecondTryClaimsNoMoreThanTheNextPageWasTold(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	ctx, span := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "maintenance.run")
	defer span.End()
	ctx = spans.WithSpans(ctx)
	add := func(user int) {
		b.exec(`SET session_replication_role = replica`)
		b.exec(`INSERT INTO import_placeholder_user_details
			(placeholder_user_id, organization_id, created_at, updated_at) VALUES ($1, 1, now(), now())`, user)
	}
	add(7)
	add(8)
	d := b.Database
	tables := assert.Must(d.Placeholders.PlaceholderTables(ctx))(t)
	lease := assert.Must(d.Leases.AcquireLease(ctx, "placeholder_user_cleanup", "us", time.Minute))(t)
	now := time.Now()
	rules := gitlab.PlaceholderRules{MaxAttempts: 15, RetryPeriod: time.Hour, Now: now, Tables: tables}
	next := make(chan gitlab.PlaceholderPosition, 1)
	var at gitlab.PlaceholderPosition
	queue := &deadlocked{meanwhile: func() {
		// The next page can begin while this one's jobs are inserted.
		at = <-next
		add(9)
	}}
	page := d.Placeholders.PlaceholderPage(ctx, rules, gitlab.BeforePlaceholders, 10, generous)
	claim, err := d.Placeholders.ClaimPlaceholders(ctx, by(lease.Fence), page, gitlab.PlaceholderJobs{
		Queue: queue, First: 5, Interval: time.Second, Next: next,
	})
	assert.That(t, err == nil && claim.Claimed == 2 && claim.Scheduled == 2 && at.First == 7,
		"claimed %+v, the next page begins at %+v: %v", claim, at, err)
	starts := []time.Duration{}
	for _, job := range queue.inserted {
		starts = append(starts, job.ScheduledAt.Sub(now))
	}
	assert.That(t, slices.Equal(starts, []time.Duration{5 * time.Second, 6 * time.Second}), "jobs start after %v", starts)
	b.want(`SELECT string_agg(deletion_attempts::text, ' ' ORDER BY id) FROM import_placeholder_user_details`, "1 1 0")
	assert.Equal(t, attributeOf(spans.Attributes(ctx), "maintenance.queued"), `["delete_placeholder_user: 2"]`, "queued")
}

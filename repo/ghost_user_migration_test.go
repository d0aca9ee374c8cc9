package repo_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDatabase_CreateGhost_LooksForAFreeNameWithoutReadingAllUsers(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "all")
	b.exec(`CREATE INDEX ON users (lower(username));
		INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'one', now(), now());
		INSERT INTO users (id, email, username, projects_limit, organization_id) SELECT i, 'u' || i || '@x', 'u' || i, 0, 1 FROM generate_series(1, 30000) i;
		INSERT INTO users (id, email, username, projects_limit, organization_id) VALUES (40000, 'a@x', 'GHOST', 0, 1), (40001, 'ghost1@noreply.invalid', 'b', 0, 1);
		SELECT setval('users_id_seq', 50000); ANALYZE users`)
	ctx := context.Background()
	d, heard := listening(t, b.url)
	catalog := assert.Must(d.Tables(ctx, repo.GhostTables()))(t)
	queue, missing := catalog.GhostQueue()
	lease, err := d.AcquireLease(ctx, "ghost_user_migration", "us", time.Minute)
	assert.Require(t, err == nil && missing == "", "%v %v", missing, err)
	heard.statements = nil
	id := assert.Must(d.CreateGhost(ctx, by(lease.Fence), queue, new(int64(1))))(t)
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
	d := open(t, b.url)
	wanted := repo.GhostTables()
	wanted["chat_names"] = []string{"user_id"}
	catalog := assert.Must(d.Tables(ctx, wanted))(t)
	queue, _ := catalog.GhostQueue()
	lease := assert.Must(d.AcquireLease(ctx, "ghost_user_migration", "us", time.Minute))(t)
	for user, slow := range map[int64]bool{1: false, 2: true} {
		rows, _ := catalog.Rows("chat_names", "user_id", repo.IDs(user)...)
		if slow {
			rows.Condition = "pg_sleep(60) IS NOT NULL"
		}
		left, err := d.DeleteMigratedUser(ctx, repo.Permit{
			Guard: lease.Guard(), Limits: repo.Limits{Statement: 10 * time.Second, Lock: time.Second},
		}, queue, user, []repo.Rows{rows})
		assert.That(t, err == nil && left != slow, "%t, %v, though the look is slow: %t", left, err, slow)
	}
	users := b.value(`(SELECT string_agg(id::text, ',') FROM users)`)
	queued := b.value(`(SELECT string_agg(user_id::text, ',') FROM ghost_user_migrations)`)
	assert.That(t, users == "1" && queued == "1", "users %s, queue %s, want 1", users, queued)
}

// deadlocked is a queue whose first insert ends its transaction, after something else has happened.
type deadlocked struct {
	repo.JobQueue
	meanwhile func()
	inserted  []repo.Job
}

func (q *deadlocked) InsertJobs(_ context.Context, _ repo.Tx, jobs []repo.Job) (int, error) {
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
	ctx := t.Context()
	add := func(user int) {
		b.exec(`SET session_replication_role = replica`)
		b.exec(`INSERT INTO import_placeholder_user_details
			(placeholder_user_id, organization_id, created_at, updated_at) VALUES ($1, 1, now(), now())`, user)
	}
	add(7)
	add(8)
	d := b.Database
	tables := assert.Must(d.PlaceholderTables(ctx))(t)
	lease := assert.Must(d.AcquireLease(ctx, "placeholder_user_cleanup", "us", time.Minute))(t)
	now := time.Now()
	rules := repo.PlaceholderRules{MaxAttempts: 15, RetryPeriod: time.Hour, Now: now, Tables: tables}
	next := make(chan repo.PlaceholderPosition, 1)
	var at repo.PlaceholderPosition
	queue := &deadlocked{meanwhile: func() {
		// The page behind can begin while this one's jobs are inserted.
		at = <-next
		add(9)
	}}
	page := d.PlaceholderPage(ctx, rules, repo.BeforePlaceholders, 10, generous)
	claim, err := d.ClaimPlaceholders(ctx, by(lease.Fence), page, repo.PlaceholderJobs{
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
}

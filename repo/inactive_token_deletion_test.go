package repo_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// bots makes an organization and a project bot for each token. A token is the values of revoked,
// expires_at, updated_at.
func (b *bench) bots(tokens ...string) {
	b.Helper()
	b.exec(`INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	for i, token := range tokens {
		b.exec(fmt.Sprintf(`INSERT INTO users (id, username, email, projects_limit, state, user_type, organization_id) VALUES (%d, 'b%[1]d', 'b%[1]d', 0, 'active', 6, 1)`, i+1))
		b.exec(fmt.Sprintf(`INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, revoked, expires_at, updated_at) VALUES (%d, 't', 1, now(), %s)`, i+1, token))
	}
}

// inactive are the inactive bots by some rules, as the database sees them over a connection.
func (b *bench) inactive(d *repo.Database, rules gitlab.TokenRules) []int64 {
	b.Helper()
	f := assert.Must(d.Users.UserFeatures(context.Background()))(b.T)
	r := assert.Must(d.Tokens.InactiveBots(context.Background(), f, rules, gitlab.BotPage{Limit: 1000}, generous))(b.T)
	return r.Inactive
}

// inZone is the database by sessions of a time zone, as a pooler may have them in spite of ours.
func (b *bench) inZone(zone, mode string) *repo.Database {
	b.Helper()
	pool := assert.Must(pgxpool.New(b.Context(), b.with("timezone="+zone+"&default_query_exec_mode="+mode)))(b.T)
	b.Cleanup(pool.Close)
	var is string
	if err := pool.QueryRow(b.Context(), "SHOW timezone").Scan(&is); err != nil || is != zone {
		b.Fatalf("time zone %q, %v", is, err)
	}
	return repo.OnPool("main", pool)
}

func TestInactiveBots_EdgesOfTheRules(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	// T is 00:30 on March 30 by UTC, C is 00:30 on February 16.
	rules := gitlab.NewTokenRules(time.Date(2026, 3, 30, 0, 30, 0, 0, time.UTC), 42)
	b.bots(
		`true, NULL, '2026-02-16 00:30:00'`,          // 1: revoked exactly at C.
		`true, NULL, '2026-02-16 00:29:59.999999'`,   // 2: a microsecond before.
		`true, NULL, '2026-02-16 00:30:00.000001'`,   // 3: after.
		`false, '2026-02-16', '2020-01-01'`,          // 4: expired on C's date.
		`false, '2026-02-15', '2026-03-29'`,          // 5: the day before.
		`false, '2026-03-30', '2020-01-01'`,          // 6: expires today.
		`false, '2026-03-31', '2020-01-01'`,          // 7: active.
		`true, '2026-03-31', '2020-01-01'`,           // 8: would be active, revoked long ago.
		`true, '2026-03-30', '2020-01-01'`,           // 9: revoked long ago, expires today.
		`NULL, '2026-02-15', 'infinity'`,             // 10: not revoked, so updated_at does not count.
		`NULL, 'infinity', '-infinity'`,              // 11: active.
		`true, '-infinity', '-infinity'`,             // 12: dead.
		`false, '4714-11-24 BC'::date, '2020-01-01'`, // 13: dead.
	)
	want := []int64{2, 5, 8, 10, 12, 13}
	for _, zone := range []string{"UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"} {
		// Without prepared statements the driver chooses the types of parameters.
		for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
			d := b.inZone(zone, mode)
			// The same instant, as another time zone has it.
			elsewhere := gitlab.NewTokenRules(rules.At.In(time.FixedZone("here", -11*3600)), 42)
			for _, rules := range []gitlab.TokenRules{rules, elsewhere} {
				got := b.inactive(d, rules)
				assert.That(t, slices.Equal(got, want), "%s, %s: inactive %v, want %v", zone, mode, got, want)
			}
		}
	}
}

func TestNewTokenRules_DayHasTwentyFourHours(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 4, 1, 12, 0, 0, 123456000, time.UTC)
	got := gitlab.NewTokenRules(at, 36500)
	assert.Equal(t, got.At, at, "the time of the rules")
	assert.Equal(t, at.Sub(got.CutOff), 36500*24*time.Hour, "from then back to the cut-off")
}

func TestInactiveBots_SaysWhereTheRangeEndsAndWhetherThereAreMore(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	b.bots(`false, NULL, now()`, `true, NULL, '2020-01-01'`, `true, NULL, '2020-01-01'`)
	b.exec(`INSERT INTO users (id, username, email, projects_limit, user_type, organization_id) VALUES (9, 'h', 'h', 0, 0, 1)`)
	f := assert.Must(b.Users.UserFeatures(context.Background()))(t)
	rules := gitlab.NewTokenRules(time.Now(), 42)
	for _, c := range []struct {
		after int64
		limit int
		want  string
	}{
		{0, 1, "{1 1 true [] []}"},
		{1, 1, "{1 2 true [2] [1]}"},
		{1, 2, "{2 3 false [2 3] [1 1]}"},
		{0, 3, "{3 3 false [2 3] [1 1]}"},
		{0, 9, "{3 3 false [2 3] [1 1]}"},
		{3, 9, "{0 3 false [] []}"},
		{1 << 62, 9, "{0 4611686018427387904 false [] []}"},
	} {
		r, err := b.Tokens.InactiveBots(context.Background(), f, rules, gitlab.BotPage{After: c.after, Limit: c.limit}, generous)
		got := fmt.Sprint(r)
		assert.That(t, err == nil && got == c.want, "after %d, at most %d: %s, %v, want %s", c.after, c.limit, got, err, c.want)
	}
}

// pass opens a pass under a lease of an hour.
func (b *bench) pass() (fencing.Fence, gitlab.TokenPass) {
	b.Helper()
	lease := assert.Must(b.Leases.AcquireLease(context.Background(), "inactive_token_deletion", "test", time.Hour))(b.T)
	p, err := b.Tokens.OpenTokenPass(context.Background(), by(lease.Fence), gitlab.NewTokenRules(time.Now(), 42), false)
	assert.Require(b.T, err == nil && p.ID != "" && p.Cursor == 0, "%+v, %v", p, err)
	return lease.Fence, p
}

func TestTokenPass_IsOneUntilItIsFinished(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	ctx := context.Background()
	fence, first := b.pass()
	again, err := b.Tokens.OpenTokenPass(ctx, by(fence), gitlab.NewTokenRules(time.Now(), 7), false)
	if err != nil || again.ID != first.ID || !again.At.Equal(first.At.Truncate(time.Microsecond)) || !again.CutOff.Equal(first.CutOff.Truncate(time.Microsecond)) {
		t.Errorf("%+v, %v, want %+v", again, err, first)
	}
	step := gitlab.TokenStep{BotRange: gitlab.BotRange{Examined: 3, Last: 8}}
	assert.Must(b.Tokens.AdvanceTokenPass(ctx, by(fence), first.ID, step, nil))(t)
	if _, err := b.Tokens.AdvanceTokenPass(ctx, by(fence), first.ID, step, nil); !errors.Is(err, dberr.ErrNotFound) {
		t.Errorf("advance of a finished pass: %v", err)
	}
	none, err := b.Tokens.OpenTokenPass(ctx, by(fence), first.TokenRules, true)
	assert.That(t, err == nil && none.ID == "", "resumed %+v, %v, want none", none, err)
	b.exec(`UPDATE maintenance.token_passes SET finished_at = now() - interval '31 days'`)
	second, err := b.Tokens.OpenTokenPass(ctx, by(fence), first.TokenRules, false)
	assert.That(t, err == nil && second.ID != "" && second.ID != first.ID, "%+v, %v, want another one", second, err)
	b.want(`SELECT string_agg(id::text, ' ') FROM maintenance.token_passes`, second.ID)
}

func TestTokenPass_NothingIsStoredWithoutTheLeaseOrThePass(t *testing.T) {
	b := newBench(servicetest.Parallel(t), "main")
	ctx := context.Background()
	b.bots(`true, NULL, '2020-01-01'`)
	fence, p := b.pass()
	queue := assert.Must(scheduler.NewQueue(b.Database, scheduler.QueueConfig{}))(t)
	b.exec(`UPDATE maintenance.leases SET epoch = epoch + 1`)
	step := gitlab.TokenStep{BotRange: gitlab.BotRange{Examined: 1, Last: 1, More: true}}
	jobs := step
	jobs.Jobs, jobs.Continue = []jobqueue.Job{{Args: jobqueue.DeleteUser{UserID: 1, Reason: jobqueue.TokenDeletionReason}}}, &jobqueue.Job{}
	for name, err := range map[string]error{
		"advance":           second(b.Tokens.AdvanceTokenPass(ctx, by(fence), p.ID, step, queue)),
		"advance with jobs": second(b.Tokens.AdvanceTokenPass(ctx, by(fence), p.ID, jobs, queue)),
		"drop":              second(b.Tokens.DropTokenPass(ctx, by(fence))),
		"open":              second(b.Tokens.OpenTokenPass(ctx, by(fence), p.TokenRules, false)),
	} {
		assert.That(t, errors.Is(err, dberr.ErrLeaseLost), "%s: %v, want that the lease is lost", name, err)
	}
	b.want(`SELECT concat_ws(' ', count(*), max(cursor), max(examined)) FROM maintenance.token_passes`, "1 0 0")

	b.exec(`UPDATE maintenance.leases SET expires_at = now()`)
	fence = assert.Must(b.Leases.AcquireLease(ctx, "inactive_token_deletion", "test", time.Hour))(t).Fence
	dropped := assert.Must(b.Tokens.DropTokenPass(ctx, by(fence)))(t)
	assert.Require(t, dropped, "dropped %t", dropped)
	jobs.ContinueAfter = time.Minute
	if _, err := b.Tokens.AdvanceTokenPass(ctx, by(fence), p.ID, jobs, queue); !errors.Is(err, dberr.ErrNotFound) {
		t.Errorf("%v, want that it is not found", err)
	}
	b.want(`SELECT count(*) FROM maintenance.river_job`, "0")
}

// manyBots are 60,000 users, every third a bot, with three tokens each. user 2 has many of
// everything.
const manyBots = `
INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
INSERT INTO users (id, username, email, projects_limit, organization_id, user_type)
SELECT i, 'u' || i, 'u' || i, 0, 1, CASE WHEN i % 3 = 0 THEN 6 WHEN i % 10000 = 1 THEN 11 ELSE 0 END FROM generate_series(1, 60000) i;
INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at, revoked, expires_at)
SELECT i, 't', 1, now(), '2020-01-01', n < 3, CASE WHEN n = 3 AND i % 100 = 0 THEN date '2020-01-01' END FROM generate_series(1, 3) n, generate_series(1, 60000) i;
INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) SELECT i, now(), now() FROM generate_series(1, 60000, 2) i;
INSERT INTO namespaces (id, name, path, type, organization_id, owner_id)
SELECT i, 'n' || i, 'n' || i, CASE WHEN i % 2 = 0 THEN 'Group' ELSE 'User' END, 1, i FROM generate_series(1, 20000) i;
INSERT INTO namespaces (id, name, path, type, organization_id, parent_id) SELECT 20000 + i, 'p' || i, 'p' || i, 'Project', 1, i FROM generate_series(1, 20000) i;
INSERT INTO projects (id, namespace_id, project_namespace_id, organization_id) SELECT i, i, 20000 + i, 1 FROM generate_series(1, 20000) i;
INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
SELECT CASE WHEN i % 4 = 0 THEN 2 ELSE i END, i, 'Namespace', 'GroupMember', 50, i FROM generate_series(2, 20000, 2) i;
INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
SELECT 3 * i, i, 'Namespace', 'GroupMember', 50, i FROM generate_series(2, 20000, 2) i;
INSERT INTO project_authorizations (user_id, project_id, access_level) SELECT CASE WHEN i % 4 = 0 THEN 2 ELSE i END, i, 30 FROM generate_series(1, 20000) i;
INSERT INTO organization_users (organization_id, user_id, access_level, created_at, updated_at) SELECT 1, i, 10, now(), now() FROM generate_series(1, 2000) i;
INSERT INTO maintenance.token_passes (started_at, cut_off, today, cursor) VALUES (now(), now(), current_date, 30000)`

func TestInactiveTokens_PlansKeepToIndexes(t *testing.T) {
	for _, c := range plannings() {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			url := databases.Clone(t, c.loaded("repo_bots", manyBots))
			conn := servicetest.Connect(t, url)
			if c.analyzed {
				assert.Must(conn.Exec(context.Background(), "ANALYZE"))(t)
			}
			d, heard := listening(t, url)
			f := assert.Must(d.Users.UserFeatures(context.Background()))(t)
			for name, call := range inactiveTokenCalls(d, f) {
				t.Run(name, func(t *testing.T) { wantIndexPlans(t, conn, heard, call) })
			}
			t.Run("backlog", func(t *testing.T) {
				heard.statements = nil
				b, _, err := d.Tokens.TokenBacklog(context.Background(), generous)
				assert.Require(t, err == nil && b.Pending == 10_000, "%+v, %v", b, err)
				nodes, text := plan(t, conn, heard.statements, "auto")
				wantIndexes(t, slices.DeleteFunc(nodes, func(n node) bool { return n.Relation != "users" }), text)
			})
			t.Run("delete user", func(t *testing.T) { wantIndexedDeletion(t, conn, d, heard, f) })
		})
	}
}

func inactiveTokenCalls(d *repo.Database, f gitlab.UserFeatures) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"range": func(ctx context.Context) error {
			_, err := d.Tokens.InactiveBots(ctx, f, gitlab.NewTokenRules(time.Now(), 42), gitlab.BotPage{After: 30_000, Limit: 1000}, generous)
			return err
		},
		"admin bots": func(ctx context.Context) error { return second(d.Tokens.AdminBots(ctx, f, []int64{1, 2}, generous)) },
		"new jobs": func(ctx context.Context) error {
			return second(d.Tokens.NewDeletions(ctx, []int64{3, 6, 9}, jobqueue.TokenDeletionReason, generous))
		},
	}
}

// deafQueue takes no jobs and ends none.
type deafQueue struct{ jobqueue.Queue }

// CompleteJob leaves the job as it is.
func (deafQueue) CompleteJob(context.Context, jobqueue.Tx, int64) error { return nil }

// wantIndexedDeletion checks how each statement of the deletion of a user is carried out for user
// 2.
func wantIndexedDeletion(t *testing.T, conn *pgx.Conn, d *repo.Database, heard *listener, f gitlab.UserFeatures) {
	t.Helper()
	const bot = 59_994
	// The owner of a group of which others are judged, too.
	if _, err := conn.Exec(context.Background(), `
		INSERT INTO namespaces (id, name, path, type, organization_id) VALUES (9000001, 'owned', 'owned', 'Group', 1);
		INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id)
		SELECT u, 9000001, 'Namespace', 'GroupMember', 50, 9000001 FROM (VALUES (59994), (59988)) v (u)`); err != nil {
		t.Fatal(err)
	}
	heard.statements = nil
	attempt := gitlab.UserDeletionAttempt{
		Args: jobqueue.DeleteUser{UserID: bot, SkipAuthorization: true, Reason: "because"}, Features: f, Queue: deafQueue{},
	}
	var of fencing.AttemptOf
	err := conn.QueryRow(context.Background(), `
		INSERT INTO maintenance.river_job (kind, args, state, attempt, attempted_at, max_attempts) VALUES ('delete_user', '{}', 'running', 1, now(), 25)
		RETURNING id, attempted_at`).Scan(&of.ID, &of.AttemptedAt)
	assert.NoError(t, err)
	attempt.JobID = of.ID
	u, err := d.Users.DeleteUser(context.Background(), fencing.Permit{Guard: of.Guard(), Limits: generous}, attempt)
	assert.Require(t, err == nil && u.Queued, "%+v, %v", u, err)
	settings := slices.IndexFunc(heard.statements, func(s sent) bool { return strings.Contains(s.sql, "enable_seqscan") })
	seen := 0
	for i, s := range heard.statements {
		place := slices.IndexFunc(s.args, func(arg any) bool { return arg == int64(bot) })
		if place < 0 {
			continue
		}
		seen++
		s.args = slices.Clone(s.args)
		s.args[place] = int64(2)
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			nodes, text := plan(t, conn, []sent{heard.statements[settings], s}, mode)
			wantIndexes(t, nodes, text)
			assert.Require(t, !t.Failed(), "statement %d: %s", i, s.sql)
		}
	}
	assert.That(t, seen >= 10, "%d statements about the user", seen)
}

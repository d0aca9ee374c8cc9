package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// slowIssues gives a user so many issues, every thousandth of which takes most of a second to change.
func (g *ghostEstate) slowIssues(user, n int) {
	g.t.Helper()
	g.fill("main", "issues", "author_id, namespace_id", fmt.Sprintf("%d, 101", user), n)
	g.exec("main", `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.8); RETURN NEW; END $$;
		CREATE TRIGGER dawdle BEFORE UPDATE ON issues FOR EACH ROW WHEN (OLD.id % 1000 = 0) EXECUTE FUNCTION dawdle()`)
}

func TestGhostUserMigration_ADeadlineThatHasPassedTouchesNoRow(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	s := g.service(lasting(time.Nanosecond))
	before := g.value("main", `SELECT consume_after FROM ghost_user_migrations`)
	r := g.run(s, "")
	wantCounts(t, r, "")
	if !r.OverLimit || !strings.Contains(r.Reason, "max_runtime") {
		t.Errorf("over limit %t, reason %q", r.OverLimit, r.Reason)
	}
	g.want("main", `SELECT consume_after FROM ghost_user_migrations`, before)
	g.exec("main", `DELETE FROM ghost_user_migrations`)
	if r := g.run(s, ""); r.OverLimit {
		t.Error("over limit with nothing to do")
	}
}

func TestGhostUserMigration_TheDeadlineInTheMiddleOfAUserDefersIt(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.slowIssues(10, 10_000)
	g.exec("main", `INSERT INTO releases (tag, author_id, project_id, released_at, created_at, updated_at) VALUES ('v', 10, 1, now(), now(), now())`)
	r := g.run(g.service(lasting(2500*time.Millisecond)), "")
	moved := r.Counts["moved_rows"]
	wantCounts(t, service.Run{Counts: r.Counts}, "deferred_users=1 moved_rows="+strings.TrimSpace(g.value("main", `SELECT count(*) FROM issues WHERE author_id = 5`)))
	if moved == 0 || moved == 10_000 || !r.OverLimit || !strings.Contains(r.Reason, "max_runtime") {
		t.Errorf("moved %d, over limit %t, reason %q", moved, r.OverLimit, r.Reason)
	}
	g.wantLater(10, 30*time.Second)
	g.exec("main", `DROP TRIGGER dawdle ON issues; UPDATE ghost_user_migrations SET consume_after = now()`)
	r = g.run(g.service(), "")
	if r.Counts["moved_rows"] != 10_001-moved || r.Counts["migrated_users"] != 1 {
		t.Errorf("the second run counts %v after %d", r.Counts, moved)
	}
	g.want("main", `SELECT count(*) FROM issues WHERE author_id = 5`, "10000")
}

func TestGhostUserMigration_TheDeadlineIsKeptInTheLastStepsToo(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.8); RETURN OLD; END $$;
		CREATE TRIGGER dawdle BEFORE DELETE ON routes FOR EACH ROW EXECUTE FUNCTION dawdle();
		CREATE TRIGGER dawdle BEFORE DELETE ON namespaces FOR EACH ROW EXECUTE FUNCTION dawdle()`)
	r := g.run(g.service(lasting(1500*time.Millisecond)), "")
	if r.Counts["deferred_users"] != 1 || r.Counts["migrated_users"] != 0 || !r.OverLimit {
		t.Errorf("counts %v, over limit %t", r.Counts, r.OverLimit)
	}
	g.wantLater(10, 30*time.Second)
}

func TestGhostUserMigration_AHumanWithTooMuchWorkDoesNotKeepABotWaiting(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.user(11, 6)
	g.doomed(10)
	g.queue(11)
	g.slowIssues(10, 30_000)
	s := g.service(lasting(12 * time.Second))
	r := g.run(s, "")
	first := r.Counts["moved_rows"]
	if r.Counts["migrated_users"] != 1 || r.Counts["deferred_users"] != 1 || first == 0 || first == 30_000 || !r.OverLimit {
		t.Errorf("counts %v, over limit %t", r.Counts, r.OverLimit)
	}
	g.wantGone(11)
	g.wantLater(10, 30*time.Second)
	g.wantLog(1, `"msg":"user deferred"`, `"user_id":10`)
	g.exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	if second := g.run(s, "").Counts["moved_rows"]; second == 0 {
		t.Error("the next run does not go on")
	}
}

func TestGhostUserMigration_LimitUsersAreTakenAndTheRestIsForTheNextRun(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.exec("main", `INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) SELECT i, 'u' || i, 'u' || i, 0, 0, 1 FROM generate_series(2001, 3001) i;
		INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) SELECT i, now(), now() FROM generate_series(2001, 3001) i`)
	s := g.service(lasting(10 * time.Minute))
	r := g.run(s, "migrated_users=1000 deleted_rows=1000")
	if !r.OverLimit || !strings.Contains(r.Reason, "limit reached: limit") {
		t.Errorf("over limit %t, reason %q", r.OverLimit, r.Reason)
	}
	g.wantLog(0, "many users pending")
	if r := g.run(s, "migrated_users=1 deleted_rows=1"); r.OverLimit {
		t.Error("the last row is over the limit")
	}
}

func TestGhostUserMigration_ManyPendingUsersAreWarnedOfOnce(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.exec("main", `INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) SELECT i, 'u' || i, 'u' || i, 0, 0, 1 FROM generate_series(2001, 3001) i;
		INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) SELECT i, now() + interval '1 hour', now(), now() FROM generate_series(2001, 3000) i`)
	s := g.service()
	g.run(s, "")
	g.wantLog(0, "many users pending")
	g.exec("main", `INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) VALUES (3001, now() + interval '1 hour', now(), now())`)
	g.run(s, "")
	g.wantLog(1, `"level":"WARN"`, "many users pending", `"pending":1001`)
	g.wantLog(0, "many users failed")
}

func TestGhostUserMigration_CancelledItStopsAndLeavesTheQueueAlone(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10, 11)
	before := g.value("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`)
	g.exec("main", `UPDATE issues SET author_id = 10`)
	g.exec("main", `UPDATE merge_requests SET author_id = 10`)
	g.gate("main", "issues")
	g.shut("main", caretakerApp)
	s := g.service()
	r := g.begin(s)
	g.atGate("main", caretakerApp)
	if _, err := s.CancelRun(context.Background(), r.ID, ""); err != nil {
		t.Fatal(err)
	}
	g.lift("main", caretakerApp)
	r = ended(t, s, r.ID)
	wantState(t, r, repo.RunCancelled)
	wantCounts(t, r, "moved_rows=1")
	g.want("main", `SELECT string_agg(consume_after::text, ' ' ORDER BY id) FROM ghost_user_migrations`, before)
	g.want("main", `SELECT author_id FROM merge_requests`, "10")
	g.want("main", `SELECT author_id FROM issues`, "5")
}

func TestGhostUserMigration_KilledInTheMiddleItGoesOnWithWhatIsLeft(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.fill("main", "issues", "author_id, namespace_id", "10, 101", 5000)
	g.gate("main", "issues", "OLD.id = 3000")
	g.shut("main", "doomed")
	p := g.start("doomed", "", func(o *processOrder) { o.Definitions, o.Database, o.Worker = "", "", ghostWorker })
	g.atGate("main", "doomed")
	p.kill()
	g.eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	left := g.value("main", `SELECT count(*) FROM issues WHERE author_id = 10`)
	if left == "5000" || left == "0" {
		t.Errorf("%s issues are left, want some", left)
	}
	g.exec("main", `UPDATE maintenance.leases SET expires_at = now()`)
	g.run(g.service(), "migrated_users=1 deleted_rows=4 moved_rows="+left)
	g.want("main", `SELECT count(*) FROM issues WHERE author_id = 5`, "5000")
	g.run(g.service(), "")
}

func TestGhostUserMigration_CancelledWhileAUserMeetsAnErrorItIsCancelledNotFailed(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	before := g.value("main", `SELECT consume_after FROM ghost_user_migrations`)
	g.exec("main", `UPDATE issues SET author_id = 10`)
	g.gate("main", "issues")
	g.exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
		CREATE TRIGGER refuse AFTER UPDATE ON issues FOR EACH ROW EXECUTE FUNCTION refuse()`)
	g.shut("main", caretakerApp)
	s := g.service()
	r := g.begin(s)
	g.atGate("main", caretakerApp)
	if _, err := s.CancelRun(context.Background(), r.ID, ""); err != nil {
		t.Fatal(err)
	}
	g.lift("main", caretakerApp)
	r = ended(t, s, r.ID)
	wantState(t, r, repo.RunCancelled)
	wantCounts(t, r, "")
	g.want("main", `SELECT consume_after FROM ghost_user_migrations`, before)
	g.wantLog(0, `"level":"ERROR"`)
}

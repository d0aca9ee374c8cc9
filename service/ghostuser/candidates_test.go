package ghostuser_test

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_DryRunNamesTheUsersAndWhatBecomesOfThem(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.User(10, 0)
	g.User(11, 2)
	g.User(12, 0)
	g.Queue(10, 11, 12)
	g.Exec("main", `CREATE TABLE clinging (id bigserial PRIMARY KEY, user_id bigint REFERENCES users);
		INSERT INTO clinging (user_id) VALUES (12)`)
	s := g.Service()
	r := g.Runs(s, true)
	servicetest.WantCandidates(t, r,
		"user 10 u10 delete",
		"user 12 u12 postpone STILL_REFERENCED: clinging.user_id still refers to it",
		"user 11 u11 postpone INTERNAL_USER: users of type 2 are not deleted",
	)
	if r.CandidatesDigest == "" {
		t.Error("all were looked at, and there is no digest")
	}
	// In no time not all can be looked at.
	if r := g.Runs(g.Service(servicetest.Lasting(time.Nanosecond)), true); r.CandidatesDigest != "" || !r.OverLimit {
		t.Errorf("got %+v", r)
	}
}

func TestGhostUserMigration_ARunHeldToAPlanDeletesNobodyElse(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.User(10, 0)
	g.User(11, 0)
	g.Queue(10)
	s := g.Service()
	dry := g.Runs(s, true)
	// While the run looks at 10 another one is queued, due long ago.
	g.Held(`LOCK TABLE issues IN ACCESS EXCLUSIVE MODE`, 1,
		`INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) VALUES (11, now() - interval '2 hours', now(), now())`)
	r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.GhostUsers, ExpectedDigest: dry.CandidatesDigest})
	if err != nil {
		t.Fatal(err)
	}
	servicetest.WantCounts(t, r, "migrated_users=1 deleted_rows=4")
	g.Want("main", `SELECT string_agg(id::text, ' ') FROM users WHERE id IN (10, 11)`, "11")
	g.Want("main", `SELECT string_agg(user_id::text, ' ') FROM ghost_user_migrations`, "11")
	servicetest.WantCounts(t, g.Runs(s, false), "migrated_users=1 deleted_rows=4")
}

package ghostuser_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_ADryRunCountsAUserWhoWouldFail(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ sql, says, counts string }{
		"a namespace below the personal one": {
			`INSERT INTO namespaces (id, name, path, type, organization_id, parent_id) VALUES (11, 'orphan', 'orphan', 'Project', 1, 10)`,
			"STILL_REFERENCED: namespaces.parent_id still refers to it", "failed_users=1",
		},
		"a reference that must not be NULL": {
			`CREATE TABLE badges (id bigserial PRIMARY KEY, holder_id bigint NOT NULL REFERENCES users ON DELETE SET NULL); INSERT INTO badges (holder_id) VALUES (10)`,
			"badges.holder_id is NOT NULL: it cannot be cleared", "failed_users=1",
		},
		"a dependant's reference that must not be NULL": {
			`CREATE TABLE badges (id bigserial PRIMARY KEY, email_id bigint NOT NULL REFERENCES emails ON DELETE SET NULL); INSERT INTO emails (id, user_id, email) VALUES (1, 10, 'x');
			INSERT INTO badges (email_id) VALUES (1)`,
			"badges.email_id is NOT NULL: it cannot be cleared", "failed_users=1",
		},
		"no ghost, and none can be made": {
			`DELETE FROM users WHERE id = 5; UPDATE issues SET author_id = 10; ALTER TABLE users ADD shoe_size integer NOT NULL DEFAULT 42; ALTER TABLE users ALTER shoe_size DROP DEFAULT`,
			"no ghost user could be created: users.shoe_size is NOT NULL", "failed_users=1",
		},
		"no ghost, and the state of users is a number": {
			`DELETE FROM users WHERE id = 5; UPDATE issues SET author_id = 10; ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE integer USING 0`,
			"no ghost user could be created: users.state has the type integer, for which caretaker has no value", "failed_users=1",
		},
		"no ghost, and the states of users do not include its own": {
			`DELETE FROM users WHERE id = 5; UPDATE issues SET author_id = 10; CREATE TYPE sleep AS ENUM ('asleep', 'blocked');
			ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE sleep USING 'blocked'`,
			"no ghost user could be created: users.state has the type sleep, for which caretaker has no value", "failed_users=1",
		},
		"another row of the same table": {
			`CREATE TABLE links (id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, before_id bigint REFERENCES links); INSERT INTO links (id, user_id, before_id) VALUES (1, 10, NULL), (2, 7, 1)`,
			"STILL_REFERENCED: links.before_id still refers to it", "failed_users=1",
		},
		"a row that waits for what refers to it": {
			`CREATE TABLE heads (id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, tail_id bigint);
			CREATE TABLE tails (id bigserial PRIMARY KEY, head_id bigint REFERENCES heads ON DELETE CASCADE);
			ALTER TABLE heads ADD FOREIGN KEY (tail_id) REFERENCES tails; INSERT INTO heads (id, user_id) VALUES (1, 10); INSERT INTO tails VALUES (1, 1); UPDATE heads SET tail_id = 1`,
			"STILL_REFERENCED: heads.tail_id still refers to it", "failed_users=1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGhosts(t)
			g.Doomed(10)
			g.Exec("main", test.sql)
			s := g.Service()
			dry := g.Runs(s, true)
			servicetest.WantState(t, dry, repo.RunSucceeded)
			servicetest.WantCounts(t, dry, test.counts)
			g.WantLog(1, `"level":"ERROR"`, test.says)
			g.Log.Reset()
			done := g.Run(s, test.counts)
			if !maps.Equal(dry.Counts, done.Counts) {
				t.Errorf("dry run %v, run %v", dry.Counts, done.Counts)
			}
			g.WantLog(1, `"level":"ERROR"`, test.says)
			g.WantLater(10, 30*time.Minute)
			// Nothing of the personal namespace is gone.
			g.Want("main", `SELECT count(*) FROM routes WHERE source_id = 10`, "1")
		})
	}
}

func TestGhostUserMigration_RowsThatReferToEachOtherGoTogether(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Exec("main", `CREATE TABLE links (id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, before_id bigint REFERENCES links);
		INSERT INTO links (id, user_id, before_id) VALUES (1, 10, 2), (2, 10, 1), (3, 10, 3)`)
	s := g.Service()
	servicetest.WantCounts(t, g.Runs(s, true), "migrated_users=1 deleted_rows=7")
	g.Run(s, "migrated_users=1 deleted_rows=7")
	g.WantGone(10)
}

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

package ghostuser_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_ADryRunCountsAUserWhoWouldFail(t *testing.T) {
	t.Parallel()
	type failing struct{ sql, says string }
	for name, cases := range map[string][]failing{
		"references": {
			{`INSERT INTO namespaces (id, name, path, type, organization_id, parent_id) VALUES (1000, 'orphan', 'orphan', 'Project', 1, {user})`,
				"STILL_REFERENCED: namespaces.parent_id still refers to it"},
			{`CREATE TABLE badges (id bigserial PRIMARY KEY, holder_id bigint NOT NULL REFERENCES users ON DELETE SET NULL); INSERT INTO badges (holder_id) VALUES ({user})`,
				"badges.holder_id is NOT NULL: it cannot be cleared"},
			{`CREATE TABLE letters (id bigserial PRIMARY KEY, email_id bigint NOT NULL REFERENCES emails ON DELETE SET NULL);
				INSERT INTO emails (id, user_id, email) VALUES (1, {user}, 'x'); INSERT INTO letters (email_id) VALUES (1)`,
				"letters.email_id is NOT NULL: it cannot be cleared"},
			// Another row of the same table.
			{`CREATE TABLE links (id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, before_id bigint REFERENCES links);
				INSERT INTO links (id, user_id, before_id) VALUES (1, {user}, NULL), (2, 7, 1)`, "STILL_REFERENCED: links.before_id still refers to it"},
			// A row that waits for what refers to it.
			{`CREATE TABLE heads (id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, tail_id bigint);
				CREATE TABLE tails (id bigserial PRIMARY KEY, head_id bigint REFERENCES heads ON DELETE CASCADE);
				ALTER TABLE heads ADD FOREIGN KEY (tail_id) REFERENCES tails; INSERT INTO heads (id, user_id) VALUES (1, {user}); INSERT INTO tails VALUES (1, 1); UPDATE heads SET tail_id = 1`,
				"STILL_REFERENCED: heads.tail_id still refers to it"},
		},
		"no ghost, and a column that nobody knows": {{`ALTER TABLE users ADD shoe_size integer NOT NULL DEFAULT 42; ALTER TABLE users ALTER shoe_size DROP DEFAULT`,
			"no ghost user could be created: users.shoe_size is NOT NULL"}},
		"no ghost, and the state is a number": {{`ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE integer USING 0`,
			"no ghost user could be created: users.state has the type integer, for which caretaker has no value"}},
		"no ghost, and the states do not include its own": {{`CREATE TYPE sleep AS ENUM ('asleep', 'blocked');
			ALTER TABLE users ALTER state DROP DEFAULT, ALTER state TYPE sleep USING 'blocked'`,
			"no ghost user could be created: users.state has the type sleep, for which caretaker has no value"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := servicetest.NewGhosts(parallel(t))
			for i, c := range cases {
				g.Doomed(10 + i)
				g.Exec("main", strings.ReplaceAll(c.sql, "{user}", fmt.Sprint(10+i)))
			}
			if len(cases) == 1 {
				g.Exec("main", `DELETE FROM users WHERE id = 5; UPDATE issues SET author_id = 10`)
			}
			s, counts := g.Service(), fmt.Sprintf("failed_users=%d", len(cases))
			dry := g.Runs(s, true)
			servicetest.WantState(t, dry, repo.RunSucceeded)
			servicetest.WantCounts(t, dry, counts)
			g.Run(s, counts)
			for i, c := range cases {
				g.WantLog(2, `"level":"ERROR"`, c.says, fmt.Sprintf(`"user_id":%d,`, 10+i))
				g.WantLater(10+i, 30*time.Minute)
				// Nothing of the personal namespace is gone.
				g.Want("main", fmt.Sprintf(`SELECT count(*) FROM routes WHERE source_id = %d`, 10+i), "1")
			}
		})
	}
}

func TestGhostUserMigration_RowsThatReferToEachOtherGoTogether(t *testing.T) {
	g := newDoomed(parallel(t), 10)
	g.Exec("main", `CREATE TABLE links (id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, before_id bigint REFERENCES links);
		INSERT INTO links (id, user_id, before_id) VALUES (1, 10, 2), (2, 10, 1), (3, 10, 3)`)
	s := g.Service()
	servicetest.WantCounts(t, g.Runs(s, true), "migrated_users=1 deleted_rows=7")
	g.Run(s, "migrated_users=1 deleted_rows=7")
	g.WantGone(10)
}

func TestGhostUserMigration_DryRunNamesTheUsersAndWhatBecomesOfThem(t *testing.T) {
	g := servicetest.NewGhosts(parallel(t))
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
	g := servicetest.NewGhosts(parallel(t))
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

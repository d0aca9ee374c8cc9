package ghostuser_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_AGhostThatATriggerSwallowsHoldsUpNoOtherUser(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
	g.Exec("main", `CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER swallow BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION swallow(); UPDATE users SET organization_id = 2 WHERE id = 10`)
	g.Run(g.Service(), "failed_users=1 migrated_users=1 deleted_rows=4")
	g.WantLater(10, 30*time.Minute)
	g.WantGone(11)
	g.WantLog(1, `"level":"ERROR"`, `"user_id":10`, "a trigger or rule kept rows of users from being added")
}

func TestGhostUserMigration_ARowThatNamesNobodyIsAnOrphan(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `ALTER TABLE ghost_user_migrations ALTER user_id DROP NOT NULL, ALTER hard_delete DROP NOT NULL;
		UPDATE ghost_user_migrations SET hard_delete = NULL; INSERT INTO ghost_user_migrations (user_id, consume_after, created_at, updated_at) VALUES (NULL, '2020-01-01', now(), now())`)
	s := g.Service()
	r := g.Runs(s, true)
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "migrated_users=1 deleted_rows=4")
	g.Run(s, "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
	g.Want("main", `SELECT count(*) FROM ghost_user_migrations`, "0")
}

func TestGhostUserMigration_AGhostThatSomebodyElseHasMadeMeanwhileIsUsed(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
	g.Exec("main", `UPDATE users SET organization_id = 2 WHERE id IN (10, 11); UPDATE issues SET author_id = 10`)
	commit := g.HoldThenCommit(`INSERT INTO users (id, email, username, projects_limit, user_type, organization_id) VALUES (900, 'g', 'ghost1', 0, 5, 2)`)
	s := g.Service()
	r := g.Begin(s)
	g.Eventually("main", waitsSQL, "true")
	commit()
	r = g.Settled(s, servicetest.Ended(t, s, r.ID))
	servicetest.WantCounts(t, r, "migrated_users=2 moved_rows=1 deleted_rows=8")
	g.Want("main", `SELECT author_id FROM issues`, "900")
	g.Want("main", `SELECT count(*) FROM users WHERE user_type = 5 AND organization_id = 2`, "1")
}

func TestGhostUserMigration_AGhostIsMadeWhateverIndexesAndNamesUsersHave(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ sql, ghost string }{
		"an address in capitals": {`CREATE UNIQUE INDEX ON users (lower(email)); UPDATE users SET email = 'GHOST1@noreply.invalid' WHERE id = 7`, `"ghost2" "ghost2@noreply.invalid"`},
		"no names":               {`ALTER TABLE users DROP username`, `null "ghost@noreply.invalid"`},
		"no addresses":           {`ALTER TABLE users DROP email`, `"ghost1" null`},
	} {
		t.Run(name, func(t *testing.T) {
			g := newDoomed(servicetest.Parallel(t), 10)
			g.Exec("main", test.sql+`; UPDATE users SET organization_id = 2 WHERE id = 10`)
			g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
			g.Want("main", `SELECT concat_ws(' ', coalesce(to_jsonb(u) -> 'username', 'null'), coalesce(to_jsonb(u) -> 'email', 'null')) FROM users u WHERE user_type = 5 AND organization_id = 2`, test.ghost)
		})
	}
}

func TestGhostUserMigration_RowsMoveToThePartitionOfTheGhost(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	const of = "FOR VALUES WITH (MODULUS 4, REMAINDER %[1]d)"
	// By the column, by an expression, and by another column with partitions of their own.
	for n, test := range []struct{ by, of string }{
		{"HASH (user_id)", of}, {"HASH ((user_id + 1))", of}, {"HASH (awardable_id)", of + " PARTITION BY HASH (user_id)"},
	} {
		g.Doomed(10 + n)
		g.Exec("main", `DROP TABLE award_emoji; CREATE TABLE award_emoji (id bigserial, name varchar, user_id bigint, awardable_id bigint, awardable_type varchar) PARTITION BY `+test.by)
		for i := range 4 {
			g.Exec("main", fmt.Sprintf(`CREATE TABLE emoji_%[1]d PARTITION OF award_emoji `+test.of, i))
			for j := range 3 * strings.Count(test.of, "PARTITION BY") {
				g.Exec("main", fmt.Sprintf(`CREATE TABLE emoji_%[1]d_%[2]d PARTITION OF emoji_%[1]d FOR VALUES WITH (MODULUS 3, REMAINDER %[2]d)`, i, j))
			}
		}
		g.Fill("main", "award_emoji", "user_id, awardable_id, awardable_type",
			fmt.Sprintf("CASE WHEN i %% 2 = 0 THEN %d ELSE 7 END, i, 'Issue'", 10+n), 5000)
		g.Run(g.Service(), "migrated_users=1 moved_rows=2500 deleted_rows=4")
		g.Want("main", `SELECT string_agg(user_id || '=' || n, ' ') FROM (SELECT user_id, count(*) AS n FROM award_emoji GROUP BY user_id ORDER BY user_id) s`, "5=2500 7=2500")
	}
}

func TestGhostUserMigration_ABacklogThatCannotBeReadFailsNoRunWhoseWorkIsDone(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = 'infinity' WHERE user_id = 11; ALTER TABLE ghost_user_migrations ALTER created_at TYPE text`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
	g.WantLog(1, `"level":"WARN"`, "backlog not read")
}

// A key of users to themselves is not in the reference schema; other schemas may have one.

func TestGhostUserMigration_TheUsersOwnReferencesGoWithTheUser(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	s := g.Service()
	for i, onDelete := range []string{"CASCADE", "NO ACTION", "RESTRICT", "SET NULL", "SET DEFAULT"} {
		first, second := 10+2*i, 11+2*i
		g.Doomed(first, second)
		g.Exec("main", fmt.Sprintf(`ALTER TABLE users DROP CONSTRAINT IF EXISTS own,
			ADD CONSTRAINT own FOREIGN KEY (created_by_id) REFERENCES users (id) ON DELETE %[1]s;
			UPDATE users SET created_by_id = %[2]d WHERE id = %[2]d;
			ALTER TABLE ghost_user_migrations DROP CONSTRAINT IF EXISTS own,
			ADD CONSTRAINT own FOREIGN KEY (initiator_user_id) REFERENCES users (id) ON DELETE %[1]s;
			UPDATE ghost_user_migrations SET initiator_user_id = %[3]d WHERE user_id = %[3]d`, onDelete, first, second))
		// The personal namespaces' routes and details.
		servicetest.WantCounts(t, g.Runs(s, true), "migrated_users=2 deleted_rows=8")
		g.Run(s, "migrated_users=2 deleted_rows=8")
		g.WantGone(first, second)
	}
}

func TestGhostUserMigration_AUserWhomOnlyTheLastStepCannotDeleteStaysInTheQueue(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `ALTER TABLE users ADD FOREIGN KEY (created_by_id) REFERENCES users (id) ON DELETE CASCADE; UPDATE users SET created_by_id = 10 WHERE id = 10;
		ALTER TABLE ghost_user_migrations ADD FOREIGN KEY (initiator_user_id) REFERENCES users (id) ON DELETE CASCADE; UPDATE ghost_user_migrations SET initiator_user_id = 10;
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON users FOR EACH ROW EXECUTE FUNCTION refuse()`)
	s := g.Service()
	g.Run(s, "failed_users=1 deleted_rows=3")
	g.WantLater(10, 30*time.Minute)
	g.Exec("main", `DROP TRIGGER refuse ON users; UPDATE ghost_user_migrations SET consume_after = now()`)
	g.Run(s, "migrated_users=1 deleted_rows=1")
	g.WantGone(10)
}

func TestGhostUserMigration_OtherUsersWhoReferToTheUserAreAsTheirKeySays(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	s := g.Service()
	for i, test := range []struct{ onDelete, counts, others string }{
		{"CASCADE", "migrated_users=1 deleted_rows=5", "0"},
		{"SET NULL", "migrated_users=1 deleted_rows=4 nullified_rows=1", "1"},
		{"NO ACTION", "failed_users=1", "1"},
	} {
		user, other := 10+i, 20+i
		g.Doomed(user)
		g.Exec("main", fmt.Sprintf(`ALTER TABLE users DROP CONSTRAINT IF EXISTS own,
			ADD CONSTRAINT own FOREIGN KEY (created_by_id) REFERENCES users (id) ON DELETE %s;
			INSERT INTO users (id, email, username, projects_limit, organization_id) VALUES (%d, 'e%[2]d@x', 'e%[2]d', 0, 1);
			UPDATE users SET created_by_id = %[3]d WHERE id IN (%[2]d, %[3]d)`, test.onDelete, other, user))
		dry := g.Runs(s, true)
		servicetest.WantState(t, dry, repo.RunSucceeded)
		servicetest.WantCounts(t, dry, test.counts)
		g.Run(s, test.counts)
		g.Want("main", fmt.Sprintf(`SELECT count(*) FROM users WHERE id = %d`, other), test.others)
	}
}

func TestGhostUserMigration_NoKeyOfTheQueueKeepsTheUser(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	s := g.Service()
	for i, onDelete := range []string{"CASCADE", "NO ACTION", "RESTRICT", "SET NULL", "SET DEFAULT", "NO ACTION DEFERRABLE INITIALLY DEFERRED", ""} {
		g.Doomed(10 + i)
		g.Exec("main", `ALTER TABLE ghost_user_migrations DROP CONSTRAINT ghost_user_migrations_user_id_fkey`)
		if onDelete != "" {
			g.Exec("main", `ALTER TABLE ghost_user_migrations ADD FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE `+onDelete)
		}
		g.Run(s, "migrated_users=1 deleted_rows=4")
		g.WantGone(10 + i)
	}
}

func TestGhostUserMigration_DoesNotStandInTheWayOfThoseWhoLockTheUserAndThenTheQueue(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Held(`SELECT FROM users WHERE id = 10 FOR UPDATE`, 1, `UPDATE ghost_user_migrations SET updated_at = now() WHERE user_id = 10`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
}

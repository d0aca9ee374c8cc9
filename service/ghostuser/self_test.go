package ghostuser_test

import (
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// A key of users to themselves is not in the reference schema; other schemas may have one.

func TestGhostUserMigration_TheUsersOwnReferencesGoWithTheUser(t *testing.T) {
	t.Parallel()
	for _, onDelete := range []string{"CASCADE", "NO ACTION", "RESTRICT", "SET NULL", "SET DEFAULT"} {
		t.Run(onDelete, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGhosts(t)
			g.Doomed(10, 11)
			g.Exec("main", `ALTER TABLE users ADD FOREIGN KEY (created_by_id) REFERENCES users (id) ON DELETE `+onDelete+`;
				UPDATE users SET created_by_id = 10 WHERE id = 10;
				ALTER TABLE ghost_user_migrations ADD FOREIGN KEY (initiator_user_id) REFERENCES users (id) ON DELETE `+onDelete+`;
				UPDATE ghost_user_migrations SET initiator_user_id = 11 WHERE user_id = 11`)
			s := g.Service()
			// The personal namespaces' routes and details.
			servicetest.WantCounts(t, g.Runs(s, true), "migrated_users=2 deleted_rows=8")
			g.Run(s, "migrated_users=2 deleted_rows=8")
			g.WantGone(10, 11)
		})
	}
}

func TestGhostUserMigration_AUserWhomOnlyTheLastStepCannotDeleteStaysInTheQueue(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
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
	t.Parallel()
	for onDelete, test := range map[string]struct{ counts, others string }{
		"CASCADE":   {"migrated_users=1 deleted_rows=5", "0"},
		"SET NULL":  {"migrated_users=1 deleted_rows=4 nullified_rows=1", "1"},
		"NO ACTION": {"failed_users=1", "1"},
	} {
		t.Run(onDelete, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGhosts(t)
			g.Doomed(10)
			g.Exec("main", `ALTER TABLE users ADD FOREIGN KEY (created_by_id) REFERENCES users (id) ON DELETE `+onDelete+`;
				INSERT INTO users (id, email, username, projects_limit, organization_id) VALUES (11, 'e@x', 'e', 0, 1); UPDATE users SET created_by_id = 10 WHERE id IN (10, 11)`)
			s := g.Service()
			dry := g.Runs(s, true)
			servicetest.WantState(t, dry, repo.RunSucceeded)
			servicetest.WantCounts(t, dry, test.counts)
			g.Run(s, test.counts)
			g.Want("main", `SELECT count(*) FROM users WHERE id = 11`, test.others)
		})
	}
}

func TestGhostUserMigration_NoKeyOfTheQueueKeepsTheUser(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
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
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Held(`SELECT FROM users WHERE id = 10 FOR UPDATE`, 1, `UPDATE ghost_user_migrations SET updated_at = now() WHERE user_id = 10`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
}

package ghost_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestGhostUserMigration_ChoosesUsersAndGhosts(t *testing.T) {
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), map[string]func(*servicetest.Ghosts){
		"a ghost is created for each organization once":           aGhostIsCreatedForEachOrganizationOnce,
		"works humans first then by time then by ID":              worksHumansFirstThenByTimeThenByID,
		"rows of the future are not touched":                      rowsOfTheFutureAreNotTouched,
		"users that must stay are refused every time":             usersThatMustStayAreRefusedEveryTime,
		"bots service accounts and placeholders go like humans":   botsServiceAccountsAndPlaceholdersGoLikeHumans,
		"a user without a type is human":                          aUserWithoutATypeIsHuman,
		"the users own references go with the user":               theUsersOwnReferencesGoWithTheUser,
		"other users who refer to the user are as their key says": otherUsersWhoReferToTheUserAreAsTheirKeySays,
		"no key of the queue keeps the user":                      noKeyOfTheQueueKeepsTheUser,
	})
}

func aGhostIsCreatedForEachOrganizationOnce(g *servicetest.Ghosts) {
	g.Doomed(10, 11, 12)
	g.Exec("main", `UPDATE users SET organization_id = 2 WHERE id IN (10, 11); UPDATE users SET username = 'Ghost1' WHERE id = 7`)
	g.Exec("main", `INSERT INTO releases (tag, author_id, project_id, released_at, created_at, updated_at) SELECT 'v' || u, u, 1, now(), now(), now() FROM generate_series(10, 12) u`)
	g.Run(g.Service(), "migrated_users=3 moved_rows=3 deleted_rows=12")
	g.Want("main", `SELECT string_agg(concat_ws(' ', username, email, name, state, admin, projects_limit, organization_id, created_at IS NOT NULL, updated_at IS NOT NULL), ', ')
		FROM users WHERE user_type = 5 AND id <> 5`, "ghost2 ghost2@noreply.invalid Ghost User active f 0 2 t t")
	g.Want("main", `SELECT string_agg(r.tag || ' ' || u.organization_id, ', ' ORDER BY r.tag) FROM releases r JOIN users u ON u.id = r.author_id AND u.user_type = 5`, "v10 2, v11 2, v12 1")
}

func worksHumansFirstThenByTimeThenByID(g *servicetest.Ghosts) {
	for id, kind := range map[int]int{10: 6, 11: 13, 12: 0, 13: 0, 14: 0, 15: 15, 16: 6} {
		g.User(id, kind)
	}
	g.Queue(10, 11, 13, 12, 14, 15, 16)
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = '2020-01-01' WHERE user_id IN (12, 14)`)
	g.Exec("main", `UPDATE ghost_user_migrations SET user_type = 0 WHERE user_id = 16; UPDATE ghost_user_migrations SET user_type = 6 WHERE user_id = 14`)
	g.Exec("main", `CREATE TABLE gone (n serial, id bigint); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO gone (id) VALUES (OLD.id); RETURN NULL; END $$;
		CREATE TRIGGER note AFTER DELETE ON users FOR EACH ROW EXECUTE FUNCTION note()`)
	g.Run(g.Service(), "migrated_users=7 deleted_rows=28")
	g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY n) FROM gone`, "12 13 16 14 10 11 15")
}

func rowsOfTheFutureAreNotTouched(g *servicetest.Ghosts) {
	g.Doomed(10, 11)
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now() + interval '1 hour' WHERE user_id = 10; UPDATE ghost_user_migrations SET consume_after = now() - interval '1 second' WHERE user_id = 11`)
	s := g.Service()
	if b := ghostBacklog(g.T, s); b.Pending != 2 || b.Due != 1 || b.Deferred != 1 || b.Dead != 0 || b.OldestAt.IsZero() {
		g.T.Errorf("backlog %+v", b)
	}
	g.Run(s, "migrated_users=1 deleted_rows=4")
	g.WantGone(11)
	g.Want("main", `SELECT count(*) FROM ghost_user_migrations WHERE consume_after > now() + interval '59 minutes'`, "1")
	if b := ghostBacklog(g.T, s); b.Pending != 1 || b.Due != 0 || b.Deferred != 1 {
		g.T.Errorf("backlog %+v", b)
	}
}

func usersThatMustStayAreRefusedEveryTime(g *servicetest.Ghosts) {
	for id, kind := range map[int]int{10: 1, 11: 11, 12: 17, 13: 0, 14: 0} {
		g.User(id, kind)
	}
	g.Queue(10, 11, 12, 5, 13, 14)
	s := g.Service()
	dry := g.Runs(s, true)
	assert.That(g.T, dry.Counts["failed_users"] == 4 && dry.Counts["migrated_users"] == 2, "the dry run counts %v", dry.Counts)
	g.Log.Reset()
	r := g.Run(s, "failed_users=4 migrated_users=2 deleted_rows=8")
	assert.That(g.T, strings.Contains(r.Reason, "4 users failed") && !r.OverLimit, "reason %q, over limit %t", r.Reason, r.OverLimit)
	for _, id := range []int{10, 11, 12, 5} {
		g.WantLater(id, 30*time.Minute)
		g.WantLog(1, `"level":"WARN"`, `"msg":"user deletion refused"`, `"reason":"INTERNAL_USER"`, fmt.Sprintf(`"user_id":%d,`, id))
	}
	g.WantLog(0, `"level":"ERROR"`)
	g.WantLog(0, `"stack"`)
	g.WantLog(0, `"user deletion refused"`, `"table"`)
	g.WantLog(1, `"level":"WARN"`, "many user deletions failed", `"failed_users":4`)
	b := ghostBacklog(g.T, s)
	assert.That(g.T, b.Dead == 4 && b.Pending == 0 && b.Due == 0, "backlog %+v", b)
	g.WantGone(13, 14)
}

func botsServiceAccountsAndPlaceholdersGoLikeHumans(g *servicetest.Ghosts) {
	for id, kind := range map[int]int{10: 6, 11: 13, 12: 15} {
		g.User(id, kind)
	}
	g.Queue(10, 11, 12)
	g.Exec("main", `INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) SELECT 10, 't' || i, 1, now(), now() FROM generate_series(1, 3) i;
		INSERT INTO import_placeholder_user_details (placeholder_user_id, organization_id, created_at, updated_at) VALUES (12, 1, now(), now())`)
	g.Run(g.Service(), "migrated_users=3 deleted_rows=16")
	g.WantGone(10, 11, 12)
	g.Want("main", `SELECT (SELECT count(*) FROM personal_access_tokens) + (SELECT count(*) FROM import_placeholder_user_details)`, "0")
}

func aUserWithoutATypeIsHuman(g *servicetest.Ghosts) {
	g.Exec("main", `ALTER TABLE users DROP CONSTRAINT users_user_type_check`)
	g.User(10, 0)
	g.User(11, 6)
	g.Exec("main", `UPDATE users SET user_type = NULL WHERE id = 10`)
	g.Queue(11, 10)
	s := g.Service()
	b := ghostBacklog(g.T, s)
	assert.That(g.T, b.Pending == 2 && b.Dead == 0, "backlog %+v", b)
	g.Run(s, "migrated_users=2 deleted_rows=8")
	g.WantGone(10, 11)
	log := g.Log.String()
	assert.That(g.T, strings.Index(log, `"user_id":10`) <= strings.Index(log, `"user_id":11`), "the bot was worked before the human")
}

// On connections that have read the backlog before, the error would be another one.
func TestGhostUserMigration_ABacklogThatCannotBeReadFailsNoRunWhoseWorkIsDone(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
	g.Exec("main", `UPDATE ghost_user_migrations SET consume_after = 'infinity' WHERE user_id = 11; ALTER TABLE ghost_user_migrations ALTER created_at TYPE text`)
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
	g.WantGone(10)
	g.WantLog(1, `"level":"WARN"`, "backlog not read")
}

// A key of users to themselves is not in the reference schema. Other schemas may have one.
func theUsersOwnReferencesGoWithTheUser(g *servicetest.Ghosts) {
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
		servicetest.WantCounts(g.T, g.Runs(s, true), "migrated_users=2 deleted_rows=8")
		g.Run(s, "migrated_users=2 deleted_rows=8")
		g.WantGone(first, second)
	}
}

func otherUsersWhoReferToTheUserAreAsTheirKeySays(g *servicetest.Ghosts) {
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
		servicetest.WantRun(g.T, g.Runs(s, true), control.RunSucceeded, test.counts)
		g.Run(s, test.counts)
		g.Want("main", fmt.Sprintf(`SELECT count(*) FROM users WHERE id = %d`, other), test.others)
	}
}

func noKeyOfTheQueueKeepsTheUser(g *servicetest.Ghosts) {
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
	g.Exec("main", `ALTER TABLE ghost_user_migrations ADD FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE`)
}

// ghostBacklog is the worker's backlog.
func ghostBacklog(t *testing.T, s *service.Service) control.Backlog {
	t.Helper()
	return assert.Must(s.Status(context.Background(), servicetest.GhostUsers))(t)[0].Backlog
}

func TestGhostUserMigration_OneGhostServesAllWhereThereAreNoOrganizations(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	g.Exec("main", `DROP TABLE organization_users; ALTER TABLE users DROP COLUMN organization_id CASCADE`)
	g.Exec("main", `INSERT INTO users (id, email, username, projects_limit, user_type) VALUES (10, 'u10', 'u10', 0, 0)`)
	g.Queue(10)
	g.Exec("main", `UPDATE issues SET author_id = 10`)
	s := g.Service()
	g.Run(s, "migrated_users=1 moved_rows=1 deleted_rows=1")
	g.Want("main", `SELECT author_id FROM issues`, "5")
	g.Exec("main", `UPDATE issues SET author_id = NULL; DELETE FROM users WHERE id = 5; INSERT INTO users (id, email, username, projects_limit, user_type) VALUES (11, 'u11', 'u11', 0, 0)`)
	g.Queue(11)
	g.Run(s, "migrated_users=1 deleted_rows=1")
	g.Want("main", `SELECT string_agg(username, ',') FROM users WHERE user_type = 5`, "ghost")
}

func TestGhostUserMigration_TheOldNameOfTheQueueIsUsedWhereItIsTheOnlyOne(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10, 11)
	g.Exec("main", `CREATE TABLE users_ghost_user_migrations (LIKE ghost_user_migrations INCLUDING ALL)`)
	g.Exec("main", `INSERT INTO users_ghost_user_migrations (user_id, created_at, updated_at) VALUES (7, now(), now()); DELETE FROM ghost_user_migrations WHERE user_id = 11`)
	s := g.Service()
	g.Run(s, "migrated_users=1 deleted_rows=4")
	g.Exec("main", `DROP TABLE ghost_user_migrations CASCADE; ALTER TABLE users_ghost_user_migrations DROP user_type; UPDATE users_ghost_user_migrations SET user_id = 11`)
	g.Run(s, "migrated_users=1 deleted_rows=4")
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (7, 10, 11)`, "1")
	g.Want("main", `SELECT count(*) FROM users_ghost_user_migrations`, "0")
	g.Exec("main", `DROP TABLE users_ghost_user_migrations`)
	_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.GhostUsers})
	var missing *fault.NotConfiguredError
	assert.That(t, errors.As(err, &missing) && strings.Contains(missing.Missing, "ghost_user_migrations"), "got %v", err)
}

func TestGhostUserMigration_TimesOfAGhostAreUTCWhateverTheTimeZone(t *testing.T) {
	g := newDoomed(servicetest.Parallel(t), 10)
	g.Exec("main", `DELETE FROM users WHERE id = 5; ALTER TABLE users ALTER created_at TYPE timestamp, ALTER updated_at TYPE timestamptz`)
	g.Exec("main", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L', current_database(), 'Pacific/Auckland'); END $$`)
	g.Open = nil
	g.Add("main", g.URLs["main"])
	g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
	g.Want("main", `SELECT abs(extract(epoch FROM now() - created_at AT TIME ZONE 'UTC')) < 600 AND abs(extract(epoch FROM now() - updated_at)) < 600
		FROM users WHERE user_type = 5`, "true")
}

func TestGhostUserMigration_AGhostIsMadeWhateverIndexesAndNamesUsersHave(t *testing.T) {
	cases := map[string]func(*servicetest.Ghosts){}
	for name, test := range map[string]struct{ sql, ghost string }{
		"an address in capitals": {`CREATE UNIQUE INDEX ON users (lower(email)); UPDATE users SET email = 'GHOST1@noreply.invalid' WHERE id = 7`, `"ghost2" "ghost2@noreply.invalid"`},
		"no names":               {`ALTER TABLE users DROP username`, `null "ghost@noreply.invalid"`},
		"no addresses":           {`ALTER TABLE users DROP email`, `"ghost1" null`},
	} {
		cases[name] = func(g *servicetest.Ghosts) {
			g.Doomed(10)
			g.Exec("main", test.sql+`; UPDATE users SET organization_id = 2 WHERE id = 10`)
			g.Run(g.Service(), "migrated_users=1 deleted_rows=4")
			g.Want("main", `SELECT concat_ws(' ', coalesce(to_jsonb(u) -> 'username', 'null'), coalesce(to_jsonb(u) -> 'email', 'null')) FROM users u WHERE user_type = 5 AND organization_id = 2`, test.ghost)
		}
	}
	servicetest.Cases(t, servicetest.NewGhosts(servicetest.Parallel(t)), cases)
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

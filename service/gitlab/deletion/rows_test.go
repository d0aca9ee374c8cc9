package deletion_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDeleteUser_Rows(t *testing.T) {
	servicetest.Turns(t, servicetest.NewTokens(servicetest.Parallel(t)),
		personalProjectsGoFirst, nothingPersonalGoesIfItIsRefusedNorAProjectInAGroup,
		attemptWhoseTimeIsOverOrWhoseUserIsBusySnoozesAndTheNextGoesOn,
		tokenThatIsBeingMadeOrRenewedSavesItsBot, stateThatCannotBeBlockedIsNamed,
		needsNoIndexOnTheQueueToQueueAUserOnce, deletesAllMembershipsAThousandAtATime,
	)
}

func deletesAllMembershipsAThousandAtATime(e *servicetest.Estate) {
	e.Bots(7)
	e.User(8, 0, 1)
	e.Group(50, 0)
	// A user may have any number of rows of any kind.
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id, requested_at, expires_at, state)
		SELECT 7, 50, CASE WHEN i % 2 = 0 THEN 'Namespace' ELSE 'Project' END, CASE WHEN i % 2 = 0 THEN 'GroupMember' ELSE 'ProjectMember' END, 30, 50,
			CASE WHEN i % 3 = 0 THEN now() END, CASE WHEN i % 5 = 0 THEN date '2001-01-01' END, i % 2 FROM generate_series(1, 2500) i`)
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, access_level, member_namespace_id) VALUES (8, 50, 'Namespace', 50, 50)`)
	e.Exec("main", `ALTER TABLE project_authorizations DROP CONSTRAINT project_authorizations_project_id_fkey`)
	e.Exec("main", `INSERT INTO project_authorizations (user_id, project_id, access_level) SELECT 7 + i % 2, i, 30 FROM generate_series(1, 4200) i`)
	e.Exec("main", `CREATE TABLE removals (n bigint);
		CREATE FUNCTION note_removal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO removals SELECT count(*) FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER note AFTER DELETE ON members REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note_removal();
		CREATE TRIGGER note AFTER DELETE ON project_authorizations REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION note_removal()`)
	log := &servicetest.Buffer{}
	servicetest.WantDeletion(e.T, e.Deletion(e.Service("", e.WithQueue, servicetest.LogTo(log)), servicetest.Authorized(7)), servicetest.DeletionDone)
	wantUser(e, 7, "blocked 0 0 f,6")
	wantUser(e, 8, "active 1 2100")
	e.Want("main", `SELECT string_agg(n::text, ' ' ORDER BY ctid) FROM removals`, "1000 1000 500 0 1000 1000 100 0")
	assert.That(e.T, strings.Contains(log.String(), `"memberships":2500,"authorizations":2100,"ghost_migration_queued":true`), "log: %s", log)
}

func needsNoIndexOnTheQueueToQueueAUserOnce(e *servicetest.Estate) {
	e.Bots(7, 8)
	e.Exec("main", `DROP INDEX `+e.Value("main", `SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 'ghost_user_migrations'::regclass AND indisunique AND NOT indisprimary`))
	const partial = `CREATE UNIQUE INDEX partial ON ghost_user_migrations (user_id) WHERE consume_after IS NOT NULL`
	for user, index := range map[int64]string{7: ``, 8: partial} {
		e.Exec("main", `DROP INDEX IF EXISTS partial`)
		e.Exec("main", index)
		s := e.Service("", e.WithQueue)
		for range 2 {
			servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(user)), servicetest.DeletionDone)
			e.Want("main", fmt.Sprint(`SELECT count(*) FROM ghost_user_migrations WHERE user_id = `, user), "1")
		}
	}
}

func TestDeleteUser_WorksWithWhatTablesThereAre(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	s := e.Service("", e.WithQueue)
	for name, c := range map[string]struct{ away, sql, missing, queue string }{
		"no column user_type in the queue":  {away: "ghost_user_migrations.user_type"},
		"no organization_users":             {away: "organization_users"},
		"no project_authorizations":         {away: "project_authorizations"},
		"no organizations of users":         {away: "users.organization_id"},
		"no members, namespaces, projects":  {away: "members namespaces projects"},
		"no settings":                       {away: "application_settings"},
		"no queue":                          {away: "ghost_user_migrations", missing: "ghost_user_migrations"},
		"no tokens":                         {away: "personal_access_tokens", missing: "personal_access_tokens"},
		"both queues, the older one unused": {sql: `CREATE TABLE users_ghost_user_migrations (user_id bigint)`},
		"few states":                        {sql: servicetest.StateIsAnEnum("active", "blocked")},
		"queue of the other name": {
			sql:   `ALTER TABLE ghost_user_migrations RENAME TO users_ghost_user_migrations`,
			queue: "users_ghost_user_migrations",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			e.Bots(7)
			for gone := range strings.FieldsSeq(c.away) {
				table, column, _ := strings.Cut(gone, ".")
				e.Exec("main", fmt.Sprintf(`ALTER TABLE %s RENAME %s TO %[1]s_away`, table, column))
			}
			e.Exec("main", c.sql)
			got := e.Deletion(s, servicetest.InactiveBot())
			failure := e.Value("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`)
			if c.missing != "" {
				servicetest.WantDeletion(t, got, servicetest.DeletionFailed)
				e.Want("main", `SELECT state FROM users WHERE id = 7`, "active")
				assert.That(t, strings.Contains(failure, c.missing), "%q does not name %s", failure, c.missing)
				return
			}
			servicetest.WantDeletion(t, got, servicetest.DeletionDone)
			e.Want("main", `SELECT concat_ws(' ', state, (SELECT initiator_user_id FROM `+cmp.Or(c.queue, "ghost_user_migrations")+` WHERE user_id = 7)) FROM users WHERE id = 7`, "blocked 101")
		})
	}
}

func stateThatCannotBeBlockedIsNamed(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	e.Bots(7)
	for typeName, sql := range map[string]string{"integer": servicetest.StateIsANumber, "mood": servicetest.StateIsAnEnum("active", "banned")} {
		e.Exec("main", sql)
		servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionFailed)
		e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`,
			"column users.state of database main has type "+typeName+", which cannot hold 'blocked': change "+
				"the column to text, or to an enum with this value")
		e.Exec("main", `ALTER TABLE users ALTER state TYPE text USING 'active'; DELETE FROM maintenance.river_job`)
	}
}

// waitsForLock waits until a statement of the service waits for another session's lock.
func waitsForLock(e *servicetest.Estate) {
	e.T.Helper()
	e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker' AND wait_event_type = 'Lock'`, "1")
}

func tokenThatIsBeingMadeOrRenewedSavesItsBot(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	for name, sql := range map[string]string{
		"made":    `INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) VALUES (7, 't', 1, now(), now())`,
		"renewed": `UPDATE personal_access_tokens SET expires_at = '2100-01-01' WHERE user_id = 7`,
	} {
		e.T.Run(name, func(t *testing.T) {
			e.InTurn(t)
			e.Bots(7)
			e.Token(7, "false", "date '2001-01-01'", servicetest.LongAgo)
			e.Insert(servicetest.JobOf(servicetest.InactiveBot()))
			commit := e.Other(sql)
			worked := make(chan string)
			beside := &servicetest.Estate{T: t, URLs: e.URLs, Open: e.Open, SQL: map[string]*pgx.Conn{"main": e.Connect("main")}}
			go func() {
				beside.Work(s, "delete_user")
				worked <- beside.Value("main", servicetest.NewestDeletion)
			}()
			waitsForLock(e)
			commit()
			servicetest.WantDeletion(t, <-worked, servicetest.DeletionSkipped+"TOKEN_ACTIVE")
			e.Want("main", `SELECT state FROM users WHERE id = 7`, "active")
		})
	}
}

// remains is the remainder of projects: the ids of projects, issues and repositories, and the
// number of notes.
const remains = `SELECT concat_ws(' ', (SELECT string_agg(id::text, ',' ORDER BY id) FROM projects), (SELECT string_agg(id::text, ',' ORDER BY id) FROM issues),
	(SELECT string_agg(project_id::text, ',' ORDER BY project_id) FROM project_repositories), (SELECT count(*) FROM notes))`

func personalProjectsGoFirst(e *servicetest.Estate) {
	e.User(7, 0, 1)
	e.User(8, 0, 1)
	e.Bots(9)
	e.PersonalProjects(7, 701, 702)
	e.PersonalProjects(8, 801)
	e.Exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id) VALUES (9, 701, 'Project', 'ProjectMember', 30, 10701)`)
	log := &servicetest.Buffer{}
	args := servicetest.Authorized(7)
	args.DeletedByID = new(int64(101))
	e.Insert(servicetest.JobOf(args))
	e.Work(e.Service("", e.WithQueue, servicetest.LogTo(log)), "delete_user")
	e.Want("main", remains, "801 801 801 1")
	wantUser(e, 7, "blocked 0 0 101,f,0")
	wantUser(e, 8, "active 1 1")
	e.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM namespaces`, "70 80 10801")
	e.Want("main", `SELECT state || ' ' || (metadata ->> 'outcome') FROM maintenance.river_job WHERE args @> '{"user_id": 7}'`, servicetest.DeletionDone)
	e.Want("main", `SELECT args FROM maintenance.river_job WHERE args @> '{"user_id": 9}'`,
		`{"reason": "Group was deleted", "user_id": 9, "deleted_by_id": 101, "skip_authorization": true}`)
	for _, path := range []string{"@hashed/701", "@hashed/702"} {
		assert.That(e.T, strings.Contains(log.String(), path), "%s is not logged as left outside: %s", path, log)
	}
}

func nothingPersonalGoesIfItIsRefusedNorAProjectInAGroup(e *servicetest.Estate) {
	e.User(7, 0, 1)
	e.PersonalProjects(7, 701)
	e.Group(50, 0)
	e.Member(7, 50)
	s := e.Service("", e.WithQueue)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionRefused+"SOLE_OWNER_OF_GROUP")
	e.Want("main", remains, "701 701 701 1")
	wantUser(e, 7, "active 2 1")
	e.Exec("main", `DELETE FROM members WHERE source_id = 50; UPDATE namespaces SET type = 'Group' WHERE id = 70`)
	servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionDone)
	e.Want("main", remains, "701 701 701 1")
}

func attemptWhoseTimeIsOverOrWhoseUserIsBusySnoozesAndTheNextGoesOn(e *servicetest.Estate) {
	e.User(7, 0, 1)
	e.PersonalProjects(7, 701)
	s := e.Service("", e.WithQueue)
	// Two attempts do not remove projects at once.
	release := e.Other(`SELECT pg_advisory_xact_lock(-7)`)
	r, err := e.AttemptOf(s, servicetest.Authorized(7), nil)
	assert.That(e.T, err == nil && r.Snooze.Seconds() == 30 && r.Reason == "TARGET_BUSY", "%+v, %v, want a snooze of 30 s", r, err)
	release()
	e.Exec("main", `DELETE FROM maintenance.river_job`)
	over := make(chan struct{})
	close(over)
	r, err = e.AttemptOf(s, servicetest.Authorized(7), over)
	assert.That(e.T, err == nil && r.Snooze > 0 && r.Reason == "SHUTDOWN", "%+v, %v, want a snooze", r, err)
	got := e.UserRows(7)
	assert.That(e.T, strings.HasPrefix(got, "blocked ") && !strings.HasSuffix(got, ",0"), "%v", got)
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
	servicetest.WantDeletion(e.T, e.DeletionAgain(s), servicetest.DeletionDone)
	e.Want("main", remains, "0")
	wantUser(e, 7, "blocked 0 0 f,0")
}

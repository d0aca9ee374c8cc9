package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestProtect_Attacks(t *testing.T) {
	inTurn(t, "main", map[string]func(*servicetest.Estate){
		"UserIsAttackedThroughEveryPath":                       userIsAttackedThroughEveryPath,
		"UserWhoseDeletionHasBegunKeepsTheAccountFromItsEndOn": userWhoseDeletionHasBegunKeepsTheAccountFromItsEndOn,
		"OfTheTwoThatRaceForAUserOneWins":                      ofTheTwoThatRaceForAUserOneWins,
		"WaitsForADeletionThatIsJustBeginning":                 waitsForADeletionThatIsJustBeginning,
		"GroupIsAttackedThroughEveryPath":                      groupIsAttackedThroughEveryPath,
		"HoldsTheKeysOfProtectedRowsAndNoOthers":               holdsTheKeysOfProtectedRowsAndNoOthers,
		"LooseForeignKeysHoldTheKeyOfAProtectedRow":            looseForeignKeysHoldTheKeyOfAProtectedRow,
	})
}

// expire ends all protections as time does.
func expire(e *servicetest.Estate) {
	e.T.Helper()
	e.Exec("main", `UPDATE maintenance.protected_targets SET until = clock_timestamp()`)
}

// attacked is bot 7 with an unused token.
func attacked(e *servicetest.Estate) *service.Service {
	e.T.Helper()
	e.Tokens()
	e.Bots(7)
	e.Token(7, "false", "{c_date} - 100", servicetest.LongAgo)
	return e.Service("", e.WithQueue)
}

// attacks are ways to get rid of bot 7, who is protected at some moment of each.
func attacks(e *servicetest.Estate, s *service.Service) map[string]func() {
	const refused = servicetest.DeletionRefused + "PROTECTED"
	return map[string]func(){
		"a job that was queued before": func() {
			servicetest.WantCounts(e.T, servicetest.RunTokens(e.T, s), "examined_users=1 scheduled_jobs=1")
			protect(e.T, s, "user", 7)
			servicetest.WantDeletion(e.T, e.DeletionAgain(s), refused)
		},
		"a refused job, retried": func() {
			protect(e.T, s, "user", 7)
			servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), refused)
			assert.Must(s.RetryJob(e.T.Context(), 1))(e.T)
			servicetest.WantDeletion(e.T, e.DeletionAgain(s), refused)
		},
		"a cancelled job, retried": func() {
			e.Insert(jobqueue.Job{Args: servicetest.Authorized(7)})
			assert.Must(s.CancelJob(e.T.Context(), 1, "stop", "ann"))(e.T)
			protect(e.T, s, "user", 7)
			assert.Must(s.RetryJob(e.T.Context(), 1))(e.T)
			servicetest.WantDeletion(e.T, e.DeletionAgain(s), refused)
		},
		"a run that expects what was planned before": func() {
			planned, err := s.RunBatch(e.T.Context(), run.Request{Worker: servicetest.InactiveTokens, DryRun: true})
			assert.Require(e.T, err == nil && planned.CandidatesDigest != "", "%v %v", planned, err)
			protect(e.T, s, "user", 7)
			_, err = s.RunBatch(e.T.Context(), run.Request{Worker: servicetest.InactiveTokens, ExpectedDigest: planned.CandidatesDigest})
			refused, ok := errors.AsType[*fault.RefusedError](err)
			assert.That(e.T, ok && refused.Reason == fault.ReasonPlanChanged, "%v", err)
			e.Want("main", `SELECT count(*) FROM maintenance.river_job`, "0")
		},
		"protected again after it has expired": func() {
			protect(e.T, s, "user", 7)
			expire(e)
			servicetest.WantCounts(e.T, servicetest.RunTokens(e.T, s), "examined_users=1 scheduled_jobs=1")
			protect(e.T, s, "user", 7)
			servicetest.WantDeletion(e.T, e.DeletionAgain(s), refused)
		},
		"by another actor, for another reason": func() {
			protect(e.T, s, "user", 7)
			for _, args := range []jobqueue.DeleteUser{
				{UserID: 7, SkipAuthorization: true, DeletedByID: new(int64(101)), Reason: "Group was deleted"}, {UserID: 7, SkipAuthorization: true},
			} {
				servicetest.WantDeletion(e.T, e.Deletion(s, args), refused)
			}
		},
		"in the instant that decides": func() {
			// As Protect does it: the job waits for the user's row, and asks again.
			e.Held(`SELECT FROM users WHERE id = 7 FOR SHARE; `+protectedSQL("user", 7), 1)
			servicetest.WantDeletion(e.T, e.Deletion(s, servicetest.Authorized(7)), refused)
		},
	}
}

func userIsAttackedThroughEveryPath(e *servicetest.Estate) {
	t, s := e.T, attacked(e)
	tables := []string{"users", "members", "personal_access_tokens", "ghost_user_migrations"}
	before := e.State("main", tables...)
	for name, attack := range attacks(e, s) {
		t.Run(name, func(t *testing.T) {
			e.T = t
			attack()
			e.WantSame("main", before, tables...)
			e.Want("main", begunRemovals, "0")
			e.Exec("main", forgetAttack)
		})
	}
	e.T = t
	// Times that are none are refused, and a protection holds for a user who comes later.
	for _, ttl := range []time.Duration{-time.Hour, -1, time.Millisecond, 1 << 62} {
		_, err := s.Protect(t.Context(), service.Protection{Kind: "user", ID: 7, Reason: "r"}, ttl, false)
		wantInvalid(t, ttl.String(), err, "ttl")
	}
	e.Want("main", `SELECT count(*) FROM maintenance.protected_targets`, "0")
	protect(t, s, "user", 8)
	e.Bots(8)
	e.Token(8, "false", "{c_date} - 100", servicetest.LongAgo)
	servicetest.WantCounts(t, servicetest.RunTokens(t, s), "examined_users=2 scheduled_jobs=1")
	e.Want("main", servicetest.QueuedUsers, "7")
}

const forgetAttack = `TRUNCATE maintenance.river_job RESTART IDENTITY;
	TRUNCATE maintenance.protected_targets, maintenance.job_cancellations, maintenance.token_passes`

const begunRemovals = `SELECT (SELECT count(*) FROM maintenance.user_removals) + (SELECT count(*) FROM maintenance.group_removals)`

func userWhoseDeletionHasBegunKeepsTheAccountFromItsEndOn(e *servicetest.Estate) {
	t, s := e.T, attacked(e)
	e.PersonalProjects(7, 701)
	over := make(chan struct{})
	close(over)
	r := assert.Must(e.AttemptOf(s, servicetest.Authorized(7), over))(t)
	assert.Require(t, r.Snooze > 0, "%+v", r)
	_, err := s.Protect(t.Context(), service.Protection{Kind: "user", ID: 7, Reason: "too late"}, 0, false)
	begun, ok := errors.AsType[*protection.DeletionStartedError](err)
	assert.Require(t, ok && begun.ID == 7, "%v", err)
	devdb.Eventually(t, "the deletion ends", func() bool {
		e.Exec("main", `UPDATE maintenance.river_job SET state = 'available' WHERE kind = 'delete_user' AND finalized_at IS NULL`)
		e.Work(s, "delete_user")
		return e.Value("main", servicetest.NewestDeletion) == servicetest.DeletionDone
	})
	protect(t, s, "user", 7)
	wantGhostKeeps(t, s)
	e.Want("main", `SELECT state FROM users WHERE id = 7`, "blocked")
	expire(e)
	e.Exec("main", `UPDATE ghost_user_migrations SET consume_after = now()`)
	devdb.Eventually(t, "the user goes once the protection has expired", func() bool {
		_, err := s.RunBatch(t.Context(), run.Request{Worker: servicetest.GhostUsers})
		return err == nil && e.Value("main", `SELECT count(*) FROM users WHERE id = 7`) == "0"
	})
}

// wantGhostKeeps fails the test unless a run of the ghost migration defers its only user.
func wantGhostKeeps(t *testing.T, s *service.Service) {
	t.Helper()
	r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.GhostUsers}))(t)
	assert.That(t, r.Counts["deferred_users"] == 1 && r.Counts["migrated_users"] == 0, "%+v", r)
}

// The second always knows of the first: a user who is protected keeps the account, even if it has
// been blocked.
func ofTheTwoThatRaceForAUserOneWins(e *servicetest.Estate) {
	t := e.T
	e.Tokens()
	s := e.Service("", e.WithQueue)
	for id := int64(7); id < 13; id++ {
		e.Bots(int(id))
		e.Insert(jobqueue.Job{Args: servicetest.Authorized(id)})
		answer := protecting(s, "user", id)
		e.Work(s, "delete_user")
		err := <-answer
		_, late := errors.AsType[*protection.DeletionStartedError](err)
		switch queued := e.Value("main", `SELECT count(*) FROM ghost_user_migrations`); {
		case err != nil && !late:
			t.Fatal(err)
		case queued == "0":
			e.Want("main", fmt.Sprint(`SELECT state FROM users WHERE id = `, id), "active")
		case err == nil:
			wantGhostKeeps(t, s)
		}
		e.Exec("main", `TRUNCATE ghost_user_migrations, maintenance.river_job`)
	}
}

func waitsForADeletionThatIsJustBeginning(e *servicetest.Estate) {
	t, s := e.T, attacked(e)
	e.PersonalProjects(7, 701)
	e.Insert(jobqueue.Job{Args: servicetest.Authorized(7)})
	e.Gate("main", "users", "OLD.id = 7")
	e.Shut("main", servicetest.App)
	q := e.Queue()
	assert.NoError(t, q.Start(servicetest.OnlyKind{Service: s, Kind: "delete_user"}))
	defer func() { _ = q.Stop(context.Background()) }()
	e.AtGate("main", servicetest.App)
	answer := protecting(s, "user", 7)
	e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, "1")
	e.Lift("main", servicetest.App)
	e.Eventually("main", servicetest.NewestDeletion, servicetest.DeletionDone)
	// It saw the started deletion, or it came when that was over: then the account is kept.
	err := <-answer
	_, late := errors.AsType[*protection.DeletionStartedError](err)
	assert.That(t, err == nil || late, "%v", err)
	if err == nil {
		wantGhostKeeps(t, s)
	}
}

func groupIsAttackedThroughEveryPath(e *servicetest.Estate) {
	e.T.Helper()
	const refused = "cancelled refused PROTECTED"
	t, g := e.T, family(e)
	tables := []string{"namespaces", "projects", "members", "routes", "users"}
	before := g.State("main", tables...)
	for name, attack := range map[string]func(){
		"a refused job, retried": func() {
			g.QueueJob(10, 1)
			protect(g.T, g.Service, "group", 12)
			g.Attempt(refused)
			assert.Must(g.Service.RetryJob(g.T.Context(), 1))(g.T)
			g.Attempt(refused)
		},
		"a run that expects what was planned before": func() {
			planned, err := g.Service.RunBatch(g.T.Context(), run.Request{Worker: servicetest.AdjournedGroups, DryRun: true})
			assert.Require(g.T, err == nil && planned.CandidatesDigest != "", "%v %v", planned, err)
			protect(g.T, g.Service, "user", 3)
			expecting := run.Request{Worker: servicetest.AdjournedGroups, ExpectedDigest: planned.CandidatesDigest}
			_, err = g.Service.RunBatch(g.T.Context(), expecting)
			changed, ok := errors.AsType[*fault.RefusedError](err)
			assert.That(g.T, ok && changed.Reason == fault.ReasonPlanChanged, "%v", err)
		},
		"a project of it that is named as one": func() {
			g.QueueJob(10, 1)
			protectedBefore(g.Estate, "group", 10002)
			g.Attempt(refused)
		},
		"in the instant that decides": func() {
			g.QueueJob(10, 1)
			g.Held(`SELECT FROM namespaces WHERE id IN (10, 11, 12) FOR SHARE; `+protectedSQL("group", 12), 1)
			g.Attempt(refused)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g.T = t
			attack()
			g.WantSame("main", before, tables...)
			g.Want("main", begunRemovals, "0")
			g.Exec("main", forgetAttack)
		})
	}
	g.T = t
}

// protectedSQL protects a target as SQL does.
func protectedSQL(kind string, id int64) string {
	return fmt.Sprintf(`INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by)
		VALUES ('%s', %d, 'evidence', 'ann')`, kind, id)
}

// protectedBefore protects what was not there yet then.
func protectedBefore(e *servicetest.Estate, kind string, id int64) {
	e.T.Helper()
	e.Exec("main", protectedSQL(kind, id))
}

// Users 1 and 2 are of tenant 1, user 3 of tenant 2. Both tenants are deleted. User 2 is protected before the run, or in
// the instant that decides: while a statement waits for the user's row. Then user 1, whose row is free, may be deleted.
func looseForeignKeysHoldTheKeyOfAProtectedRow(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `CREATE TABLE tenants (id bigint PRIMARY KEY)`)
	e.Exec("main", `ALTER TABLE users ADD COLUMN tenant_id bigint; CREATE INDEX ON users (tenant_id)`)
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	s := e.Service("users:\n  - table: tenants\n    column: tenant_id\n    on_delete: async_delete\n")
	instant := `SELECT FROM users WHERE id = 2 FOR SHARE; ` + protectedSQL("user", 2)
	for name, protected := range map[string]func(){
		"before":         func() { protect(t, s, "user", 2) },
		"while it waits": func() { e.Held(instant, 1) },
	} {
		t.Log(name)
		e.Exec("main", `DELETE FROM users; DELETE FROM loose_foreign_keys_deleted_records; DELETE FROM maintenance.protected_targets`)
		for id := range 3 {
			e.User(id+1, 0, 1)
		}
		e.Exec("main", `UPDATE users SET tenant_id = 1 + (id > 2)::int`)
		e.Exec("main", `DELETE FROM loose_foreign_keys_deleted_records`)
		e.Deleted("main", "tenants", 1, 2)
		protected()
		r := servicetest.RunBatch(t, s, "main")
		servicetest.WantState(t, r, "succeeded")
		assert.That(t, strings.HasPrefix(r.Reason, "1 record held, PROTECTED: user 2 is protected by"), "reason %q", r.Reason)
		e.Want("main", `SELECT string_agg(id::text, ' ') FROM users WHERE id IN (2, 3)`, "2")
		e.Want("main", `SELECT string_agg(primary_key_value::text, ' ') FROM loose_foreign_keys_deleted_records
			WHERE fully_qualified_table_name = 'public.tenants'`, "1")
	}
}

func holdsTheKeysOfProtectedRowsAndNoOthers(e *servicetest.Estate) {
	t := e.T
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	for id := range 40 {
		e.User(id+1, 0, 1)
	}
	e.Exec("main", `CREATE SCHEMA app; CREATE TABLE app.branches (id bigint PRIMARY KEY, p_id bigint); CREATE INDEX ON app.branches (p_id);
		INSERT INTO app.branches SELECT i, i FROM generate_series(1, 400) i;
		ALTER TABLE users ADD COLUMN branch_id bigint REFERENCES app.branches ON DELETE CASCADE; UPDATE users SET branch_id = id * 10;
		INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by) SELECT 'user', id, 'r', 'ann' FROM users`)
	e.Deleted("main", "parents", 1, 400)
	s := e.Service("app.branches:\n  - {table: parents, column: p_id, on_delete: async_delete}\n")
	for _, dry := range []bool{true, false} {
		r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "main", DryRun: dry}))(t)
		assert.That(t, r.Counts["processed_records"] == 360 && r.Counts["rescheduled_records"] == 40, "dry run %t: %v", dry, r.Counts)
	}
	e.Want("main", `SELECT count(*) FROM users`, "40")
}

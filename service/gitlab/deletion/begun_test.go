package deletion_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// leaving is an estate of [leave].
func leaving(t *testing.T) (*servicetest.Estate, jobqueue.DeleteUser) {
	t.Helper()
	e := servicetest.NewTokens(t)
	return e, leave(e)
}

// leave makes bot 7 with a dead token, a personal project, and a group and an organization that 8
// owns too. 1 is an administrator who requests it gone.
func leave(e *servicetest.Estate) jobqueue.DeleteUser {
	e.T.Helper()
	e.Bots(7)
	e.Token(7, "false", "{c_date} - 100", servicetest.LongAgo)
	e.User(1, 0, 1)
	e.User(8, 0, 1)
	e.Exec("main", `UPDATE users SET admin = true WHERE id = 1`)
	e.PersonalProjects(7, 701)
	// Else the removal of the project would queue one more job for the bot.
	e.Exec("main", `DELETE FROM members`)
	e.Group(50, 0)
	e.Member(7, 50)
	e.Member(8, 50)
	e.Exec("main", `INSERT INTO organization_users (organization_id, user_id, access_level, created_at, updated_at)
		VALUES (1, 7, 50, now(), now()), (1, 8, 50, now(), now())`)
	return jobqueue.DeleteUser{UserID: 7, DeletedByID: new(int64(1)), Reason: jobqueue.TokenDeletionReason}
}

// objections are what comes between a deletion and its checks, and how a job ends that finds it
// before it begins.
func objections() map[string]struct{ sql, want string } {
	return map[string]struct{ sql, want string }{
		"a new token": {
			`INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) VALUES (7, 't', 1, now(), now())`,
			servicetest.DeletionSkipped + "TOKEN_ACTIVE",
		},
		"setting off":                      {`UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings("null") + `'`, servicetest.DeletionSkipped + "SETTING_OFF"},
		"setting invalid":                  {`UPDATE application_settings SET resource_access_tokens_settings = '` + servicetest.TokenSettings("-1") + `'`, servicetest.DeletionFailed + " SETTING_INVALID"},
		"no bot any more":                  {`UPDATE users SET user_type = 0 WHERE id = 7`, servicetest.DeletionSkipped + "NOT_A_BOT"},
		"an account of the system":         {`UPDATE users SET user_type = 11 WHERE id = 7`, servicetest.DeletionRefused + "INTERNAL_USER"},
		"its actor is no admin any more":   {`UPDATE users SET admin = false WHERE id = 1`, servicetest.DeletionRefused + "NOT_AUTHORIZED"},
		"its actor is blocked":             {`UPDATE users SET state = 'blocked' WHERE id = 1`, servicetest.DeletionRefused + "NOT_AUTHORIZED"},
		"its actor is gone":                {`DELETE FROM users WHERE id = 1`, servicetest.DeletionRefused + "NOT_AUTHORIZED"},
		"only owner of its group":          {`DELETE FROM members WHERE user_id = 8`, servicetest.DeletionRefused + "SOLE_OWNER_OF_GROUP"},
		"only owner of its organization":   {`DELETE FROM organization_users WHERE user_id = 8`, servicetest.DeletionRefused + "SOLE_OWNER_OF_ORGANIZATION"},
		"the other owner is to go as well": {`INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`, servicetest.DeletionRefused + "SOLE_OWNER_OF_ORGANIZATION"},
	}
}

// begun are the users whose removal has started.
const begun = `SELECT coalesce(string_agg(concat_ws(' ', user_id, deleted_by_id, reason, begun_at <= now()), ', '), '') FROM maintenance.user_removals`

// beginDeletion does an attempt that begins the removal of user 7, and has no time for more.
func beginDeletion(e *servicetest.Estate, s *service.Service, args jobqueue.DeleteUser) {
	e.T.Helper()
	over := make(chan struct{})
	close(over)
	r, err := e.AttemptOf(s, args, over)
	assert.Require(e.T, err == nil && r.Snooze > 0, "%+v, %v, want a snooze", r, err)
	e.Want("main", begun, "7 1 "+jobqueue.TokenDeletionReason+" t")
	e.Want("main", `SELECT state FROM users WHERE id = 7`, "blocked")
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'available' WHERE kind = 'delete_user'`)
}

// wantDeleted fails the test unless user 7 is deleted as far as the job does that, for user 1, and
// the projects of others remain.
func wantDeleted(e *servicetest.Estate, others string) {
	e.T.Helper()
	e.Want("main", `SELECT concat_ws(' ', state, (SELECT count(*) FROM members WHERE user_id = 7), (SELECT count(*) FROM project_authorizations
		WHERE user_id = 7), (SELECT initiator_user_id FROM ghost_user_migrations WHERE user_id = 7)) FROM users WHERE id = 7`, "blocked 0 0 1")
	e.Want("main", remains, others)
	e.Want("main", begun, "")
}

func TestDeleteUser_WhatSpeaksAgainstItCountsOnlyBeforeItBegins(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	s := e.Service("", e.WithQueue)
	for name, c := range objections() {
		for _, begun := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, begun before: %t", name, begun), func(t *testing.T) {
				e.InTurn(t)
				args := leave(e)
				if begun {
					beginDeletion(e, s, args)
					e.Exec("main", c.sql)
					servicetest.WantDeletion(t, e.DeletionAgain(s), servicetest.DeletionDone)
					wantDeleted(e, "0")
					return
				}
				e.Exec("main", c.sql)
				before := e.State("main", servicetest.Written...)
				servicetest.WantDeletion(t, e.Deletion(s, args), c.want)
				e.WantSame("main", before, servicetest.Written...)
			})
		}
	}
}

func TestDeleteUser_AnyOtherJobFinishesWhatADiscardedOneHasBegun(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	s := e.Service("", e.WithQueue)
	for name, next := range map[string]func(*servicetest.Estate, *service.Service) string{
		"another reason": func(e *servicetest.Estate, s *service.Service) string {
			return e.Deletion(s, jobqueue.DeleteUser{UserID: 7, DeletedByID: new(int64(8)), Reason: "because"})
		},
		"the same one again": func(e *servicetest.Estate, s *service.Service) string {
			return e.Deletion(s, servicetest.InactiveBot())
		},
		"the job itself": func(e *servicetest.Estate, s *service.Service) string {
			id := int64(0)
			assert.Must(fmt.Sscan(e.Value("main", `SELECT id FROM maintenance.river_job`), &id))(e.T)
			assert.Must(s.RetryJob(context.Background(), id))(e.T)
			return e.DeletionAgain(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e.InTurn(t)
			beginDeletion(e, s, leave(e))
			e.Exec("main", `UPDATE maintenance.river_job SET state = 'discarded', attempt = 25, finalized_at = now()`)
			e.Exec("main", objections()["a new token"].sql)
			e.Exec("main", objections()["its actor is gone"].sql)
			servicetest.WantDeletion(t, next(e, s), servicetest.DeletionDone)
			// In the name of the user for whom it was started, for any target of the other job.
			e.Want("main", `SELECT initiator_user_id FROM ghost_user_migrations WHERE user_id = 7`, "1")
			e.Want("main", remains, "0")
			e.Want("main", begun, "")
		})
	}
}

func whoIsGoneAfterTheRemovalHasBegunIsSkipped(e *servicetest.Estate) {
	s := e.Service("", e.WithQueue)
	beginDeletion(e, s, leave(e))
	e.Exec("main", `DELETE FROM notes; DELETE FROM issues; DELETE FROM projects; DELETE FROM users WHERE id = 7`)
	servicetest.WantDeletion(e.T, e.DeletionAgain(s), servicetest.DeletionSkipped+"TARGET_GONE")
	e.Want("main", begun, "")
}

// gateAt puts an open gate before rows that are inserted or updated.
func gateAt(e *servicetest.Estate, event, table, condition string) {
	e.T.Helper()
	e.Gate("main", "application_settings")
	e.Exec("main", `CREATE TRIGGER gate_at BEFORE `+event+` ON `+table+` FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION wait_at_gate()`)
}

// killedJob queues a job, and kills the process that works it when one of its statements stands
// before a gate.
func killedJob(e *servicetest.Estate, args jobqueue.DeleteUser) {
	e.T.Helper()
	e.Shut("main", "doomed")
	e.Insert(servicetest.JobOf(args))
	p := e.Start("doomed", "", func(o *servicetest.Order) { o.Definitions, o.Database, o.Jobs = "", "", "delete_user" })
	e.AtGate("main", "doomed")
	p.Kill()
	e.DoomedGone()
}

func TestFault_DeleteUser_KilledAtAnyStatementAndWithoutTheRightThenItIsFinishedOrHasDoneNothing(t *testing.T) {
	t.Parallel()
	const notBegun = servicetest.DeletionRefused + "NOT_AUTHORIZED"
	block := func(e *servicetest.Estate) { e.Gate("main", "users", "OLD.id = 7") }
	memberships := func(e *servicetest.Estate) { e.Gate("main", "members", "OLD.source_id = 50") }
	queue := func(e *servicetest.Estate) { gateAt(e, "INSERT", "ghost_user_migrations", "true") }
	complete := func(e *servicetest.Estate) { gateAt(e, "UPDATE", "maintenance.river_job", "NEW.state = 'completed'") }
	for name, c := range map[string]struct {
		gate     func(*servicetest.Estate)
		projects bool
		want     string
	}{
		"block":                    {block, true, notBegun},
		"note that it begins":      {func(e *servicetest.Estate) { gateAt(e, "INSERT", "maintenance.user_removals", "true") }, true, notBegun},
		"first rows of a project":  {func(e *servicetest.Estate) { e.Gate("main", "notes") }, true, servicetest.DeletionDone},
		"the project":              {func(e *servicetest.Estate) { e.Gate("main", "projects") }, true, servicetest.DeletionDone},
		"memberships":              {memberships, true, servicetest.DeletionDone},
		"authorizations":           {func(e *servicetest.Estate) { e.Gate("main", "project_authorizations", "OLD.project_id = 801") }, true, servicetest.DeletionDone},
		"queue":                    {queue, true, servicetest.DeletionDone},
		"forget that it has begun": {func(e *servicetest.Estate) { e.Gate("main", "maintenance.user_removals") }, true, servicetest.DeletionDone},
		"complete":                 {complete, true, servicetest.DeletionDone},
		"no projects: block":       {block, false, notBegun},
		"no projects: memberships": {memberships, false, notBegun},
		"no projects: queue":       {queue, false, notBegun},
		"no projects: complete":    {complete, false, notBegun},
	} {
		t.Run(name, func(t *testing.T) {
			e, args := leaving(servicetest.Parallel(t))
			e.PersonalProjects(8, 801)
			e.Exec("main", `INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES (7, 801, 50)`)
			if !c.projects {
				e.Exec("main", `UPDATE projects SET namespace_id = 80 WHERE id = 701`)
			}
			c.gate(e)
			before := e.State("main", servicetest.Written...)
			killedJob(e, args)
			if c.want == notBegun {
				e.WantSame("main", before, servicetest.Written...)
			}
			e.Exec("main", objections()["its actor is gone"].sql)
			s := e.Service("", e.WithQueue)
			e.Rescue()
			before = e.State("main", servicetest.Written...)
			servicetest.WantDeletion(t, e.DeletionAgain(s), c.want)
			if c.want == notBegun {
				e.WantSame("main", before, servicetest.Written...)
				return
			}
			wantDeleted(e, "801 801 801 1")
		})
	}
}

func twoJobsForOneUserFinishItTogether(e *servicetest.Estate) {
	args := leave(e)
	e.PersonalProjects(8, 801)
	s := e.Service("", e.WithQueue)
	e.Insert(servicetest.JobOf(args), servicetest.JobOf(jobqueue.DeleteUser{UserID: 7, DeletedByID: new(int64(1)), SkipAuthorization: true, Reason: "because"}))
	devdb.Eventually(e.T, "both jobs to end", func() bool { return e.Work(s, "delete_user") == 0 })
	e.Want("main", endedDeletions, "2 completed succeeded")
	wantDeleted(e, "801 801 801 1")
}

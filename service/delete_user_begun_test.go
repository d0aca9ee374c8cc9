package service_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// leaving makes bot 7 with a dead token, a personal project, and a group and an organization that 8
// owns too; 1 is an administrator who wants it gone.
func leaving(t *testing.T) (*estate, repo.DeleteUser) {
	t.Helper()
	e := tokenEstate(t)
	e.bots(7)
	e.token(7, "false", "{c_date} - 100", longAgo)
	e.user(1, 0, 1)
	e.user(8, 0, 1)
	e.exec("main", `UPDATE users SET admin = true WHERE id = 1`)
	e.personalProjects(7, 701)
	// Else the removal of the project would queue one more job for the bot.
	e.exec("main", `DELETE FROM members`)
	e.group(50, 0)
	e.member(7, 50)
	e.member(8, 50)
	e.exec("main", `INSERT INTO organization_users (organization_id, user_id, access_level, created_at, updated_at)
		VALUES (1, 7, 50, now(), now()), (1, 8, 50, now(), now())`)
	return e, repo.DeleteUser{UserID: 7, DeletedByID: new(int64(1)), Reason: repo.TokenDeletionReason}
}

// objections are what comes between a deletion and its checks, and how a job ends that finds it
// before it begins.
func objections() map[string]struct{ sql, want string } {
	return map[string]struct{ sql, want string }{
		"a new token": {
			`INSERT INTO personal_access_tokens (user_id, name, organization_id, created_at, updated_at) VALUES (7, 't', 1, now(), now())`,
			skipped + "TOKEN_ACTIVE",
		},
		"setting off":                      {`UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings("null") + `'`, skipped + "SETTING_OFF"},
		"setting invalid":                  {`UPDATE application_settings SET resource_access_tokens_settings = '` + tokenSettings("-1") + `'`, failed + " SETTING_INVALID"},
		"no bot any more":                  {`UPDATE users SET user_type = 0 WHERE id = 7`, skipped + "NOT_A_BOT"},
		"an account of the system":         {`UPDATE users SET user_type = 11 WHERE id = 7`, refused + "INTERNAL_USER"},
		"its actor is no admin any more":   {`UPDATE users SET admin = false WHERE id = 1`, refused + "NOT_AUTHORIZED"},
		"its actor is blocked":             {`UPDATE users SET state = 'blocked' WHERE id = 1`, refused + "NOT_AUTHORIZED"},
		"its actor is gone":                {`DELETE FROM users WHERE id = 1`, refused + "NOT_AUTHORIZED"},
		"only owner of its group":          {`DELETE FROM members WHERE user_id = 8`, refused + "SOLE_OWNER_OF_GROUP"},
		"only owner of its organization":   {`DELETE FROM organization_users WHERE user_id = 8`, refused + "SOLE_OWNER_OF_ORGANIZATION"},
		"the other owner is to go as well": {`INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (8, now(), now())`, refused + "SOLE_OWNER_OF_ORGANIZATION"},
	}
}

// begun are the users whose removal has begun.
const begun = `SELECT coalesce(string_agg(concat_ws(' ', user_id, deleted_by_id, reason, begun_at <= now()), ', '), '') FROM maintenance.user_removals`

// beginDeletion does an attempt that begins the removal of user 7, and has no time for more.
func (e *estate) beginDeletion(s *service.Service, args repo.DeleteUser) {
	e.t.Helper()
	over := make(chan struct{})
	close(over)
	r, err := e.attemptOf(s, args, over)
	if err != nil || r.Snooze <= 0 {
		e.t.Fatalf("%+v, %v, want a snooze", r, err)
	}
	e.want("main", begun, "7 1 "+repo.TokenDeletionReason+" t")
	e.want("main", `SELECT state FROM users WHERE id = 7`, "blocked")
	e.exec("main", `UPDATE maintenance.river_job SET state = 'available' WHERE kind = 'delete_user'`)
}

// wantDeleted fails the test unless user 7 is deleted as far as the job does that, for user 1, and
// the projects of others remain.
func (e *estate) wantDeleted(others string) {
	e.t.Helper()
	e.want("main", `SELECT concat_ws(' ', state, (SELECT count(*) FROM members WHERE user_id = 7), (SELECT count(*) FROM project_authorizations
		WHERE user_id = 7), (SELECT initiator_user_id FROM ghost_user_migrations WHERE user_id = 7)) FROM users WHERE id = 7`, "blocked 0 0 1")
	e.want("main", remains, others)
	e.want("main", begun, "")
}

func TestDeleteUser_WhatSpeaksAgainstItBeforeItBeginsLeavesEverything(t *testing.T) {
	t.Parallel()
	for name, c := range objections() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, args := leaving(t)
			s := e.service("", e.withQueue)
			e.exec("main", c.sql)
			before := e.state("main", written...)
			wantDeletion(t, e.deletion(s, args), c.want)
			e.wantSame("main", before, written...)
		})
	}
}

func TestDeleteUser_WhatHasBegunIsFinishedWhateverSpeaksAgainstItThen(t *testing.T) {
	t.Parallel()
	for name, c := range objections() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, args := leaving(t)
			s := e.service("", e.withQueue)
			e.beginDeletion(s, args)
			e.exec("main", c.sql)
			wantDeletion(t, e.deletionAgain(s), done)
			e.wantDeleted("0")
		})
	}
}

func TestDeleteUser_AnyOtherJobFinishesWhatADiscardedOneHasBegun(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(*estate, *service.Service) string{
		"another reason": func(e *estate, s *service.Service) string {
			return e.deletion(s, repo.DeleteUser{UserID: 7, DeletedByID: new(int64(8)), Reason: "because"})
		},
		"the same one again": func(e *estate, s *service.Service) string { return e.deletion(s, inactiveBot()) },
		"the job itself": func(e *estate, s *service.Service) string {
			id := int64(0)
			if _, err := fmt.Sscan(e.value("main", `SELECT id FROM maintenance.river_job`), &id); err != nil {
				e.t.Fatal(err)
			}
			if _, err := s.RetryJob(context.Background(), id); err != nil {
				e.t.Fatal(err)
			}
			return e.deletionAgain(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, args := leaving(t)
			s := e.service("", e.withQueue)
			e.beginDeletion(s, args)
			e.exec("main", `UPDATE maintenance.river_job SET state = 'discarded', attempt = 25, finalized_at = now()`)
			e.exec("main", objections()["a new token"].sql)
			e.exec("main", objections()["its actor is gone"].sql)
			wantDeletion(t, next(e, s), done)
			// In the name of the one for whom it was begun, whoever the other job is for.
			e.want("main", `SELECT initiator_user_id FROM ghost_user_migrations WHERE user_id = 7`, "1")
			e.want("main", remains, "0")
			e.want("main", begun, "")
		})
	}
}

func TestDeleteUser_WhoIsGoneAfterTheRemovalHasBegunIsSkipped(t *testing.T) {
	t.Parallel()
	e, args := leaving(t)
	s := e.service("", e.withQueue)
	e.beginDeletion(s, args)
	e.exec("main", `DELETE FROM notes; DELETE FROM issues; DELETE FROM projects; DELETE FROM users WHERE id = 7`)
	wantDeletion(t, e.deletionAgain(s), skipped+"TARGET_GONE")
	e.want("main", begun, "")
}

// gateAt puts an open gate before rows that are inserted or updated.
func (e *estate) gateAt(event, table, condition string) {
	e.t.Helper()
	e.gate("main", "application_settings")
	e.exec("main", `CREATE TRIGGER gate_at BEFORE `+event+` ON `+table+` FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION wait_at_gate()`)
}

// killedJob queues a job, and kills the process that works it when one of its statements stands
// before a gate.
func (e *estate) killedJob(args repo.DeleteUser) {
	e.t.Helper()
	e.shut("main", "doomed")
	e.insert(jobOf(args))
	p := e.start("doomed", "", func(o *processOrder) { o.Definitions, o.Database, o.Jobs = "", "", "delete_user" })
	e.atGate("main", "doomed")
	p.kill()
	e.doomed()
}

func TestDeleteUser_KilledAtAnyStatementAndWithoutTheRightThenItIsFinishedOrHasDoneNothing(t *testing.T) {
	t.Parallel()
	const notBegun = refused + "NOT_AUTHORIZED"
	block := func(e *estate) { e.gate("main", "users", "OLD.id = 7") }
	memberships := func(e *estate) { e.gate("main", "members", "OLD.source_id = 50") }
	queue := func(e *estate) { e.gateAt("INSERT", "ghost_user_migrations", "true") }
	complete := func(e *estate) { e.gateAt("UPDATE", "maintenance.river_job", "NEW.state = 'completed'") }
	for name, c := range map[string]struct {
		gate     func(*estate)
		projects bool
		want     string
	}{
		"block":                    {block, true, notBegun},
		"note that it begins":      {func(e *estate) { e.gateAt("INSERT", "maintenance.user_removals", "true") }, true, notBegun},
		"first rows of a project":  {func(e *estate) { e.gate("main", "notes") }, true, done},
		"the project":              {func(e *estate) { e.gate("main", "projects") }, true, done},
		"memberships":              {memberships, true, done},
		"authorizations":           {func(e *estate) { e.gate("main", "project_authorizations", "OLD.project_id = 801") }, true, done},
		"queue":                    {queue, true, done},
		"forget that it has begun": {func(e *estate) { e.gate("main", "maintenance.user_removals") }, true, done},
		"complete":                 {complete, true, done},
		"no projects: block":       {block, false, notBegun},
		"no projects: memberships": {memberships, false, notBegun},
		"no projects: queue":       {queue, false, notBegun},
		"no projects: complete":    {complete, false, notBegun},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, args := leaving(t)
			e.personalProjects(8, 801)
			e.exec("main", `INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES (7, 801, 50)`)
			if !c.projects {
				e.exec("main", `UPDATE projects SET namespace_id = 80 WHERE id = 701`)
			}
			c.gate(e)
			before := e.state("main", written...)
			e.killedJob(args)
			if c.want == notBegun {
				e.wantSame("main", before, written...)
			}
			e.exec("main", objections()["its actor is gone"].sql)
			s := e.service("", e.withQueue)
			e.rescue()
			before = e.state("main", written...)
			wantDeletion(t, e.deletionAgain(s), c.want)
			if c.want == notBegun {
				e.wantSame("main", before, written...)
				return
			}
			e.wantDeleted("801 801 801 1")
		})
	}
}

func TestDeleteUser_TwoJobsForOneUserFinishItTogether(t *testing.T) {
	t.Parallel()
	e, args := leaving(t)
	e.personalProjects(8, 801)
	s := e.service("", e.withQueue)
	e.insert(jobOf(args), jobOf(repo.DeleteUser{UserID: 7, DeletedByID: new(int64(1)), SkipAuthorization: true, Reason: "because"}))
	waitFor(t, "both jobs to end", func() bool { return e.work(s, "delete_user") == 0 })
	e.want("main", endedDeletions, "2 completed succeeded")
	e.wantDeleted("801 801 801 1")
}

package service_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// protect protects a target permanently.
func protect(t *testing.T, s *service.Service, kind string, id int64) {
	t.Helper()
	p := service.Protection{Kind: kind, ID: id, Reason: "evidence", By: "ann"}
	assert.Must(s.Protect(t.Context(), p, 0, false))(t)
}

// protecting protects a target in the background.
func protecting(s *service.Service, kind string, id int64) <-chan error {
	return background(func() error {
		_, err := s.Protect(context.Background(), service.Protection{Kind: kind, ID: id, Reason: "race"}, 0, false)
		return err
	})
}

func TestProtect(t *testing.T) {
	inTurn(t, "main", map[string]func(*servicetest.Estate){
		"GroupIsHeldBeforeItsRemovalIsQueuedAndRefusedAfterwards": groupIsHeldBeforeItsRemovalIsQueuedAndRefusedAfterwards,
		"WhatIsNotPartOfTheGroupKeepsItNot":                       whatIsNotPartOfTheGroupKeepsItNot,
		"IsTooLateOnceARemovalHasBegun":                           isTooLateOnceARemovalHasBegun,
		"WhatComesIntoAGroupThatGoesStays":                        whatComesIntoAGroupThatGoesStays,
		"OfTheTwoThatRaceOneWinsAndTheOtherKnows":                 ofTheTwoThatRaceOneWinsAndTheOtherKnows,
		"UserIsSkippedByTheWorkerAndRefusedByEveryJob":            userIsSkippedByTheWorkerAndRefusedByEveryJob,
		"PlaceholdersAreDeferredAndSayByWhom":                     placeholdersAreDeferredAndSayByWhom,
		"GroupsAreDeferredAndSayByWhom":                           groupsAreDeferredAndSayByWhom,
	})
}

// family are group 10 with 11 below it and 12 below that, each with a project, owned and marked by
// U. user 2 is a bot in 12, user 3 one in the project of 11.
func family(e *servicetest.Estate) *servicetest.Groups {
	e.T.Helper()
	g := e.Groups()
	g.User(2, `user_type = 6`)
	g.User(3, `user_type = 6`)
	g.Owned(10, 15)
	g.Group(11, 10, "sub")
	g.Group(12, 11, "subsub")
	g.Group(13, 10, "other")
	for i := range 3 {
		g.Project(i+1, 10+i, fmt.Sprintf("p%d", i))
		g.Content(i + 1)
	}
	g.Member(12, 2, 30)
	g.Exec("main", `INSERT INTO members (type, source_type, source_id, user_id, access_level, member_namespace_id, notification_level, created_at, updated_at)
		SELECT 'ProjectMember', 'Project', 2, 3, 30, p.project_namespace_id, 3, now(), now() FROM projects p WHERE p.id = 2`)
	return g
}

// spared are what may keep a family.
func spared() map[string]service.Protection {
	return map[string]service.Protection{
		"the group itself":             {Kind: "group", ID: 10},
		"a group below it":             {Kind: "group", ID: 11},
		"a group far below it":         {Kind: "group", ID: 12},
		"a bot of a group below it":    {Kind: "user", ID: 2},
		"a bot of a project inside it": {Kind: "user", ID: 3},
	}
}

func groupIsHeldBeforeItsRemovalIsQueuedAndRefusedAfterwards(e *servicetest.Estate) {
	t, g := e.T, family(e)
	before := g.State("main", servicetest.Written...)
	held := 0
	spare := func(do func()) {
		for name, spare := range spared() {
			t.Log(name)
			protect(t, g.Service, spare.Kind, spare.ID)
			do()
			assert.Must(g.Service.Unprotect(t.Context(), spare.Kind, spare.ID, "ann"))(t)
		}
	}
	spare(func() {
		held++
		g.Run("held_groups=1")
		g.WantJobs()
		g.WantLog(held, "group needs attention", "group_id=10", "reason=PROTECTED", "is protected by ann: evidence")
		g.WantSame("main", before, servicetest.Written...)
	})
	g.Run("scheduled_jobs=1")
	before = g.State("main", servicetest.Written...)
	spare(func() {
		g.Attempt("cancelled refused PROTECTED")
		g.WantSame("main", before, servicetest.Written...)
		g.Want("main", `SELECT errors[cardinality(errors)] ->> 'error' LIKE 'refused: PROTECTED: % is protected by ann: evidence' FROM maintenance.river_job`, "true")
		assert.Must(g.Service.RetryJob(t.Context(), 1))(t)
	})
}

func whatIsNotPartOfTheGroupKeepsItNot(e *servicetest.Estate) {
	t, g := e.T, family(e)
	g.Owned(20, 15)
	// Neither a group beside it, nor a human member, nor what has expired.
	protect(t, g.Service, "group", 20)
	protect(t, g.Service, "user", 1)
	protect(t, g.Service, "group", 12)
	g.Exec("main", `UPDATE maintenance.protected_targets SET until = clock_timestamp() WHERE id = 12`)
	g.Run("scheduled_jobs=1 held_groups=1")
	g.Attempts("completed succeeded")
	g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM namespaces WHERE type = 'Group'`, "20")
}

func isTooLateOnceARemovalHasBegun(e *servicetest.Estate) {
	t, g := e.T, family(e)
	g.QueueJob(10, 1)
	g.Gate("main", "project_repositories")
	g.Shut("main", servicetest.App)
	q := g.Queue()
	assert.NoError(t, q.Start(servicetest.OnlyKind{Service: g.Service, Kind: "destroy_group"}))
	defer func() { _ = q.Stop(context.Background()) }()
	g.AtGate("main", servicetest.App)
	for _, id := range []int64{10, 12, 13} {
		_, err := g.Service.Protect(t.Context(), service.Protection{Kind: "group", ID: id, Reason: "too late"}, 0, false)
		begun, ok := errors.AsType[*protection.DeletionStartedError](err)
		assert.That(t, ok && begun.ID == id, "group %d: %v", id, err)
	}
	// The bot's own deletion has not started.
	protect(t, g.Service, "user", 2)
	g.Lift("main", servicetest.App)
	g.Eventually("main", `SELECT state::text FROM maintenance.river_job WHERE kind = 'destroy_group'`, "completed")
	g.Work(g.Service, "delete_user")
	g.Want("main", `SELECT string_agg(concat_ws(' ', args ->> 'user_id', state, nullif(metadata ->> 'reason', '')), ', ' ORDER BY args ->> 'user_id')
		FROM maintenance.river_job WHERE kind = 'delete_user'`, "2 cancelled PROTECTED, 3 completed")
	g.Want("main", `SELECT string_agg(concat_ws(' ', id, state), ', ' ORDER BY id) FROM users WHERE id IN (2, 3)`, "2 active, 3 blocked")
}

func whatComesIntoAGroupThatGoesStays(e *servicetest.Estate) {
	t, g := e.T, family(e)
	g.Owned(20, 15)
	g.Project(9, 20, "kept")
	protect(t, g.Service, "group", 20)
	g.Exec("main", `INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (10, 1)`)
	// A group that is moved below it.
	g.Exec("main", `UPDATE namespaces SET parent_id = 12 WHERE id = 20`)
	before := g.State("main", "projects", "members")
	g.QueueJob(10, 1)
	g.Attempt("retryable failed PROTECTED")
	g.WantSame("main", before, "projects", "members")
	g.Want("main", `SELECT count(*) FROM namespaces WHERE id IN (10, 11, 12, 20)`, "4")
	g.Exec("main", `UPDATE namespaces SET parent_id = NULL WHERE id = 20`)
	// The namespace of a project.
	protectedBefore(g.Estate, "group", 10002)
	g.Attempt("retryable failed PROTECTED")
	g.Want("main", `SELECT count(*) FROM namespaces WHERE id = 10002`, "1")
	g.Exec("main", `DELETE FROM maintenance.protected_targets WHERE id = 10002`)
	g.Attempts("completed succeeded")
	g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM namespaces WHERE type = 'Group'`, "20")
}

func ofTheTwoThatRaceOneWinsAndTheOtherKnows(e *servicetest.Estate) {
	t, g := e.T, e.Groups()
	for _, group := range []int{10, 20, 30, 40} {
		below := group + 1
		g.Owned(group, 15)
		g.Group(below, group, "sub")
		g.Project(group, below, "p")
		g.Content(group)
		g.QueueJob(group, 1)
		answer := protecting(g.Service, "group", int64(below))
		g.Work(g.Service, "destroy_group")
		err := <-answer
		_, late := errors.AsType[*protection.DeletionStartedError](err)
		both := fmt.Sprintf(`SELECT count(*) FROM namespaces WHERE id IN (%d, %d)`, group, below)
		switch kept := g.Value("main", fmt.Sprint(`SELECT count(*) FROM namespaces WHERE id = `, below)); {
		case err == nil && kept == "1":
			g.Want("main", both, "2")
		case err == nil:
			// It was gone before it was protected, which is allowed.
			g.Want("main", fmt.Sprint(`SELECT count(*) FROM maintenance.group_removals WHERE group_id = `, group), "0")
			g.Want("main", both, "0")
		case !late:
			t.Fatal(err)
		}
	}
}

func userIsSkippedByTheWorkerAndRefusedByEveryJob(e *servicetest.Estate) {
	t := e.T
	e.Tokens()
	e.Bots(1, 2, 3, 4)
	e.Alive(3)
	manages(e, 4)
	log := &servicetest.Buffer{}
	s := e.Service("", e.WithQueue, log.KeepAll)
	for _, id := range []int64{2, 3, 77} {
		protect(t, s, "user", id)
	}
	servicetest.WantCounts(t, servicetest.RunTokens(t, s), "examined_users=4 scheduled_jobs=1")
	e.Want("main", servicetest.QueuedUsers, "1")
	assert.Equal(t, len(log.Lines("user skipped")), 2, "lines for bots 2 and 4")
	dry := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: servicetest.InactiveTokens, DryRun: true}))(t)
	assert.That(t, fmt.Sprint(dry.Candidates) == "[{user 2 u2 hold PROTECTED: user 2"+byAnn+"} {user 4 u4 hold PROTECTED: user 77"+byAnn+throughManager+"}]", "%v", dry.Candidates)
	e.Exec("main", `DELETE FROM maintenance.river_job`)

	e.User(7, 0, 1)
	e.User(8, 15, 1)
	e.Bots(9)
	e.PersonalProjects(7, 701)
	for _, id := range []int64{7, 8, 9} {
		protect(t, s, "user", id)
	}
	before := e.State("main", servicetest.Written...)
	for _, args := range []jobqueue.Args{
		servicetest.Authorized(7), servicetest.Authorized(8), servicetest.Authorized(9),
		jobqueue.DeleteUser{UserID: 9, SkipAuthorization: true, Reason: jobqueue.TokenDeletionReason},
		jobqueue.DeletePlaceholderUser{PlaceholderUserID: 8},
	} {
		r := assert.Must(servicetest.Attempt(s, e.Running(args)))(t)
		assert.That(t, r.Outcome == job.Refused && r.Reason == "PROTECTED", "%+v: %+v", args, r)
	}
	e.WantSame("main", before, servicetest.Written...)
	assert.Must(s.Unprotect(t.Context(), "user", 9, "ann"))(t)
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(9)), servicetest.DeletionDone)
}

func TestProtect_Ghosts(t *testing.T) {
	inTurn(t, "all", map[string]func(*servicetest.Estate){
		"UserInTheQueueOfTheGhostMigrationIsPostponed": userInTheQueueOfTheGhostMigrationIsPostponed,
		"ARowThatIsHandedOverKeepsNobody":              aRowThatIsHandedOverKeepsNobody,
		"HandOverStopsAfterItsOnlyStatement":           func(e *servicetest.Estate) { handOverStops(e, false, 1) },
		"HandOverStopsAfterItsStatement":               func(e *servicetest.Estate) { handOverStops(e, false, 3000) },
		"DeletionStopsAfterItsStatement":               func(e *servicetest.Estate) { handOverStops(e, true, 3000) },
	})
}

// handOverStops protects a user while issues are moved or deleted.
func handOverStops(e *servicetest.Estate, hard bool, issues int) {
	e.T.Helper()
	t, g := e.T, e.Ghosts()
	g.Doomed(27)
	g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1`, hard)
	g.Fill("main", "issues", "author_id, closed_by_id, namespace_id", "27, 27, 101", issues)
	g.Gate("main", "issues")
	g.Shut("main", servicetest.App)
	s := g.Service()
	run := g.Begin(s)
	g.AtGate("main", servicetest.App)
	protect(t, s, "user", 27)
	g.Lift("main", servicetest.App)
	servicetest.WantState(t, servicetest.Ended(t, s, run.ID), "succeeded")
	g.WantLater(27, 30*time.Minute)
	g.WantLog(1, `"msg":"user kept`, `"user_id":27`, `"reason":"PROTECTED"`)
	// None if the statement at the gate ran into its time limit first.
	g.Want("main", `SELECT count(*) < 2 FROM maintenance.receipts r JOIN maintenance.protected_targets p ON r.at > p.since`, "true")
	if issues > 1 {
		g.Want("main", `SELECT count(*) > 0 FROM issues WHERE author_id = 27 OR closed_by_id = 27`, "true")
	}
}

// wantDeferred fails the test unless these are all that the worker defers, by number and by list.
func wantDeferred(t *testing.T, s *service.Service, worker string, due int64, want ...string) {
	t.Helper()
	st := assert.Must(s.Status(t.Context(), worker))(t)
	b := st[0].Backlog
	assert.That(t, b.Due == due && b.Deferred == int64(len(want)) && b.Pending == due+b.Deferred && b.Dead == 0,
		"%s: backlog %+v, want %d due and %d deferred", worker, b, due, len(want))
	list, err := s.Waiting(t.Context(), worker, false)
	var got []string
	for _, w := range list.Items {
		got = append(got, fmt.Sprintf("%d %s", w.ID, w.Reason))
	}
	slices.Sort(got)
	assert.That(t, err == nil && slices.Equal(got, want), "%s: deferred are %q, want %q; %v", worker, got, want, err)
}

// manages makes user 77, whom a foreign key deletes with the user.
func manages(e *servicetest.Estate, user int) {
	e.T.Helper()
	e.User(77, 0, 1)
	e.Exec("main", fmt.Sprintf(`ALTER TABLE users ADD COLUMN manager_id bigint REFERENCES users ON DELETE CASCADE; UPDATE users SET manager_id = %d WHERE id = 77`, user))
}

const throughManager = " (would be deleted through users.manager_id)"

const byAnn = " is protected by ann: evidence"

func placeholdersAreDeferredAndSayByWhom(e *servicetest.Estate) {
	t := e.T
	e.Placeholders()
	e.Detail(1, 0, `NULL`)
	e.Detail(2, 0, `NULL`)
	e.Detail(3, 3, `now() - interval '1 day'`)
	e.Detail(4, 1, `now() - interval '1 day'`)
	e.Detail(5, 2, `now() - interval '9 days'`)
	e.Detail(6, 0, `NULL`)
	manages(e, 6)
	s := e.Service("", e.WithQueue)
	for _, id := range []int64{2, 3, 5, 77} {
		protect(t, s, "user", id)
	}
	wantDeferred(t, s, servicetest.PlaceholderUsers, 1, "2 PROTECTED: user 2"+byAnn, "3 PROTECTED: user 3"+byAnn,
		"4 1 attempt", "5 PROTECTED: user 5"+byAnn, "6 PROTECTED: user 77"+byAnn+throughManager)
	for _, dry := range []bool{true, false} {
		servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, dry), "scheduled_jobs=1")
	}
	e.Want("main", `SELECT string_agg(deletion_attempts::text, ' ' ORDER BY id) FROM import_placeholder_user_details`, "1 0 3 1 2 0")
}

func userInTheQueueOfTheGhostMigrationIsPostponed(e *servicetest.Estate) {
	t, g := e.T, e.Ghosts()
	g.Doomed(27, 28)
	s := g.Service()
	protect(t, s, "user", 27)
	r := g.Run(s, "migrated_users=1 deferred_users=1 deleted_rows=4")
	assert.That(t, r.Reason == "1 protected user kept" && !r.OverLimit, "reason %q, over_limit %t", r.Reason, r.OverLimit)
	g.WantLater(27, 30*time.Minute)
	g.WantLog(1, `"msg":"user kept`, `"user_id":27`, `"reason":"PROTECTED"`, "is protected by ann: evidence")
	g.Want("main", `SELECT string_agg(id::text, ' ') FROM users WHERE id IN (27, 28)`, "27")
	wantDeferred(t, s, servicetest.GhostUsers, 0, "27 PROTECTED: user 27"+byAnn)

	// A namespace that is protected as a group stays with its user.
	g.Doomed(29)
	protectedBefore(g.Estate, "group", 29)
	g.Runs(s, false)
	g.Want("main", `SELECT concat_ws(' ', (SELECT count(*) FROM users WHERE id = 29), (SELECT count(*) FROM namespaces WHERE id = 29))`, "1 1")

	// In the instant that decides: the migration asks again after it has waited for the lock.
	g.Exec("main", `DELETE FROM ghost_user_migrations`)
	g.Doomed(30)
	g.Held(`SELECT FROM users WHERE id = 30 FOR SHARE; `+protectedSQL("user", 30), 1)
	g.Runs(s, false)
	g.Want("main", `SELECT count(*) FROM users WHERE id = 30`, "1")
	// The application may delete the user meanwhile, and insert it again: the protection stays.
	g.Exec("main", `DELETE FROM routes WHERE source_id = 30; DELETE FROM namespaces WHERE id = 30;
		DELETE FROM ghost_user_migrations; DELETE FROM users WHERE id = 30`)
	g.Doomed(30)
	g.Run(s, "deferred_users=1")
	g.Want("main", `SELECT count(*) FROM users WHERE id = 30`, "1")
}

func groupsAreDeferredAndSayByWhom(e *servicetest.Estate) {
	t, g := e.T, family(e)
	g.Owned(40, 15)
	g.Owned(50, 3)
	g.Exec("main", `INSERT INTO namespaces (id, type, owner_id, name, path, organization_id, created_at, updated_at)
		SELECT 77, 'User', 1, 'u', 'u', organization_id, now(), now() FROM namespaces WHERE id = 10`)
	for id, want := range map[int64]string{
		77:    "id: namespace 77 belongs to user 1: protect user 1",
		10002: "id: namespace 10002 belongs to a project: protect the group of the project",
	} {
		_, err := g.Service.Protect(t.Context(), service.Protection{Kind: "group", ID: id, Reason: "r"}, 0, false)
		wantInvalid(t, want, err, "id")
		servicetest.WantError(t, err, want)
	}
	protect(t, g.Service, "group", 4711)
	protect(t, g.Service, "group", 12)
	g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM maintenance.protected_targets`, "12 4711")
	wantDeferred(t, g.Service, servicetest.AdjournedGroups, 1, "10 PROTECTED: group 12"+byAnn, "50 in its grace period")
	g.Run("held_groups=1 scheduled_jobs=1")
	// A cancellation holds also what has started.
	assert.Must(g.Service.CancelJob(t.Context(), 1, "stop", "ann"))(t)
	g.Exec("main", `INSERT INTO maintenance.group_removals (group_id) VALUES (40)`)
	wantDeferred(t, g.Service, servicetest.AdjournedGroups, 0, "10 PROTECTED: group 12"+byAnn,
		"40 CANCELLED: job 1 was cancelled by ann: stop; to undo the cancellation, run `caretaker jobs retry 1`", "50 in its grace period")
}

func aRowThatIsHandedOverKeepsNobody(e *servicetest.Estate) {
	t, g := e.T, e.Ghosts()
	g.Doomed(27)
	g.User(28, 0)
	g.Exec("main", `ALTER TABLE issues DROP CONSTRAINT issues_author_id_fkey, ADD FOREIGN KEY (author_id) REFERENCES users ON DELETE CASCADE; UPDATE issues SET author_id = 27;
		ALTER TABLE users ADD COLUMN issue_id bigint REFERENCES issues ON DELETE CASCADE; UPDATE users SET issue_id = 1 WHERE id = 28`)
	s := g.Service()
	protect(t, s, "user", 28)
	g.Run(s, "migrated_users=1 moved_rows=1 deleted_rows=4")
	g.Want("main", `SELECT author_id FROM issues`, "5")
}

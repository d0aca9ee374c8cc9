package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// protect protects a target for good.
func protect(t *testing.T, s *service.Service, kind string, id int64) {
	t.Helper()
	p := service.Protection{Kind: kind, ID: id, Reason: "evidence", By: "ann"}
	servicetest.Must(s.Protect(t.Context(), p, 0))(t)
}

// family are group 10 with 11 below it and 12 below that, each with a project, owned and marked by U; user 2 is a bot in
// 12, user 3 one in the project of 11.
func family(t *testing.T) *servicetest.Groups {
	t.Helper()
	g := servicetest.NewGroups(t)
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

func TestProtect_GroupIsHeldBeforeItsRemovalIsQueuedAndRefusedAfterwards(t *testing.T) {
	t.Parallel()
	g := family(t)
	before := g.State("main", servicetest.Written...)
	held := 0
	spare := func(do func()) {
		for name, spare := range spared() {
			t.Log(name)
			protect(t, g.Service, spare.Kind, spare.ID)
			do()
			servicetest.Must(g.Service.Unprotect(t.Context(), spare.Kind, spare.ID, "ann"))(t)
		}
	}
	spare(func() {
		held++
		g.Run("held_groups=1")
		g.WantJobs()
		g.WantLog(held, "Group held", "group_id=10", "reason=PROTECTED", "is protected by ann: evidence")
		g.WantSame("main", before, servicetest.Written...)
	})
	g.Run("scheduled_jobs=1")
	before = g.State("main", servicetest.Written...)
	spare(func() {
		g.Attempt("cancelled refused PROTECTED")
		g.WantSame("main", before, servicetest.Written...)
		g.Want("main", `SELECT errors[cardinality(errors)] ->> 'error' LIKE 'refused: PROTECTED: % is protected by ann: evidence' FROM maintenance.river_job`, "true")
		servicetest.Must(g.Service.RetryJob(t.Context(), 1))(t)
	})
}

func TestProtect_WhatIsNotPartOfTheGroupKeepsItNot(t *testing.T) {
	t.Parallel()
	g := family(t)
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

func TestProtect_IsTooLateOnceARemovalHasBegun(t *testing.T) {
	t.Parallel()
	g := family(t)
	g.QueueJob(10, 1)
	g.Gate("main", "project_repositories")
	g.Shut("main", servicetest.App)
	q := g.Queue()
	servicetest.NoError(t, q.Start(servicetest.OnlyKind{Service: g.Service, Kind: "destroy_group"}))
	defer func() { _ = q.Stop(context.Background()) }()
	g.AtGate("main", servicetest.App)
	for _, id := range []int64{10, 12, 13} {
		_, err := g.Service.Protect(t.Context(), service.Protection{Kind: "group", ID: id, Reason: "too late"}, 0)
		if begun, ok := errors.AsType[*service.DeletionBegunError](err); !ok || begun.ID != id {
			t.Errorf("group %d: %v", id, err)
		}
	}
	// The bot's own deletion has not begun.
	protect(t, g.Service, "user", 2)
	g.Lift("main", servicetest.App)
	g.Eventually("main", `SELECT state::text FROM maintenance.river_job WHERE kind = 'destroy_group'`, "completed")
	g.Work(g.Service, "delete_user")
	g.Want("main", `SELECT string_agg(concat_ws(' ', args ->> 'user_id', state, nullif(metadata ->> 'reason', '')), ', ' ORDER BY args ->> 'user_id')
		FROM maintenance.river_job WHERE kind = 'delete_user'`, "2 cancelled PROTECTED, 3 completed")
	g.Want("main", `SELECT string_agg(concat_ws(' ', id, state), ', ' ORDER BY id) FROM users WHERE id IN (2, 3)`, "2 active, 3 blocked")
}

func TestProtect_GroupThatIsMovedBelowOneThatGoesStays(t *testing.T) {
	t.Parallel()
	g := family(t)
	g.Owned(20, 15)
	g.Project(9, 20, "kept")
	protect(t, g.Service, "group", 20)
	g.Exec("main", `INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (10, 1)`)
	g.Exec("main", `UPDATE namespaces SET parent_id = 12 WHERE id = 20`)
	before := g.State("main", "projects", "members")
	g.QueueJob(10, 1)
	g.Attempt("retryable failed PROTECTED")
	g.WantSame("main", before, "projects", "members")
	g.Want("main", `SELECT count(*) FROM namespaces WHERE id IN (10, 11, 12, 20)`, "4")
	g.Exec("main", `UPDATE namespaces SET parent_id = NULL WHERE id = 20`)
	g.Attempts("completed succeeded")
	g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM namespaces WHERE type = 'Group'`, "20")
}

func TestProtect_OfTheTwoThatRaceOneWinsAndTheOtherKnows(t *testing.T) {
	t.Parallel()
	for range 4 {
		g := family(t)
		g.QueueJob(10, 1)
		answer := make(chan error, 1)
		go func() {
			_, err := g.Service.Protect(context.Background(), service.Protection{Kind: "group", ID: 12, Reason: "race"}, 0)
			answer <- err
		}()
		g.Work(g.Service, "destroy_group")
		err := <-answer
		_, late := errors.AsType[*service.DeletionBegunError](err)
		switch kept := g.Value("main", `SELECT count(*) FROM namespaces WHERE id = 12`); {
		case err == nil && kept == "1":
			g.Want("main", `SELECT count(*) FROM namespaces WHERE id IN (10, 11, 12, 13)`, "4")
		case err == nil:
			// It was gone before it was protected, which is allowed.
			g.Want("main", `SELECT count(*) FROM maintenance.group_removals`, "0")
			g.Want("main", `SELECT count(*) FROM namespaces WHERE id IN (10, 11, 12, 13)`, "0")
		case !late:
			t.Fatal(err)
		}
	}
}

func TestProtect_UserIsRefusedByEveryJob(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.User(8, 15, 1)
	e.Bots(9)
	e.PersonalProjects(7, 701)
	s := e.Service("", e.WithQueue)
	for _, id := range []int64{7, 8, 9} {
		protect(t, s, "user", id)
	}
	before := e.State("main", servicetest.Written...)
	for _, args := range []repo.JobArgs{
		servicetest.Authorized(7), servicetest.Authorized(8), servicetest.Authorized(9),
		repo.DeleteUser{UserID: 9, SkipAuthorization: true, Reason: repo.TokenDeletionReason},
		repo.DeletePlaceholderUser{PlaceholderUserID: 8},
	} {
		r, err := servicetest.Attempt(s, e.Running(args))
		if err != nil || r.Outcome != service.JobRefused || r.Reason != "PROTECTED" {
			t.Errorf("%+v: %+v, %v", args, r, err)
		}
	}
	e.WantSame("main", before, servicetest.Written...)
	servicetest.Must(s.Unprotect(t.Context(), "user", 9, "ann"))(t)
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(9)), servicetest.DeletionDone)
}

func TestProtect_BotIsPassedOver(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.Bots(1, 2, 3)
	e.Alive(3)
	log := &servicetest.LogBook{}
	s := e.Service("", e.WithQueue, log.KeepAll)
	protect(t, s, "user", 2)
	protect(t, s, "user", 3)
	servicetest.WantCounts(t, servicetest.RunTokens(t, s), "examined_users=3 scheduled_jobs=1")
	e.Want("main", servicetest.QueuedUsers, "1")
	if lines := log.Lines("user passed over"); len(lines) != 1 {
		t.Errorf("want bot 2 alone: %q", lines)
	}
}

func TestProtect_PlaceholderIsNotClaimed(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	for id := range 3 {
		e.Detail(id+1, 0, "NULL")
	}
	s := e.Service("", e.WithQueue)
	protect(t, s, "user", 2)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, true), "scheduled_jobs=2")
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=2")
	e.Want("main", `SELECT string_agg(deletion_attempts::text, ' ' ORDER BY id) FROM import_placeholder_user_details`, "1 0 1")
}

func TestProtect_UserInTheQueueOfTheGhostMigrationIsPostponed(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(27, 28)
	s := g.Service()
	protect(t, s, "user", 27)
	r := g.Run(s, "migrated_users=1 deferred_users=1 deleted_rows=4")
	if r.Reason != "1 user kept, who is protected" || r.OverLimit {
		t.Errorf("reason %q, over_limit %t", r.Reason, r.OverLimit)
	}
	g.WantLater(27, 30*time.Minute)
	g.WantLog(1, `"msg":"user kept`, `"user_id":27`, `"reason":"PROTECTED"`, "is protected by ann: evidence")
	g.Want("main", `SELECT string_agg(id::text, ' ') FROM users WHERE id IN (27, 28)`, "27")
}

// protectAtWork begins a run, protects user 27 while a statement on issues is at work, and waits for
// the run's end.
func protectAtWork(t *testing.T, g *servicetest.Ghosts) {
	t.Helper()
	g.Gate("main", "issues")
	g.Shut("main", servicetest.App)
	s := g.Service()
	run := g.Begin(s)
	g.AtGate("main", servicetest.App)
	protect(t, s, "user", 27)
	g.Lift("main", servicetest.App)
	servicetest.WantState(t, servicetest.Ended(t, s, run.ID), "succeeded")
}

func TestProtect_UserWhoseHandOverIsAtWorkStays(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(27)
	g.SlowIssues(27, 1)
	protectAtWork(t, g)
	g.Want("main", `SELECT count(*) FROM users WHERE id = 27`, "1")
	g.WantLater(27, 30*time.Minute)
}

func TestProtect_HandOverStopsAfterItsStatement(t *testing.T) {
	t.Parallel()
	for _, hard := range []bool{false, true} {
		t.Run(fmt.Sprint("hard_delete ", hard), func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGhosts(t)
			g.Doomed(27)
			g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1`, hard)
			g.Fill("main", "issues", "author_id, closed_by_id, namespace_id", "27, 27, 101", 3000)
			protectAtWork(t, g)
			g.WantLog(1, `"msg":"user kept`, `"user_id":27`, `"reason":"PROTECTED"`)
			// None if the statement at the gate ran into its time limit first.
			g.Want("main", `SELECT count(*) < 2 FROM maintenance.receipts r JOIN maintenance.protected_targets p ON r.at > p.since`, "true")
			g.Want("main", `SELECT count(*) > 0 FROM issues WHERE author_id = 27 OR closed_by_id = 27`, "true")
		})
	}
}

// tenants are users 1 and 2 of tenant 1 and user 3 of tenant 2. Both tenants are gone, and their users are to go with them.
func tenants(t *testing.T) (*servicetest.Estate, *service.Service) {
	t.Helper()
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `CREATE TABLE tenants (id bigint PRIMARY KEY)`)
	e.Exec("main", `ALTER TABLE users ADD COLUMN tenant_id bigint; CREATE INDEX ON users (tenant_id)`)
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	for id := range 3 {
		e.User(id+1, 0, 1)
	}
	e.Exec("main", `UPDATE users SET tenant_id = 1 + (id > 2)::int`)
	e.Deleted("main", "tenants", 1, 2)
	return e, e.Service("users:\n  - table: tenants\n    column: tenant_id\n    on_delete: async_delete\n")
}

// The key with a protected row is held as a whole, and the others are cleaned.
func TestProtect_LooseForeignKeysHoldTheKeyOfAProtectedRow(t *testing.T) {
	t.Parallel()
	e, s := tenants(t)
	protect(t, s, "user", 2)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, "succeeded")
	if want := "1 record held, PROTECTED: user 2 is protected by"; !strings.HasPrefix(r.Reason, want) {
		t.Errorf("reason %q, want %q", r.Reason, want)
	}
	e.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM users WHERE tenant_id IS NOT NULL`, "1 2")
	e.Want("main", `SELECT string_agg(primary_key_value::text, ' ') FROM loose_foreign_keys_deleted_records
		WHERE fully_qualified_table_name = 'public.tenants'`, "1")
}

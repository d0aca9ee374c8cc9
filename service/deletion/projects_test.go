package deletion_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// remains is what is left of projects: the ids of projects, issues and repositories, and the number of notes.
const remains = `SELECT concat_ws(' ', (SELECT string_agg(id::text, ',' ORDER BY id) FROM projects), (SELECT string_agg(id::text, ',' ORDER BY id) FROM issues),
	(SELECT string_agg(project_id::text, ',' ORDER BY project_id) FROM project_repositories), (SELECT count(*) FROM notes))`

func TestDeleteUser_PersonalProjectsGoFirst(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
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
	if got := e.UserRows(7); got != "blocked 0 0 101,f,0" {
		t.Error(got)
	}
	if got := e.UserRows(8); got != "active 1 1" {
		t.Error(got)
	}
	e.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM namespaces`, "70 80 10801")
	e.Want("main", `SELECT state || ' ' || (metadata ->> 'outcome') FROM maintenance.river_job WHERE args @> '{"user_id": 7}'`, servicetest.DeletionDone)
	e.Want("main", `SELECT args FROM maintenance.river_job WHERE args @> '{"user_id": 9}'`,
		`{"reason": "Group was deleted", "user_id": 9, "deleted_by_id": 101, "skip_authorization": true}`)
	for _, path := range []string{"@hashed/701", "@hashed/702"} {
		if !strings.Contains(log.String(), path) {
			t.Errorf("%s is not logged as left outside: %s", path, log)
		}
	}
}

func TestDeleteUser_ProjectsInGroupsAreNotPersonal(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.PersonalProjects(7, 701)
	e.Exec("main", `UPDATE namespaces SET type = 'Group' WHERE id = 70`)
	servicetest.WantDeletion(t, e.Deletion(e.Service("", e.WithQueue), servicetest.Authorized(7)), servicetest.DeletionDone)
	e.Want("main", remains, "701 701 701 1")
}

func TestDeleteUser_NothingPersonalGoesIfItIsRefused(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.PersonalProjects(7, 701)
	e.Group(50, 0)
	e.Member(7, 50)
	servicetest.WantDeletion(t, e.Deletion(e.Service("", e.WithQueue), servicetest.Authorized(7)), servicetest.DeletionRefused+"SOLE_OWNER_OF_GROUP")
	e.Want("main", remains, "701 701 701 1")
	if got := e.UserRows(7); got != "active 2 1" {
		t.Error(got)
	}
}

func TestDeleteUser_AttemptWhoseTimeIsOverSnoozesAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.PersonalProjects(7, 701)
	s := e.Service("", e.WithQueue)
	over := make(chan struct{})
	close(over)
	r, err := e.AttemptOf(s, servicetest.Authorized(7), over)
	if err != nil || r.Snooze <= 0 || r.Reason != "SHUTDOWN" {
		t.Errorf("%+v, %v, want a snooze", r, err)
	}
	if got := e.UserRows(7); !strings.HasPrefix(got, "blocked ") || strings.HasSuffix(got, ",0") {
		t.Error(got)
	}
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
	servicetest.WantDeletion(t, e.DeletionAgain(s), servicetest.DeletionDone)
	e.Want("main", remains, "0")
	if got := e.UserRows(7); got != "blocked 0 0 f,0" {
		t.Error(got)
	}
}

func TestDeleteUser_TwoAttemptsDoNotRemoveProjectsAtOnce(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.PersonalProjects(7, 701)
	release := e.Other(`SELECT pg_advisory_xact_lock(-7)`)
	s := e.Service("", e.WithQueue)
	r, err := e.AttemptOf(s, servicetest.Authorized(7), nil)
	if err != nil || r.Snooze.Seconds() != 30 || r.Reason != "TARGET_BUSY" {
		t.Errorf("%+v, %v, want a snooze of 30 s", r, err)
	}
	release()
	e.Exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
	servicetest.WantDeletion(t, e.DeletionAgain(s), servicetest.DeletionDone)
}

func TestFault_DeleteUser_KilledWhileItRemovesProjectsGoesOn(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	e.PersonalProjects(7, 701, 702)
	e.Gate("main", "projects", "OLD.id = 702")
	e.Shut("main", "doomed")
	e.Insert(servicetest.JobOf(servicetest.Authorized(7)))
	p := e.Start("doomed", "", func(o *servicetest.Order) { o.Definitions, o.Database, o.Jobs = "", "", "delete_user" })
	e.AtGate("main", "doomed")
	p.Kill()
	e.DoomedGone()
	e.Want("main", remains, "702 0")
	e.Want("main", `SELECT state || (SELECT count(*) FROM ghost_user_migrations) FROM users WHERE id = 7`, "blocked0")
	s := e.Service("", e.WithQueue)
	e.Rescue()
	servicetest.WantDeletion(t, e.DeletionAgain(s), servicetest.DeletionDone)
	e.Want("main", remains, "0")
}

package service_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// personalProjects gives a user a personal namespace, 10 × its id, with projects of the ids given, each with an issue, a
// note on it, a repository and the user as a member.
func (e *estate) personalProjects(user int, projects ...int) {
	e.t.Helper()
	namespace := 10 * user
	e.exec("main", `INSERT INTO namespaces (id, name, path, type, owner_id, organization_id) VALUES ($1, 'u' || $1::bigint, 'u' || $1::bigint, 'User', $2, 1)`, namespace, user)
	for _, project := range projects {
		for _, sql := range []string{
			`INSERT INTO namespaces (id, name, path, type, parent_id, organization_id) VALUES (10000 + $1::bigint, 'p' || $1::bigint, 'p' || $1::bigint, 'Project', $2, 1)`,
			`INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id) VALUES ($1::bigint, 'p', 'p', $2, 10000 + $1::bigint, 1)`,
			`INSERT INTO issues (id, project_id, namespace_id, author_id, iid) VALUES ($1::bigint, $1::bigint, 10000 + $1::bigint, $3, 1)`,
			`INSERT INTO notes (note, noteable_type, noteable_id, author_id, project_id) VALUES ('n', 'Issue', $1::bigint, $3, $1::bigint)`,
			`INSERT INTO project_repositories (project_id, disk_path) VALUES ($1::bigint, '@hashed/' || $1::bigint)`,
			`INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id) VALUES ($3, $1::bigint, 'Project', 'ProjectMember', 50, 10000 + $1::bigint)`,
			`INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES ($3, $1::bigint, 50)`,
		} {
			sql = strings.NewReplacer("$2", fmt.Sprint(namespace), "$3", fmt.Sprint(user)).Replace(sql)
			e.exec("main", sql, project)
		}
	}
}

// remains is what is left of projects: the ids of projects, issues and repositories, and the number of notes.
const remains = `SELECT concat_ws(' ', (SELECT string_agg(id::text, ',' ORDER BY id) FROM projects), (SELECT string_agg(id::text, ',' ORDER BY id) FROM issues),
	(SELECT string_agg(project_id::text, ',' ORDER BY project_id) FROM project_repositories), (SELECT count(*) FROM notes))`

func TestDeleteUser_PersonalProjectsGoFirst(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.user(8, 0, 1)
	e.bots(9)
	e.personalProjects(7, 701, 702)
	e.personalProjects(8, 801)
	e.exec("main", `INSERT INTO members (user_id, source_id, source_type, type, access_level, member_namespace_id) VALUES (9, 701, 'Project', 'ProjectMember', 30, 10701)`)
	log := &lockedBuffer{}
	args := authorized(7)
	args.DeletedByID = new(int64(101))
	e.insert(jobOf(args))
	e.work(e.service("", e.withQueue, logTo(log)), "delete_user")
	e.want("main", remains, "801 801 801 1")
	if got := e.userRows(7); got != "blocked 0 0 101,f,0" {
		t.Error(got)
	}
	if got := e.userRows(8); got != "active 1 1" {
		t.Error(got)
	}
	e.want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM namespaces`, "70 80 10801")
	e.want("main", `SELECT state || ' ' || (metadata ->> 'outcome') FROM maintenance.river_job WHERE args @> '{"user_id": 7}'`, done)
	e.want("main", `SELECT args FROM maintenance.river_job WHERE args @> '{"user_id": 9}'`,
		`{"reason": "Group was deleted", "user_id": 9, "deleted_by_id": 101, "skip_authorization": true}`)
	for _, path := range []string{"@hashed/701", "@hashed/702"} {
		if !strings.Contains(log.String(), path) {
			t.Errorf("%s is not logged as left outside: %s", path, log)
		}
	}
}

func TestDeleteUser_ProjectsInGroupsAreNotPersonal(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.personalProjects(7, 701)
	e.exec("main", `UPDATE namespaces SET type = 'Group' WHERE id = 70`)
	wantDeletion(t, e.deletion(e.service("", e.withQueue), authorized(7)), done)
	e.want("main", remains, "701 701 701 1")
}

func TestDeleteUser_NothingPersonalGoesIfItIsRefused(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.personalProjects(7, 701)
	e.group(50, 0)
	e.member(7, 50)
	wantDeletion(t, e.deletion(e.service("", e.withQueue), authorized(7)), refused+"SOLE_OWNER_OF_GROUP")
	e.want("main", remains, "701 701 701 1")
	if got := e.userRows(7); got != "active 2 1" {
		t.Error(got)
	}
}

// attemptOf does an attempt of a job delete_user without the queue.
func (e *estate) attemptOf(s *service.Service, args repo.DeleteUser, stopping chan struct{}) (service.JobResult, error) {
	e.t.Helper()
	r := e.running(args)
	r.Stopping = stopping
	return s.WorkJob(context.Background(), r)
}

func TestDeleteUser_AttemptWhoseTimeIsOverSnoozesAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.personalProjects(7, 701)
	s := e.service("", e.withQueue)
	over := make(chan struct{})
	close(over)
	r, err := e.attemptOf(s, authorized(7), over)
	if err != nil || r.Snooze <= 0 || r.Reason != "SHUTDOWN" {
		t.Errorf("%+v, %v, want a snooze", r, err)
	}
	if got := e.userRows(7); !strings.HasPrefix(got, "blocked ") || strings.HasSuffix(got, ",0") {
		t.Error(got)
	}
	e.exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
	wantDeletion(t, e.deletionAgain(s), done)
	e.want("main", remains, "0")
	if got := e.userRows(7); got != "blocked 0 0 f,0" {
		t.Error(got)
	}
}

func TestDeleteUser_TwoAttemptsDoNotRemoveProjectsAtOnce(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.personalProjects(7, 701)
	release := e.other(`SELECT pg_advisory_xact_lock(-7)`)
	s := e.service("", e.withQueue)
	r, err := e.attemptOf(s, authorized(7), nil)
	if err != nil || r.Snooze.Seconds() != 30 || r.Reason != "TARGET_BUSY" {
		t.Errorf("%+v, %v, want a snooze of 30 s", r, err)
	}
	release()
	e.exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
	wantDeletion(t, e.deletionAgain(s), done)
}

func TestDeleteUser_KilledWhileItRemovesProjectsGoesOn(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.user(7, 0, 1)
	e.personalProjects(7, 701, 702)
	e.gate("main", "projects", "OLD.id = 702")
	e.shut("main", "doomed")
	e.insert(jobOf(authorized(7)))
	p := e.start("doomed", "", func(o *processOrder) { o.Definitions, o.Database, o.Jobs = "", "", "delete_user" })
	e.atGate("main", "doomed")
	p.kill()
	e.doomed()
	e.want("main", remains, "702 0")
	e.want("main", `SELECT state || (SELECT count(*) FROM ghost_user_migrations) FROM users WHERE id = 7`, "blocked0")
	s := e.service("", e.withQueue)
	e.rescue()
	wantDeletion(t, e.deletionAgain(s), done)
	e.want("main", remains, "0")
}

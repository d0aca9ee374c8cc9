package placeholderuser_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDeletePlaceholderUser_LooksAtTheUserAndItsReferences(t *testing.T) {
	t.Parallel()
	const refused, queued = "delete_placeholder_user cancelled STILL_REFERENCED", "delete_placeholder_user completed, delete_user available"
	e := servicetest.NewPlaceholders(t)
	e.Detail(1, 0, `NULL`, 0)
	var logs servicetest.Buffer
	s := e.Service("", e.WithQueue, servicetest.LogTo(&logs))
	for i, c := range []struct {
		userType  int
		reference string
		want      string
		// named is what the warning says, "" for no warning.
		named string
	}{
		{15, ``, queued, ""},
		{17, ``, "delete_placeholder_user completed NOT_A_PLACEHOLDER", ""},
		{0, ``, "delete_placeholder_user completed NOT_A_PLACEHOLDER", ""},
		{15, `INSERT INTO notes (noteable_type, author_id, organization_id)
			VALUES ('Issue', {user}, 1)`, refused, `"table":"notes","column":"author_id"`},
		{15, `INSERT INTO notes (noteable_type, resolved_by_id, organization_id) VALUES ('Issue', {user}, 1)`, queued, ""},
		{15, `INSERT INTO notes (noteable_type, updated_by_id, organization_id) VALUES ('Issue', {user}, 1)`, queued, ""},
		{15, `INSERT INTO issues (last_edited_by_id, namespace_id) VALUES ({user}, 1)`, refused, `"table":"issues","column":"last_edited_by_id"`},
		{15, `INSERT INTO award_emoji (user_id) VALUES ({user})`, refused, `"table":"award_emoji","column":"user_id"`},
		{15, `INSERT INTO events (author_id, action, group_id, created_at, updated_at) VALUES ({user}, 1, 1, now(), now())`, queued, ""},
		{15, `INSERT INTO epics (group_id, iid, title, author_id, updated_by_id) VALUES (1, 1, '', 1, {user})`, queued, ""},
		{15, `INSERT INTO epics (group_id, iid, title, author_id, assignee_id)
			VALUES (1, 2, '', 1, {user})`, refused, `"table":"epics","column":"assignee_id"`},
		// Optional tables may be missing.
		{15, `DROP TABLE epics, lists CASCADE`, queued, ""},
	} {
		user := 10 + i
		e.Detail(user, 0, `NULL`, c.userType)
		e.Exec("main", strings.ReplaceAll(c.reference, "{user}", fmt.Sprint(user)))
		logs.Reset()
		e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: int64(user)}})
		e.Work(s, "delete_placeholder_user")
		e.Want("main", servicetest.StateOfJobs, c.want)
		warned := strings.Contains(logs.String(), "Placeholder user is still referenced in other tables")
		if warned != (c.named != "") || !strings.Contains(logs.String(), c.named) {
			t.Errorf("%s: want a warning with %q, log: %s", c.reference, c.named, logs.String())
		}
		e.Exec("main", `DELETE FROM maintenance.river_job`)
	}
}

func TestDeletePlaceholderUser_ReferencesMayBeNarrowerThanTheID(t *testing.T) {
	t.Parallel()
	const wide = 3_000_000_000
	e := servicetest.NewPlaceholders(t)
	e.Exec("main", devdb.NarrowKeys("author_id"))
	e.Detail(wide, 0, `NULL`)
	e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: wide}})
	e.Work(e.Service("", e.WithQueue), "delete_placeholder_user")
	e.Want("main", servicetest.StateOfJobs, "delete_placeholder_user completed, delete_user available")
}

func TestDeletePlaceholderUser_QueuesTheUserWithItselfAsActor(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	e.Detail(7, 0, `NULL`)
	var logs servicetest.Buffer
	s := e.Service("", e.WithQueue, servicetest.LogTo(&logs))
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=1")
	e.Work(s, "delete_placeholder_user")
	e.Want("main", `SELECT args FROM maintenance.river_job WHERE kind = 'delete_user'`,
		`{"reason": "Placeholder user is no longer referenced", "user_id": 7, "deleted_by_id": 7, "skip_authorization": true}`)
	e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 7}})
	e.Work(s, "delete_placeholder_user")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'delete_user'`, "1")
	// An unknown user is skipped quietly.
	logs.Reset()
	e.Exec("main", `DELETE FROM maintenance.river_job`)
	e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 99}})
	e.Work(s, "delete_placeholder_user")
	e.Want("main", servicetest.StateOfJobs, "delete_placeholder_user completed TARGET_GONE")
	assert.That(t, logs.String() == "", "log: %s", logs.String())
}

func TestDeletePlaceholderUser_LooksInEveryDatabase(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "all", "main", "ci", "sec")
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	e.Detail(7, 0, `NULL`)
	e.Exec("main", `INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 7)`)
	e.Exec("ci", `INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 7)`)
	s := e.Service("", e.WithQueue)
	attempt := func(user int64, want string) {
		t.Helper()
		e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: user}})
		e.Work(s, "delete_placeholder_user")
		e.Want("main", `SELECT coalesce(nullif(metadata ->> 'reason', ''), state::text) FROM maintenance.river_job WHERE kind = 'delete_placeholder_user' ORDER BY id DESC LIMIT 1`, want)
	}
	e.Exec("ci", `INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 7)`)
	attempt(7, "STILL_REFERENCED")
	e.Exec("ci", `DELETE FROM ci_pipeline_schedules`)
	e.Exec("sec", `INSERT INTO vulnerabilities (project_id, author_id, title, resolved_by_id, created_at, updated_at) VALUES (1, 1, '', 7, now(), now())`)
	attempt(7, "STILL_REFERENCED")
	e.Exec("sec", `UPDATE vulnerabilities SET resolved_by_id = NULL, dismissed_by_id = 7`)
	// Main's own copy of a table of ci does not count while ci is configured.
	attempt(7, "completed")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'delete_user'`, "1")
	// A table that its database lacks is looked for in main.
	for i, reference := range []string{
		`INSERT INTO vulnerabilities (project_id, author_id, title, created_at, updated_at) VALUES (1, 8, '', now(), now())`,
		`INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 9)`,
	} {
		e.Detail(8+i, 0, `NULL`)
		e.Exec("main", reference)
		for _, name := range []string{"ci", "sec"} {
			e.Exec(name, `DROP TABLE IF EXISTS `+strings.Fields(reference)[2]+` CASCADE`)
		}
		attempt(int64(8+i), "STILL_REFERENCED")
	}
}

func TestDeletePlaceholderUser_DatabaseThatIsDownIsNoAnswer(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "all", "main", "ci")
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	e.Detail(7, 0, `NULL`)
	s := e.Service("", e.WithQueue)
	e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 7}})
	e.Open[1].Close()
	e.Work(s, "delete_placeholder_user")
	// One second after its first attempt River takes it for available, not retryable.
	e.Want("main", `SELECT string_agg(kind || ' ' || (state IN ('available', 'retryable')) || ' ' || attempt || ' ' || cardinality(errors), ', ')
		FROM maintenance.river_job`, "delete_placeholder_user true 1 1")
	assert.Must(s.Status(context.Background(), servicetest.PlaceholderUsers))(t)
}

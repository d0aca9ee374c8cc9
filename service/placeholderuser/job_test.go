package placeholderuser_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDeletePlaceholderUser_LooksAtTheUserAndItsReferences(t *testing.T) {
	t.Parallel()
	const refused, queued = "delete_placeholder_user cancelled STILL_REFERENCED", "delete_placeholder_user completed, delete_user available"
	for name, c := range map[string]struct {
		userType  int
		reference string
		want      string
		// named is what the warning says, "" for no warning.
		named string
	}{
		"no reference":           {15, ``, queued, ""},
		"import user":            {17, ``, "delete_placeholder_user completed NOT_A_PLACEHOLDER", ""},
		"human":                  {0, ``, "delete_placeholder_user completed NOT_A_PLACEHOLDER", ""},
		"note's author":          {15, `INSERT INTO notes (noteable_type, author_id, organization_id) VALUES ('Issue', 7, 1)`, refused, `"table":"notes","column":"author_id"`},
		"note's resolver":        {15, `INSERT INTO notes (noteable_type, resolved_by_id, organization_id) VALUES ('Issue', 7, 1)`, queued, ""},
		"note's updater":         {15, `INSERT INTO notes (noteable_type, updated_by_id, organization_id) VALUES ('Issue', 7, 1)`, queued, ""},
		"issue's last editor":    {15, `INSERT INTO issues (last_edited_by_id, namespace_id) VALUES (7, 1)`, refused, `"table":"issues","column":"last_edited_by_id"`},
		"emoji":                  {15, `INSERT INTO award_emoji (user_id) VALUES (7)`, refused, `"table":"award_emoji","column":"user_id"`},
		"event":                  {15, `INSERT INTO events (author_id, action, group_id, created_at, updated_at) VALUES (7, 1, 1, now(), now())`, queued, ""},
		"epic's updater":         {15, `INSERT INTO epics (group_id, iid, title, author_id, updated_by_id) VALUES (1, 1, '', 1, 7)`, queued, ""},
		"epic's assignee":        {15, `INSERT INTO epics (group_id, iid, title, author_id, assignee_id) VALUES (1, 1, '', 1, 7)`, refused, `"table":"epics","column":"assignee_id"`},
		"optional tables absent": {15, `DROP TABLE epics, lists CASCADE`, queued, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewPlaceholders(t)
			e.Detail(1, 0, `NULL`, 0)
			e.Detail(7, 0, `NULL`, c.userType)
			if c.reference != "" {
				e.Exec("main", c.reference)
			}
			var logs bytes.Buffer
			s := e.Service("", e.WithQueue, func(cfg *service.Config) { cfg.Logger = slog.New(slog.NewJSONHandler(&logs, nil)) })
			e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 7}})
			e.Work(s, "delete_placeholder_user")
			e.Want("main", servicetest.StateOfJobs, c.want)
			warned := strings.Contains(logs.String(), "Placeholder user is still referenced in other tables")
			if warned != (c.named != "") || !strings.Contains(logs.String(), c.named) {
				t.Errorf("want a warning with %q, log: %s", c.named, logs.String())
			}
		})
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
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	e.Detail(7, 0, `NULL`)
	s := e.Service("", e.WithQueue)
	servicetest.WantCounts(t, servicetest.RunPlaceholders(t, s, false), "scheduled_jobs=1")
	e.Work(s, "delete_placeholder_user")
	e.Want("main", `SELECT args FROM maintenance.river_job WHERE kind = 'delete_user'`,
		`{"reason": "Placeholder user is no longer referenced", "user_id": 7, "deleted_by_id": 7, "skip_authorization": true}`)
	e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 7}})
	e.Work(s, "delete_placeholder_user")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'delete_user'`, "1")
}

func TestDeletePlaceholderUser_UnknownUserIsSkippedQuietly(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	var logs bytes.Buffer
	s := e.Service("", e.WithQueue, func(c *service.Config) { c.Logger = slog.New(slog.NewJSONHandler(&logs, nil)) })
	e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 99}})
	e.Work(s, "delete_placeholder_user")
	e.Want("main", servicetest.StateOfJobs, "delete_placeholder_user completed TARGET_GONE")
	if logs.Len() > 0 {
		t.Errorf("log: %s", logs.String())
	}
}

func TestDeletePlaceholderUser_LooksInEveryDatabase(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "all", "main", "ci", "sec")
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	e.Detail(7, 0, `NULL`)
	e.Exec("main", `INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 7)`)
	e.Exec("ci", `INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 7)`)
	s := e.Service("", e.WithQueue)
	attempt := func(want string) {
		t.Helper()
		e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 7}})
		e.Work(s, "delete_placeholder_user")
		e.Want("main", `SELECT coalesce(nullif(metadata ->> 'reason', ''), state::text) FROM maintenance.river_job WHERE kind = 'delete_placeholder_user' ORDER BY id DESC LIMIT 1`, want)
	}
	e.Exec("ci", `INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 7)`)
	attempt("STILL_REFERENCED")
	e.Exec("ci", `DELETE FROM ci_pipeline_schedules`)
	e.Exec("sec", `INSERT INTO vulnerabilities (project_id, author_id, title, resolved_by_id, created_at, updated_at) VALUES (1, 1, '', 7, now(), now())`)
	attempt("STILL_REFERENCED")
	e.Exec("sec", `UPDATE vulnerabilities SET resolved_by_id = NULL, dismissed_by_id = 7`)
	// Main's own copy of a table of ci does not count while ci is configured.
	attempt("completed")
	e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE kind = 'delete_user'`, "1")
}

func TestDeletePlaceholderUser_TableThatItsDatabaseLacksIsLookedForInMain(t *testing.T) {
	t.Parallel()
	for table, reference := range map[string]string{
		"vulnerabilities":       `INSERT INTO vulnerabilities (project_id, author_id, title, created_at, updated_at) VALUES (1, 7, '', now(), now())`,
		"ci_pipeline_schedules": `INSERT INTO ci_pipeline_schedules (project_id, owner_id) VALUES (1, 7)`,
	} {
		e := servicetest.New(t, "all", "main", "ci", "sec")
		e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
		e.Detail(7, 0, `NULL`)
		e.Exec("main", reference)
		e.Exec("ci", `DROP TABLE `+table+` CASCADE`)
		e.Exec("sec", `DROP TABLE `+table+` CASCADE`)
		s := e.Service("", e.WithQueue)
		e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 7}})
		e.Work(s, "delete_placeholder_user")
		e.Want("main", servicetest.StateOfJobs, "delete_placeholder_user cancelled STILL_REFERENCED")
	}
}

func TestDeletePlaceholderUser_DatabaseThatIsDownIsNoAnswer(t *testing.T) {
	t.Parallel()
	e := servicetest.New(t, "all", "main", "ci")
	e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
	e.Detail(7, 0, `NULL`)
	s := e.Service("", e.WithQueue)
	e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 7}})
	e.Open[1].Close()
	e.Work(s, "delete_placeholder_user")
	// One second after its first attempt River takes it for available, not retryable.
	e.Want("main", `SELECT string_agg(kind || ' ' || (state IN ('available', 'retryable')) || ' ' || attempt || ' ' || cardinality(errors), ', ')
		FROM maintenance.river_job`, "delete_placeholder_user true 1 1")
	if _, err := s.Status(context.Background(), servicetest.PlaceholderUsers); err != nil {
		t.Error(err)
	}
}

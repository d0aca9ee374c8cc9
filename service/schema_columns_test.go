package service_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// reduce drops all columns of tables of main but those named, "table: column column".
func reduce(e *servicetest.Estate, kept map[string]string) {
	e.T.Helper()
	e.Exec("main", `DROP TRIGGER IF EXISTS namespaces_insert_details ON namespaces; DROP TRIGGER IF EXISTS projects_delete_namespace ON projects`)
	for _, table := range slices.Sorted(maps.Keys(kept)) {
		drops := e.Value("main", `SELECT string_agg(format('DROP COLUMN %I CASCADE', attname), ', ') FROM pg_attribute
			WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attname <> ALL (string_to_array($2, ' '))`, table, kept[table])
		if drops != "NULL" {
			e.Exec("main", `ALTER TABLE `+table+` `+drops)
		}
	}
}

// groupColumns are the columns that groups cannot be worked on without.
func groupColumns() map[string]string {
	return map[string]string{
		"users": "id user_type state admin", "namespaces": "id type parent_id name path",
		"routes": "id source_type source_id path name", "members": "id source_type source_id user_id access_level",
		"group_group_links": "shared_group_id shared_with_group_id group_access", "projects": "id namespace_id",
	}
}

// sparseGroups are a group to be destroyed by an invited owner, with a project, a bot and a subgroup, and one to be
// restored.
func sparseGroups(t *testing.T) *servicetest.Groups {
	t.Helper()
	g := servicetest.NewGroups(t)
	g.User(2, `user_type = 6`)
	g.Group(10, 0, "g")
	g.Group(11, 10, "sub")
	g.Project(1, 11, "p")
	g.Member(10, 2, 30)
	g.Group(12, 0, "invited")
	g.Member(12, 1, 50)
	g.Share(10, 12, 50)
	g.Mark(10, 1, 40)
	g.Group(20, 0, "team-deletion_scheduled-20")
	g.Project(2, 20, "code")
	g.Mark(20, 1, 40)
	return g
}

func TestAdjournedGroupDeletion_NeedsNoColumnsButTheEssentialOnes(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]map[string]string{
		"legacy store": {"group_deletion_schedules": "group_id user_id marked_for_deletion_on", "namespace_details": "namespace_id"},
		"new store": {
			"namespace_details": "namespace_id state_metadata deletion_scheduled_at", "group_deletion_schedules": "group_id",
			"application_settings": "deletion_adjourned_period",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := sparseGroups(t)
			g.Exec("main", `UPDATE namespace_details SET deletion_scheduled_at = now() - interval '40 days', state_metadata = '{"deletion_scheduled_by_user_id": 1}'
				WHERE namespace_id IN (10, 20)`)
			kept := groupColumns()
			maps.Copy(kept, map[string]string{"application_settings": "", "organization_users": "", "import_placeholder_user_details": "", "project_repositories": ""})
			maps.Copy(kept, store)
			reduce(g.Estate, kept)
			// What no column says is a project's namespace is none.
			g.Exec("main", `DELETE FROM namespaces WHERE type = 'Project'`)
			g.Run("scheduled_jobs=1 restored_groups=1")
			g.Want("main", `SELECT string_agg(path, ' ' ORDER BY path) FROM routes WHERE path LIKE 'team%'`, "team team/code")
			g.Attempt("completed succeeded")
			g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM namespaces WHERE type = 'Group'`, "12 20")
			g.Want("main", `SELECT string_agg(id::text, ' ') FROM projects`, "2")
			g.WantBots("2 by 1")
		})
	}
}

// wantNamed fails the test unless a run without any of these columns of a table names the column.
func wantNamed(e *servicetest.Estate, s *service.Service, worker, table, columns string) {
	e.T.Helper()
	for column := range strings.FieldsSeq(columns) {
		e.Exec("main", `ALTER TABLE `+table+` RENAME COLUMN `+column+` TO renamed`)
		_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: worker})
		missing, ok := errors.AsType[*service.NotConfiguredError](err)
		assert.That(e.T, ok && strings.Contains(missing.Missing, "no column "+column+" in its table "+table),
			"without %s.%s: %v", table, column, err)
		e.Exec("main", `ALTER TABLE `+table+` RENAME COLUMN renamed TO `+column)
	}
}

func TestAdjournedGroupDeletion_NamesEachEssentialColumnThatIsMissing(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t)
	for table, columns := range groupColumns() {
		wantNamed(g.Estate, g.Service, servicetest.AdjournedGroups, table, columns)
	}
}

func TestDeleteUser_NeedsNoColumnsButTheEssentialOnes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kept map[string]string
		// left are the columns of the queue, want its row.
		left, want string
	}{
		"no columns at all": {map[string]string{
			"members": "", "namespaces": "", "projects": "", "organization_users": "", "project_authorizations": "", "application_settings": "", "routes": "",
		}, "user_id", "(7)"},
		"what a personal project needs": {map[string]string{
			"members": "user_id source_id source_type access_level", "namespaces": "id type owner_id", "projects": "id namespace_id",
			"organization_users": "user_id", "routes": "source_id", "application_settings": "resource_access_tokens_settings",
		}, "user_id hard_delete", "(7,f)"},
		"what a group needs": {map[string]string{
			"members": "id user_id source_id source_type access_level", "namespaces": "id type parent_id", "organization_users": "user_id organization_id",
		}, "user_id initiator_user_id user_type", "(7,101,6)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := servicetest.NewTokens(t)
			e.Bots(7)
			e.PersonalProjects(7, 701)
			e.Group(50, 0)
			e.Member(7, 30)
			maps.Copy(c.kept, map[string]string{
				"users": "id user_type state", "personal_access_tokens": "id user_id revoked expires_at updated_at", "ghost_user_migrations": c.left,
			})
			reduce(e, c.kept)
			servicetest.WantDeletion(t, e.Deletion(e.Service("", e.WithQueue), servicetest.InactiveBot()), servicetest.DeletionDone)
			e.Want("main", `SELECT state FROM users WHERE id = 7`, "blocked")
			e.Want("main", `SELECT g FROM ghost_user_migrations g`, c.want)
		})
	}
}

func TestDeleteUser_WithoutColumnsThatAllowItIsRefused(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.User(7, 0, 1)
	s := e.Service("", e.WithQueue)
	e.Exec("main", `ALTER TABLE users DROP COLUMN admin CASCADE`)
	byABot := repo.DeleteUser{UserID: 7, DeletedByID: new(int64(101)), Reason: "Group was deleted"}
	servicetest.WantDeletion(t, e.Deletion(s, byABot), servicetest.DeletionRefused+"NOT_AUTHORIZED")
	// Members without a state and an expiry.
	e.Group(50, 0)
	e.Member(7, 50)
	reduce(e, map[string]string{"members": "id user_id source_id source_type access_level", "namespaces": "id type parent_id"})
	s = e.Service("", e.WithQueue)
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionRefused+"SOLE_OWNER_OF_GROUP")
}

func TestInactiveTokenDeletion_NeedsNoColumnsButTheEssentialOnes(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	e.Bots(1, 2)
	e.Alive(2)
	reduce(e, map[string]string{
		"users": "id user_type state", "personal_access_tokens": "id user_id revoked expires_at updated_at",
		"application_settings": "resource_access_tokens_settings", "ghost_user_migrations": "user_id",
	})
	servicetest.WantCounts(t, servicetest.RunTokens(t, e.Service("", e.WithQueue)), "examined_users=2 scheduled_jobs=1")
}

func TestPlaceholderUserCleanup_NeedsNoColumnsButTheEssentialOnes(t *testing.T) {
	t.Parallel()
	const details = "id placeholder_user_id namespace_id deletion_attempts last_deletion_attempt_at"
	e := servicetest.NewPlaceholders(t)
	e.Detail(7, 0, `NULL`)
	reduce(e, map[string]string{"users": "id user_type state", "import_placeholder_user_details": details, "issues": "author_id", "notes": ""})
	s := e.Service("", e.WithQueue)
	for _, dry := range []bool{true, false} {
		r := servicetest.RunPlaceholders(t, s, dry)
		servicetest.WantCounts(t, r, "scheduled_jobs=1")
		want := (repo.TableCount{Table: "import_placeholder_user_details", Updated: 1})
		assert.That(t, len(r.Tables) == 1 && r.Tables[0] == want, "dry %t: tables %v, want %v", dry, r.Tables, want)
	}
	assert.Equal(t, servicetest.StatusOf(t, s, servicetest.PlaceholderUsers).Backlog.Pending, 1, "pending")
	e.Work(s, "delete_placeholder_user")
	e.Want("main", servicetest.StateOfJobs, "delete_placeholder_user completed, delete_user available")
	wantNamed(e, s, servicetest.PlaceholderUsers, "import_placeholder_user_details", details)
	// So does a job.
	e.Exec("main", `ALTER TABLE users DROP COLUMN user_type CASCADE`)
	e.Insert(repo.Job{Args: repo.DeletePlaceholderUser{PlaceholderUserID: 7}})
	e.Work(s, "delete_placeholder_user")
	e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job ORDER BY id DESC LIMIT 1`,
		"database main has no column user_type in its table users")
}

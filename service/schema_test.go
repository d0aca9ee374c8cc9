package service_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// letPass is what messages say is to be done about it.
const letPass = " (exempt these rows, or disable the trigger or rule)"

// keep lets a trigger keep rows of a table from an operation, without an error. condition is SQL about OLD.
func keep(e *servicetest.Estate, operation, table, condition string) {
	e.T.Helper()
	e.Exec("main", `CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
	e.Exec("main", `CREATE TRIGGER keep BEFORE `+operation+` ON `+table+` FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION keep()`)
}

// TestDestroyGroup_WhatATriggerKeepsKeepsItsMarksAndIsNamed has a group and a project for each kind of rows, of which a trigger
// keeps some.
func TestDestroyGroup_WhatATriggerKeepsKeepsItsMarksAndIsNamed(t *testing.T) {
	t.Parallel()
	cases := []struct{ rows, operation, condition, done string }{
		{"members", "DELETE", "OLD.source_id = {group}", "deleted"},
		{"namespaces", "DELETE", "OLD.id = {group}", "deleted"},
		{"projects", "DELETE", "OLD.namespace_id = {group}", "deleted"},
		{"issues.project_id", "DELETE", "OLD.id = {group} + 7", "deleted"},
		{"routes", "DELETE", "OLD.source_type = 'Namespace' AND OLD.source_id = {group}", "deleted"},
		{"routes.namespace_id", "DELETE", "OLD.source_type = 'Project' AND OLD.source_id = {project}", "deleted"},
		{"group_deletion_schedules", "DELETE", "OLD.group_id = {group}", "deleted"},
		{"namespace_details", "DELETE", "OLD.namespace_id = {group}", "deleted"},
		{"import_placeholder_user_details.namespace_id", "UPDATE", "OLD.namespace_id = {group}", "changed"},
	}
	g := servicetest.NewGroups(t)
	g.Exec("main", `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
	conditions := map[string][]string{}
	for i, c := range cases {
		project, group := i+1, 100*(i+1)
		g.Owned(group, 15)
		g.Project(project, group, "p")
		g.Exec("main", `INSERT INTO issues (id, title, project_id, namespace_id) SELECT $1::int + i, 'i', $2::int, 10000 + $2::int FROM generate_series(1, 50) i`, group, project)
		g.Exec("main", `INSERT INTO import_placeholder_user_details (placeholder_user_id, namespace_id, organization_id, created_at, updated_at) VALUES (1, $1, 1, now(), now())`, group)
		g.MarkDetails(group, 15, `{"deletion_scheduled_by_user_id": 1}`)
		table, _, _ := strings.Cut(c.rows, ".")
		condition := strings.NewReplacer("{group}", fmt.Sprint(group), "{project}", fmt.Sprint(project)).Replace(c.condition)
		conditions[c.operation+" ON "+table] = append(conditions[c.operation+" ON "+table], condition)
	}
	for of, all := range conditions {
		g.Exec("main", `CREATE TRIGGER keep BEFORE `+of+` FOR EACH ROW WHEN (`+strings.Join(all, " OR ")+`) EXECUTE FUNCTION keep()`)
	}
	g.Run("scheduled_jobs=9")
	assert.Equal(t, g.Work(g.Service, "destroy_group"), len(cases), "jobs worked")
	for i, c := range cases {
		group := fmt.Sprint(100 * (i + 1))
		table, _, _ := strings.Cut(c.rows, ".")
		want := "KEPT_BY_TRIGGER: a trigger or rule kept rows of " + c.rows + " from being " + c.done + ": trigger keep of " + table + letPass
		g.Want("main", `SELECT concat_ws(' ', metadata ->> 'outcome', errors[1] ->> 'error') FROM maintenance.river_job WHERE args ->> 'group_id' = '`+group+`'`,
			"failed "+want)
		g.Want("main", `SELECT state_metadata ->> 'deletion_error' FROM namespace_details WHERE namespace_id = `+group, want)
	}
	g.WantMarked("100 200 300 400 500 600 700 800 900")
	g.WantRows(map[string]int{"maintenance.group_removals": 9, "group_deletion_schedules": 9})
}

func TestDeleteUser_WhatATriggerKeepsFailsTheJobAndIsNamed(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	e.User(8, 0, 1)
	e.PersonalProjects(8, 801)
	e.Group(50, 0)
	s := e.Service("", e.WithQueue)
	for user, c := range map[int]struct{ table, condition, state string }{
		21: {"members", "true", "active"}, 22: {"project_authorizations", "true", "active"},
		23: {"projects", "true", "blocked"}, 24: {"namespaces", "OLD.type = 'Project'", "blocked"},
	} {
		e.User(user, 0, 1)
		switch c.table {
		case "members":
			e.Member(user, 30)
		case "project_authorizations":
			e.Exec("main", `INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES ($1, 801, 30)`, user)
		default:
			e.PersonalProjects(user, 100*user)
		}
		keep(e, "DELETE", c.table, c.condition)
		servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(int64(user))), servicetest.DeletionFailed+" KEPT_BY_TRIGGER")
		e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`,
			"KEPT_BY_TRIGGER: a trigger or rule kept rows of "+c.table+" from being deleted: trigger keep of "+c.table+letPass)
		e.Want("main", fmt.Sprint(`SELECT state FROM users WHERE id = `, user), c.state)
		if c.state == "blocked" {
			e.Want("main", fmt.Sprint(`SELECT count(*) FROM projects WHERE id = `, 100*user), "1")
		}
		e.Exec("main", `DROP TRIGGER keep ON `+c.table+`; DELETE FROM maintenance.river_job`)
	}
}

func TestAdjournedGroupDeletion_RestoreThatATriggerKeepsFailsItsGroupAndNamesTheTable(t *testing.T) {
	g := servicetest.NewGroups(servicetest.Parallel(t))
	for group, c := range map[int]struct{ table, condition string }{
		70: {"routes", "OLD.source_type = 'Project'"}, 77: {"routes", "OLD.source_type = 'Namespace'"}, 90: {"namespaces", "OLD.id = 90"},
	} {
		team, other := fmt.Sprintf("team-deletion_scheduled-%d", group), group+1
		g.Group(group, 0, team)
		g.Project(group, group, "code")
		g.Mark(group, 1, 15)
		g.Group(other, 0, fmt.Sprintf("other-deletion_scheduled-%d", other))
		g.Mark(other, 1, 15)
		keep(g.Estate, "UPDATE", c.table, "OLD.path LIKE 'team%' AND "+c.condition)
		g.Run("restored_groups=1 failed_groups=1")
		g.WantLog(1, "group failed", fmt.Sprint("group_id=", group), "a trigger or rule kept rows of "+c.table+" from being changed")
		g.WantMarked(fmt.Sprint(group))
		g.Want("main", `SELECT string_agg(path, ' ' ORDER BY id) FROM routes`, team+" "+team+"/code other")
		g.Exec("main", `DROP TRIGGER keep ON `+c.table+`; DELETE FROM group_deletion_schedules; DELETE FROM routes;
			UPDATE namespaces SET path = 'done' || id`)
	}
}

func TestGhostUserMigration_RowsThatATriggerOrRuleKeepsAreNoLocks(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	s := g.Service()
	g.Exec("main", `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
	const trigger, rule = `CREATE TRIGGER keep BEFORE {of} FOR EACH ROW {when} EXECUTE FUNCTION keep()`, `CREATE RULE keep AS ON {of} {when} DO INSTEAD NOTHING`
	id := 10
	// {first} is the first of the user's rows.
	for name, test := range map[string]struct{ kind, of, when, rows, done string }{
		"a trigger, all rows moved":  {trigger, "UPDATE ON issues", "", "issues.author_id", "changed"},
		"a trigger, one row moved":   {trigger, "UPDATE ON issues", "WHEN (OLD.id = {first})", "issues.author_id", "changed"},
		"a trigger, one row cleared": {trigger, "UPDATE ON merge_requests", "WHEN (OLD.assignee_id = {user})", "merge_requests.assignee_id", "changed"},
		"a trigger, one row deleted": {trigger, "DELETE ON emails", "WHEN (OLD.email = 'e{first}')", "emails.user_id", "deleted"},
		"a trigger, a dependant":     {trigger, "DELETE ON gpg_key_subkeys", "", "gpg_key_subkeys.gpg_key_id", "deleted"},
		"a trigger, a partition":     {trigger, "UPDATE ON gitlab_partitions_dynamic.ci_builds_101", "", "p_ci_builds.user_id", "changed"},
		"a trigger, the namespace":   {trigger, "DELETE ON namespaces", "", "namespaces.owner_id", "deleted"},
		"a trigger, the queue":       {trigger, "DELETE ON ghost_user_migrations", "", "ghost_user_migrations", "deleted"},
		"a trigger, the user":        {trigger, "DELETE ON users", "", "users", "deleted"},
		"a rule, rows moved":         {rule, "UPDATE TO issues", "", "issues.author_id", "changed"},
		"a rule, some rows moved":    {rule, "UPDATE TO issues", "WHERE OLD.id = {first}", "issues.author_id", "changed"},
		"a rule, rows deleted":       {rule, "DELETE TO emails", "", "emails.user_id", "deleted"},
		"a rule, the user":           {rule, "DELETE TO users", "", "users", "deleted"},
	} {
		id++
		g.Doomed(id)
		rows := fmt.Sprintf("%d + i", 100*id)
		g.Fill("main", "issues", "id, title, author_id, project_id, namespace_id, iid", fmt.Sprintf("%s, 'i', %d, 1, 101, %[1]s", rows, id), 20)
		g.Fill("main", "emails", "user_id, email, created_at, updated_at", fmt.Sprintf("%d, 'e' || (%s), now(), now()", id, rows), 5)
		g.Fill("main", "p_ci_builds", "id, partition_id, project_id, user_id", fmt.Sprintf("%s, 100 + i %% 3, 1, %d", rows, id), 6)
		g.Exec("main", fmt.Sprintf(`INSERT INTO gpg_keys (id, user_id, created_at, updated_at) VALUES (%[1]d, %[1]d, now(), now());
			INSERT INTO gpg_key_subkeys (gpg_key_id) VALUES (%[1]d); UPDATE merge_requests SET assignee_id = %[1]d`, id))
		g.Exec("main", strings.NewReplacer("{of}", test.of, "{when}", test.when, "{first}", fmt.Sprint(100*id+1), "{user}", fmt.Sprint(id)).
			Replace(strings.Replace(test.kind, "{when}", test.when, 1)))
		r := g.Run(s, "")
		assert.That(t, r.Counts["deferred_users"] == 0 && r.Counts["failed_users"] == 1 && !r.OverLimit,
			"%s: %v, over limit %t", name, r.Counts, r.OverLimit)
		g.WantLater(id, 30*time.Minute)
		kind, relation := strings.Fields(test.kind)[1], test.of[strings.LastIndexAny(test.of, " .")+1:]
		g.WantLog(1, `"level":"ERROR"`, fmt.Sprintf(`"user_id":%d`, id), `"reason":"KEPT_BY_TRIGGER"`, "a trigger or rule kept rows of "+test.rows+
			" from being "+test.done+": "+strings.ToLower(kind)+" keep of "+relation+letPass)
		table := test.of[strings.LastIndex(test.of, " ")+1:]
		g.Exec("main", `DROP `+kind+` keep ON `+table+`; DELETE FROM ghost_user_migrations`)
	}
}

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
			g := sparseGroups(servicetest.Parallel(t))
			g.Exec("main", `UPDATE namespace_details SET deletion_scheduled_at = now() - interval '40 days', state_metadata = '{"deletion_scheduled_by_user_id": 1}'
				WHERE namespace_id IN (10, 20)`)
			kept := groupColumns()
			maps.Copy(kept, map[string]string{"application_settings": "", "organization_users": "", "import_placeholder_user_details": "", "project_repositories": ""})
			maps.Copy(kept, store)
			reduce(g.Estate, kept)
			// A namespace that no column reports as a project's is none.
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
		_, err := s.RunBatch(context.Background(), run.Request{Worker: worker})
		missing, ok := errors.AsType[*fault.NotConfiguredError](err)
		assert.That(e.T, ok && strings.Contains(missing.Missing, "no column "+column+" in table "+table),
			"without %s.%s: %v", table, column, err)
		e.Exec("main", `ALTER TABLE `+table+` RENAME COLUMN renamed TO `+column)
	}
}

func TestAdjournedGroupDeletion_NamesEachEssentialColumnThatIsMissing(t *testing.T) {
	g := servicetest.NewGroups(servicetest.Parallel(t))
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
			e := servicetest.NewTokens(servicetest.Parallel(t))
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
	e := servicetest.NewTokens(servicetest.Parallel(t))
	e.User(7, 0, 1)
	s := e.Service("", e.WithQueue)
	e.Exec("main", `ALTER TABLE users DROP COLUMN admin CASCADE`)
	byABot := jobqueue.DeleteUser{UserID: 7, DeletedByID: new(int64(101)), Reason: "Group was deleted"}
	servicetest.WantDeletion(t, e.Deletion(s, byABot), servicetest.DeletionRefused+"NOT_AUTHORIZED")
	// Members without a state and an expiry.
	e.Group(50, 0)
	e.Member(7, 50)
	reduce(e, map[string]string{"members": "id user_id source_id source_type access_level", "namespaces": "id type parent_id"})
	s = e.Service("", e.WithQueue)
	servicetest.WantDeletion(t, e.Deletion(s, servicetest.Authorized(7)), servicetest.DeletionRefused+"SOLE_OWNER_OF_GROUP")
}

func TestInactiveTokenDeletion_NeedsNoColumnsButTheEssentialOnes(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
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
		want := (jobqueue.TableCount{Table: "import_placeholder_user_details", Updated: 1})
		assert.That(t, len(r.Tables) == 1 && r.Tables[0] == want, "dry %t: tables %v, want %v", dry, r.Tables, want)
	}
	assert.Equal(t, servicetest.StatusOf(t, s, servicetest.PlaceholderUsers).Backlog.Pending, 1, "pending")
	e.Work(s, "delete_placeholder_user")
	e.Want("main", servicetest.StateOfJobs, "delete_placeholder_user completed, delete_user available")
	wantNamed(e, s, servicetest.PlaceholderUsers, "import_placeholder_user_details", details)
	// So does a job.
	e.Exec("main", `ALTER TABLE users DROP COLUMN user_type CASCADE`)
	e.Insert(jobqueue.Job{Args: jobqueue.DeletePlaceholderUser{PlaceholderUserID: 7}})
	e.Work(s, "delete_placeholder_user")
	e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job ORDER BY id DESC LIMIT 1`,
		"database main has no column user_type in table users")
}

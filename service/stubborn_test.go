package service_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// letPass is what messages say is to be done about it.
const letPass = " (let it pass these rows, or disable it)"

// keep lets a trigger keep rows of a table from an operation, without an error. condition is SQL about OLD.
func keep(e *servicetest.Estate, operation, table, condition string) {
	e.T.Helper()
	e.Exec("main", `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
	e.Exec("main", `CREATE TRIGGER keep BEFORE `+operation+` ON `+table+` FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION keep()`)
}

func TestDestroyGroup_WhatATriggerKeepsKeepsItsMarksAndIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rows, operation, condition, done string }{
		{"members", "DELETE", "true", "deleted"},
		{"namespaces", "DELETE", "OLD.id = 10", "deleted"},
		{"projects", "DELETE", "true", "deleted"},
		{"issues.project_id", "DELETE", "OLD.id = 7", "deleted"},
		{"routes", "DELETE", "OLD.source_type = 'Namespace'", "deleted"},
		{"routes.namespace_id", "DELETE", "OLD.source_type = 'Project'", "deleted"},
		{"group_deletion_schedules", "DELETE", "true", "deleted"},
		{"namespace_details", "DELETE", "OLD.namespace_id = 10", "deleted"},
		{"import_placeholder_user_details.namespace_id", "UPDATE", "true", "changed"},
	} {
		g := servicetest.NewGroups(t)
		g.Owned(10, 15)
		g.Project(1, 10, "p")
		g.Exec("main", `INSERT INTO issues (id, title, project_id, namespace_id) SELECT i, 'i', 1, 10001 FROM generate_series(1, 50) i`)
		g.Exec("main", `INSERT INTO import_placeholder_user_details (placeholder_user_id, namespace_id, organization_id, created_at, updated_at) VALUES (1, 10, 1, now(), now())`)
		g.MarkDetails(10, 15, `{"deletion_scheduled_by_user_id": 1}`)
		table, _, _ := strings.Cut(c.rows, ".")
		keep(g.Estate, c.operation, table, c.condition)
		g.Run("scheduled_jobs=1")
		g.Attempt("retryable failed KEPT_BY_TRIGGER")
		want := "KEPT_BY_TRIGGER: a trigger or rule kept rows of " + c.rows + " from being " + c.done + ": trigger keep of " + table + letPass
		g.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, want)
		g.Want("main", `SELECT state_metadata ->> 'deletion_error' FROM namespace_details WHERE namespace_id = 10`, want)
		g.WantMarked("10")
		g.WantRows(map[string]int{"maintenance.group_removals": 1, "group_deletion_schedules": 1})
	}
}

func TestDeleteUser_PersonalProjectThatATriggerKeepsFailsTheJobAndIsNamed(t *testing.T) {
	t.Parallel()
	for table, condition := range map[string]string{"projects": "true", "namespaces": "OLD.type = 'Project'"} {
		e := servicetest.NewTokens(t)
		e.User(7, 0, 1)
		e.PersonalProjects(7, 701)
		keep(e, "DELETE", table, condition)
		servicetest.WantDeletion(t, e.Deletion(e.Service("", e.WithQueue), servicetest.Authorized(7)), servicetest.DeletionFailed+" KEPT_BY_TRIGGER")
		e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`,
			"KEPT_BY_TRIGGER: a trigger or rule kept rows of "+table+" from being deleted: trigger keep of "+table+letPass)
		e.Want("main", `SELECT string_agg(id::text, ' ') FROM projects`, "701")
		if got := e.UserRows(7); !strings.HasPrefix(got, "blocked") {
			t.Error(got)
		}
	}
}

func TestDeleteUser_MembershipsThatATriggerKeepsFailTheJobAndAreNamed(t *testing.T) {
	t.Parallel()
	for table, insert := range map[string]string{
		"members":                servicetest.MemberSQL(`7, 50, 30`),
		"project_authorizations": `INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES (7, 801, 30)`,
	} {
		e := servicetest.NewTokens(t)
		e.User(7, 0, 1)
		e.User(8, 0, 1)
		e.PersonalProjects(8, 801)
		e.Group(50, 0)
		e.Exec("main", insert)
		keep(e, "DELETE", table, "true")
		servicetest.WantDeletion(t, e.Deletion(e.Service("", e.WithQueue), servicetest.Authorized(7)), servicetest.DeletionFailed+" KEPT_BY_TRIGGER")
		e.Want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`,
			"KEPT_BY_TRIGGER: a trigger or rule kept rows of "+table+" from being deleted: trigger keep of "+table+letPass)
		e.Want("main", `SELECT state FROM users WHERE id = 7`, "active")
	}
}

func TestAdjournedGroupDeletion_RestoreThatATriggerKeepsFailsItsGroupAndNamesTheTable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ table, condition string }{
		"routes of a project": {"routes", "OLD.source_type = 'Project'"},
		"the group's route":   {"routes", "OLD.source_type = 'Namespace'"},
		"the group":           {"namespaces", "OLD.id = 77"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGroups(t)
			g.Group(77, 0, "team-deletion_scheduled-77")
			g.Project(8, 77, "code")
			g.Mark(77, 1, 15)
			g.Group(78, 0, "other-deletion_scheduled-78")
			g.Mark(78, 1, 15)
			keep(g.Estate, "UPDATE", c.table, "OLD.path LIKE 'team%' AND "+c.condition)
			g.Run("restored_groups=1 failed_groups=1")
			g.WantLog(1, "group failed", "group_id=77", "a trigger or rule kept rows of "+c.table+" from being changed")
			g.WantMarked("77")
			g.Want("main", `SELECT string_agg(path, ' ' ORDER BY id) FROM routes`,
				"team-deletion_scheduled-77 team-deletion_scheduled-77/code other")
		})
	}
}

func TestGhostUserMigration_AUserThatATriggerKeepsStaysInTheQueue(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	keep(g.Estate, "DELETE", "users", "true")
	g.Run(g.Service(), "failed_users=1 deleted_rows=3")
	g.WantLater(10, 30*time.Minute)
	g.WantLog(1, `"level":"ERROR"`, `"reason":"KEPT_BY_TRIGGER"`, "a trigger or rule kept rows of users from being deleted: trigger keep of users", `"user_id":10`)
}

func TestGhostUserMigration_RowsThatATriggerOrRuleKeepsAreNoLocks(t *testing.T) {
	t.Parallel()
	const function = `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; CREATE TRIGGER keep BEFORE `
	for name, test := range map[string]struct{ sql, rows, done, by string }{
		"a trigger, all rows moved":  {function + `UPDATE ON issues FOR EACH ROW EXECUTE FUNCTION keep()`, "issues.author_id", "changed", "trigger keep of issues"},
		"a trigger, one row moved":   {function + `UPDATE ON issues FOR EACH ROW WHEN (OLD.id = 30) EXECUTE FUNCTION keep()`, "issues.author_id", "changed", "trigger keep of issues"},
		"a trigger, one row cleared": {function + `UPDATE ON merge_requests FOR EACH ROW WHEN (OLD.assignee_id = 10) EXECUTE FUNCTION keep(); UPDATE merge_requests SET assignee_id = 10`, "merge_requests.assignee_id", "changed", "trigger keep of merge_requests"},
		"a trigger, one row deleted": {function + `DELETE ON emails FOR EACH ROW WHEN (OLD.email = 'e3') EXECUTE FUNCTION keep()`, "emails.user_id", "deleted", "trigger keep of emails"},
		"a trigger, a dependant":     {function + `DELETE ON gpg_key_subkeys FOR EACH ROW EXECUTE FUNCTION keep()`, "gpg_key_subkeys.gpg_key_id", "deleted", "trigger keep of gpg_key_subkeys"},
		"a trigger, a partition":     {function + `UPDATE ON gitlab_partitions_dynamic.ci_builds_101 FOR EACH ROW EXECUTE FUNCTION keep()`, "p_ci_builds.user_id", "changed", "trigger keep of ci_builds_101"},
		"a trigger, the namespace":   {function + `DELETE ON namespaces FOR EACH ROW EXECUTE FUNCTION keep()`, "namespaces.owner_id", "deleted", "trigger keep of namespaces"},
		"a trigger, the queue":       {function + `DELETE ON ghost_user_migrations FOR EACH ROW EXECUTE FUNCTION keep()`, "ghost_user_migrations", "deleted", "trigger keep of ghost_user_migrations"},
		"a rule, rows moved":         {`CREATE RULE keep AS ON UPDATE TO issues DO INSTEAD NOTHING`, "issues.author_id", "changed", "rule keep of issues"},
		"a rule, some rows moved":    {`CREATE RULE keep AS ON UPDATE TO issues WHERE OLD.id = 30 DO INSTEAD NOTHING`, "issues.author_id", "changed", "rule keep of issues"},
		"a rule, rows deleted":       {`CREATE RULE keep AS ON DELETE TO emails DO INSTEAD NOTHING`, "emails.user_id", "deleted", "rule keep of emails"},
		"a rule, the user":           {`CREATE RULE keep AS ON DELETE TO users DO INSTEAD NOTHING`, "users", "deleted", "rule keep of users"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGhosts(t)
			g.Doomed(10, 11)
			g.Fill("main", "issues", "id, title, author_id, project_id, namespace_id, iid", "20 + i, 'i', 10, 1, 101, 20 + i", 20)
			g.Fill("main", "emails", "user_id, email, created_at, updated_at", "10, 'e' || i, now(), now()", 5)
			g.Fill("main", "p_ci_builds", "id, partition_id, project_id, user_id", "i, 100 + i % 3, 1, 10", 6)
			g.Exec("main", `INSERT INTO gpg_keys (id, user_id, created_at, updated_at) VALUES (1, 10, now(), now()); INSERT INTO gpg_key_subkeys (gpg_key_id) VALUES (1)`)
			g.Exec("main", test.sql)
			r := g.Run(g.Service(), "")
			if r.Counts["deferred_users"] != 0 || r.Counts["failed_users"] == 0 || r.OverLimit {
				t.Errorf("%v, over limit %t", r.Counts, r.OverLimit)
			}
			g.WantLater(10, 30*time.Minute)
			g.WantLog(1, `"level":"ERROR"`, `"user_id":10`, `"reason":"KEPT_BY_TRIGGER"`,
				"a trigger or rule kept rows of "+test.rows+" from being "+test.done+": "+test.by+letPass)
		})
	}
}

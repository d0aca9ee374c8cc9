package service_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// letPass is what messages say is to be done about it.
const letPass = " (let it pass these rows, or disable it)"

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
	t.Parallel()
	e := servicetest.NewTokens(t)
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
	t.Parallel()
	g := servicetest.NewGroups(t)
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
	t.Parallel()
	g := servicetest.NewGhosts(t)
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

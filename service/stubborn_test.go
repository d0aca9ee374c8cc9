package service_test

import (
	"strings"
	"testing"
	"time"
)

// keep lets a trigger keep rows of a table from an operation, without an error. condition is SQL about OLD.
func (e *estate) keep(operation, table, condition string) {
	e.t.Helper()
	e.exec("main", `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
	e.exec("main", `CREATE TRIGGER keep BEFORE `+operation+` ON `+table+` FOR EACH ROW WHEN (`+condition+`) EXECUTE FUNCTION keep()`)
}

func TestDestroyGroup_WhatATriggerKeepsKeepsItsMarksAndIsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rows, operation, condition, done string }{
		{"members", "DELETE", "true", "deleted"},
		{"namespaces", "DELETE", "OLD.id = 10", "deleted"},
		{"projects", "DELETE", "true", "deleted"},
		{"issues.project_id", "DELETE", "OLD.id = 7", "deleted"},
		{"import_placeholder_user_details.namespace_id", "UPDATE", "true", "changed"},
	} {
		g := newGroups(t)
		g.owned(10, 15)
		g.project(1, 10, "p")
		g.exec("main", `INSERT INTO issues (id, title, project_id, namespace_id) SELECT i, 'i', 1, 10001 FROM generate_series(1, 50) i`)
		g.exec("main", `INSERT INTO import_placeholder_user_details (placeholder_user_id, namespace_id, organization_id, created_at, updated_at) VALUES (1, 10, 1, now(), now())`)
		g.markDetails(10, 15, `{"deletion_scheduled_by_user_id": 1}`)
		table, _, _ := strings.Cut(c.rows, ".")
		g.keep(c.operation, table, c.condition)
		g.run("scheduled_jobs=1")
		g.attempt("retryable failed KEPT_BY_TRIGGER")
		want := "rows of " + c.rows + " do not let themselves be " + c.done + ", though no error is reported: look at the table's triggers"
		g.want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, want)
		g.want("main", `SELECT state_metadata ->> 'deletion_error' FROM namespace_details WHERE namespace_id = 10`, want)
		g.wantMarked("10")
		g.wantRows(map[string]int{"maintenance.group_removals": 1, "group_deletion_schedules": 1})
	}
}

func TestDeleteUser_PersonalProjectThatATriggerKeepsFailsTheJobAndIsNamed(t *testing.T) {
	t.Parallel()
	for table, condition := range map[string]string{"projects": "true", "namespaces": "OLD.type = 'Project'"} {
		e := tokenEstate(t)
		e.user(7, 0, 1)
		e.personalProjects(7, 701)
		e.keep("DELETE", table, condition)
		wantDeletion(t, e.deletion(e.service("", e.withQueue), authorized(7)), failed+" KEPT_BY_TRIGGER")
		e.want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`,
			"rows of "+table+" do not let themselves be deleted, though no error is reported: look at the table's triggers")
		e.want("main", `SELECT string_agg(id::text, ' ') FROM projects`, "701")
		if got := e.userRows(7); !strings.HasPrefix(got, "blocked") {
			t.Error(got)
		}
	}
}

func TestDeleteUser_MembershipsThatATriggerKeepsFailTheJobAndAreNamed(t *testing.T) {
	t.Parallel()
	for table, insert := range map[string]string{
		"members":                memberSQL(`7, 50, 30`),
		"project_authorizations": `INSERT INTO project_authorizations (user_id, project_id, access_level) VALUES (7, 801, 30)`,
	} {
		e := tokenEstate(t)
		e.user(7, 0, 1)
		e.user(8, 0, 1)
		e.personalProjects(8, 801)
		e.group(50, 0)
		e.exec("main", insert)
		e.keep("DELETE", table, "true")
		wantDeletion(t, e.deletion(e.service("", e.withQueue), authorized(7)), failed+" KEPT_BY_TRIGGER")
		e.want("main", `SELECT errors[1] ->> 'error' FROM maintenance.river_job`,
			"rows of "+table+" do not let themselves be deleted, though no error is reported: look at the table's triggers")
		e.want("main", `SELECT state FROM users WHERE id = 7`, "active")
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
			g := newGroups(t)
			g.group(77, 0, "team-deletion_scheduled-77")
			g.project(8, 77, "code")
			g.mark(77, 1, 15)
			g.group(78, 0, "other-deletion_scheduled-78")
			g.mark(78, 1, 15)
			g.keep("UPDATE", c.table, "OLD.path LIKE 'team%' AND "+c.condition)
			g.run("restored_groups=1 failed_groups=1")
			g.wantLog(1, "group failed", "group_id=77", "rows of "+c.table+" do not let themselves be changed")
			g.wantMarked("77")
			g.want("main", `SELECT string_agg(path, ' ' ORDER BY id) FROM routes`,
				"team-deletion_scheduled-77 team-deletion_scheduled-77/code other")
		})
	}
}

func TestGhostUserMigration_AUserThatATriggerKeepsStaysInTheQueue(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.keep("DELETE", "users", "true")
	g.run(g.service(), "failed_users=1 deleted_rows=2")
	g.wantLater(10, 30*time.Minute)
	g.wantLog(1, `"level":"ERROR"`, "rows of users do not let themselves be deleted", `"user_id":10`)
}

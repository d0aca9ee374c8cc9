package group_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestDestroyGroup(t *testing.T) {
	servicetest.Turns(t, servicetest.NewGroups(servicetest.Parallel(t)),
		everythingOfTheTreeGoesAndNothingElse, whatIsNotThereIsSkipped, userThatIsGoneIsRefused,
		groupIsRestoredWhenTheRightIsLost, failureLeavesMarksAndSaysWhy, botsGoAndHumansStay,
		groupThatIsNotDueAnyMoreIsSkipped, whatHasBegunIsFinishedWhateverSpeaksAgainstItThen,
		placeholderDetailsLoseTheirNamespace,
	)
}

func everythingOfTheTreeGoesAndNothingElse(g *servicetest.Groups) {
	plant(g, "5", "10 owner=1 mark=1@15", "11<10 mark=1@15", "12<11", "13<10")
	for project, group := range map[int]int{1: 5, 2: 10, 3: 11, 4: 12, 6: 12} {
		g.Project(project, group, fmt.Sprintf("p%d", project))
		g.Content(project)
	}
	for _, group := range []int{5, 10, 11, 12} {
		g.GroupContent(group)
	}
	g.Share(5, 12, 30)
	g.Share(11, 5, 30)
	// A merge request of another project from a project that goes, and a note of that project's about nothing.
	g.Exec("main", `UPDATE merge_requests SET source_project_id = 2 WHERE id = 1`)
	g.Exec("main", `UPDATE namespaces SET traversal_ids = '{10}' WHERE id = 5`)
	g.Exec("main", `DELETE FROM loose_foreign_keys_deleted_records`)
	g.Run("scheduled_jobs=1")
	g.Attempt("completed succeeded")

	g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM namespaces`, "5 10001")
	g.Want("main", `SELECT string_agg(source_type || source_id, ' ' ORDER BY source_type) FROM routes`, "Namespace5 Project1")
	g.WantRows(map[string]int{
		"projects": 1, "issues": 2, "merge_requests": 1, "notes": 3, "award_emoji": 3, "subscriptions": 2, "todos": 2, "events": 2,
		"issue_assignees": 1, "merge_request_metrics": 1, "approvals": 1, "reviews": 1, "snippets": 1, "snippet_repositories": 1,
		"releases": 1, "project_authorizations": 1, "members": 2, "redirect_routes": 1, "project_repositories": 1, "epics": 1, "boards": 1,
		"achievements": 1, "group_group_links": 0, "group_deletion_schedules": 0, "namespace_details": 2, "maintenance.group_removals": 0, "users": 1,
	})
	g.Want("main", `SELECT source_project_id FROM merge_requests`, "NULL")
	g.Want("main", `SELECT string_agg(fully_qualified_table_name || ' ' || primary_key_value, ', ' ORDER BY fully_qualified_table_name, primary_key_value)
		FROM loose_foreign_keys_deleted_records`, "public.merge_requests 2, public.merge_requests 3, public.merge_requests 4, public.merge_requests 6, "+
		"public.namespaces 10, public.namespaces 11, public.namespaces 12, public.namespaces 13, public.namespaces 10002, public.namespaces 10003, public.namespaces 10004, public.namespaces 10006, "+
		"public.projects 2, public.projects 3, public.projects 4, public.projects 6")
	g.WantLog(1, "job finished", "outcome=succeeded", "group_id=10", "user_id=1", "groups=4", "projects=4", "bots=0")
	for _, project := range []int{2, 3, 4, 6} {
		g.WantLog(1, "left_outside", fmt.Sprintf("@hashed/%d]", project), fmt.Sprintf("project_id=%d", project))
		g.WantLog(1, "left_outside", fmt.Sprintf("@snippets/%d]", project))
	}
	g.WantLog(0, "left_outside", "@hashed/1]")
	g.Run("")
}

func whatIsNotThereIsSkipped(g *servicetest.Groups) {
	g.Exec("main", `INSERT INTO namespaces (id, name, path, type, organization_id) VALUES (16, 'u', 'u', 'User', 1)`)
	g.Exec("main", `INSERT INTO maintenance.group_removals (group_id, user_id) VALUES (10, 1)`)
	g.QueueJob(10, 1)
	g.Attempt("completed skipped TARGET_GONE")
	g.WantRows(map[string]int{"maintenance.group_removals": 0})
	g.QueueJob(16, 1)
	g.Attempt("completed skipped TARGET_GONE")
	g.WantRows(map[string]int{"namespaces": 1})
	g.WantLog(0, "job finished")
}

func userThatIsGoneIsRefused(g *servicetest.Groups) {
	g.User(2)
	plant(g, "10 path=a-deletion_scheduled-10 owner=2 details=2@15")
	g.Run("scheduled_jobs=1")
	g.Exec("main", `DELETE FROM users WHERE id = 2`)
	g.Attempt("cancelled refused DELETING_USER_MISSING")
	g.Want("main", `SELECT path || ' ' || state FROM namespaces`, "a-deletion_scheduled-10 0")
	g.WantLog(1, "job finished", "level=WARN", "group_id=10", "reason=DELETING_USER_MISSING")
	g.Run("held_groups=1")
	g.QueueJob(10, 0)
	g.Attempt("cancelled refused DELETING_USER_MISSING")
}

func groupIsRestoredWhenTheRightIsLost(g *servicetest.Groups) {
	plant(g, "10 path=a-deletion_scheduled-10 owner=1 mark=1@15")
	g.Project(1, 10, "p")
	g.Run("scheduled_jobs=1")
	g.Exec("main", `UPDATE users SET state = 'blocked'`)
	g.Attempt("completed restored RIGHTS_MISSING")
	g.Want("main", routesSQL, "N10=a (A), P1=a/p (A / P)")
	g.WantMarked("")
	g.WantRows(map[string]int{"projects": 1, "members": 1, "maintenance.group_removals": 0})
	g.WantLog(1, "job finished", "level=INFO", "group_id=10", "user_id=1", "old_path=a-deletion_scheduled-10", "new_path=a")
}

func failureLeavesMarksAndSaysWhy(g *servicetest.Groups) {
	plant(g, "10 owner=1 mark=1@15 details=1@15", "11<10")
	g.Project(1, 11, "gone")
	g.Project(2, 10, "stays")
	g.Project(3, 10, "waits")
	g.Content(2)
	g.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'secret SQL'; END $$`)
	g.Exec("main", `CREATE TRIGGER refuse BEFORE DELETE ON projects FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION refuse()`)
	g.Run("scheduled_jobs=1")
	g.Attempt("retryable failed")
	g.Want("main", `SELECT string_agg(id::text, ' ' ORDER BY id) FROM projects`, "2 3")
	g.Want("main", `SELECT state FROM namespaces WHERE id = 10`, "2")
	g.WantMarked("10")
	g.WantRows(map[string]int{"group_deletion_schedules": 1, "maintenance.group_removals": 1})
	const raised = "cannot remove project on main: P0001 raise_exception, table projects: a trigger or function raised the error: check PostgreSQL's log"
	g.Want("main", `SELECT state_metadata ->> 'deletion_error' FROM namespace_details WHERE namespace_id = 10`, raised)
	g.Want("main", `SELECT state_metadata ->> 'deletion_scheduled_by_user_id' FROM namespace_details WHERE namespace_id = 10`, "1")
	g.Want("main", `SELECT attempt || ' ' || (errors[1] ->> 'error') FROM maintenance.river_job`, "1 "+raised)
	g.WantLog(1, "job finished", "level=ERROR", "group_id=10", "outcome=failed", "projects=1", "groups=1", "cannot remove project on main: P0001 raise_exception, table projects")
	g.WantLog(0, "secret SQL")
	// The next run leaves it to the job that waits, and would not restore it, whatever its user's rights.
	g.Exec("main", `UPDATE users SET state = 'blocked'`)
	g.Run("")
	g.Attempt("retryable failed")
	g.Exec("main", `DROP TRIGGER refuse ON projects`)
	g.Attempt("completed succeeded")
	g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "maintenance.group_removals": 0, "group_deletion_schedules": 0})
	g.WantLog(1, "job finished", "outcome=succeeded", "groups=2", "projects=3")
}

func botsGoAndHumansStay(g *servicetest.Groups) {
	for id, kind := range map[int]string{2: "0", 3: "6", 4: "6", 5: "13", 6: "6", 7: "6", 8: "6"} {
		g.User(id, "user_type = "+kind)
	}
	g.Owned(10, 15)
	g.Group(11, 10, "sub")
	g.Project(1, 11, "p")
	g.Project(2, 11, "q")
	for _, user := range []int{2, 3, 5} {
		g.Member(10, user, 30)
	}
	g.Member(11, 3, 30)
	g.Member(11, 6, 30, `source_type = 'Gone'`)
	// Members of nothing but the namespace.
	g.Member(10, 7, 30, `source_type = 'Project', source_id = 999`)
	g.Member(10, 8, 30, `source_type = 'Project', source_id = 999, member_namespace_id = 10001`)
	g.Member(10, 8, 30, `user_id = NULL`)
	for _, user := range []int{1, 2, 4} {
		g.Exec("main", `INSERT INTO members (source_type, source_id, type, user_id, access_level, member_namespace_id)
			VALUES ('Project', 1, 'ProjectMember', $1, 30, 10001)`, user)
	}
	g.Run("scheduled_jobs=1")
	g.Attempt("completed succeeded")
	g.WantBots("3 by 1, 4 by 1, 6 by 1, 7 by 1, 8 by 1")
	g.WantRows(map[string]int{"members": 0, "users": 8})
	g.Want("main", `SELECT string_agg(DISTINCT state, ' ') FROM users`, "active")
	g.WantLog(1, "job finished", "bots=5")
	g.Want("main", `SELECT count(*) FROM maintenance.river_job j, maintenance.runs r WHERE kind = 'delete_user'
		AND metadata ->> 'run_id' = r.id::text`, "5")
}

func groupThatIsNotDueAnyMoreIsSkipped(g *servicetest.Groups) {
	plant(g, "10 owner=1")
	for i, since := range []string{
		`DELETE FROM group_deletion_schedules`,
		`UPDATE group_deletion_schedules SET marked_for_deletion_on = (now() AT TIME ZONE 'UTC')::date - 13`,
		`UPDATE namespace_details SET deletion_scheduled_at = now() WHERE namespace_id = 10`,
		`UPDATE application_settings SET deletion_adjourned_period = 16`,
	} {
		g.Exec("main", `DELETE FROM group_deletion_schedules; UPDATE namespace_details SET deletion_scheduled_at = NULL`)
		g.Mark(10, 1, 15)
		g.Run("scheduled_jobs=1")
		g.Exec("main", since)
		g.Attempt("completed skipped NO_LONGER_MARKED")
		g.WantRows(map[string]int{"namespaces": 1, "members": 1, "maintenance.group_removals": 0})
		g.Want("main", `SELECT state FROM namespaces`, "0")
		g.WantLog(i+1, "job finished", "level=INFO", "group_id=10", "reason=NO_LONGER_MARKED")
	}
}

func placeholderDetailsLoseTheirNamespace(g *servicetest.Groups) {
	g.User(2, `user_type = 15`)
	plant(g, "12")
	for _, key := range []string{"", `ALTER TABLE import_placeholder_user_details DROP CONSTRAINT import_placeholder_user_details_namespace_id_fkey`} {
		g.Exec("main", key)
		plant(g, "10 owner=1 mark=1@15", "11<10")
		g.Exec("main", `INSERT INTO import_placeholder_user_details (placeholder_user_id, namespace_id, organization_id, created_at, updated_at)
			SELECT 2, n, 1, now(), now() FROM unnest('{10,11,12}'::bigint[]) n`)
		g.Run("scheduled_jobs=1")
		g.Attempt("completed succeeded")
		g.Want("main", `SELECT string_agg(coalesce(namespace_id::text, '-'), ' ' ORDER BY id) FROM import_placeholder_user_details`, "- - 12")
		g.Exec("main", `DELETE FROM maintenance.river_job WHERE kind = 'delete_placeholder_user'`)
		servicetest.WantCounts(g.T, servicetest.RunPlaceholders(g.T, g.Service, false), "scheduled_jobs=1")
		g.Exec("main", `DELETE FROM import_placeholder_user_details`)
	}
}

// raising makes a trigger that refuses an operation on the rows of a table in words of its own.
func raising(operation, table string) string {
	return `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a secret'; END $$;
		CREATE TRIGGER refuse BEFORE ` + operation + ` ON ` + table + ` FOR EACH ROW EXECUTE FUNCTION refuse()`
}

func TestDestroyGroup_FailedAttemptSaysWhyInItsJob(t *testing.T) {
	const (
		raised = ": a trigger or function raised the error: check PostgreSQL's log"
		locked = ": another transaction holds a lock on a table or row that the statement needs: check pg_stat_activity"
	)
	g := servicetest.NewGroups(servicetest.Parallel(t))
	for name, c := range map[string]struct{ sql, other, reason, want string }{
		"raised on issues":    {raising("DELETE", "issues"), "", "", "cannot delete issues.project_id on main: P0001 raise_exception" + raised},
		"raised on projects":  {raising("DELETE", "projects"), "", "", "cannot remove project on main: P0001 raise_exception, table projects" + raised},
		"raised on marks":     {raising("DELETE", "group_deletion_schedules"), "", "", "cannot remove group on main: P0001 raise_exception, table group_deletion_schedules" + raised},
		"raised at the begin": {raising("UPDATE", "namespaces"), "", "", "cannot start the removal of the group on main: P0001 raise_exception, table namespaces" + raised},
		"state not allowed":   {`ALTER TABLE namespaces ADD CONSTRAINT no_four CHECK (state <> 4)`, "", "", "cannot start the removal of the group on main: 23514 check_violation, constraint no_four of namespaces"},
		"key to a project": {
			`CREATE TABLE foreigner (project_id bigint REFERENCES projects); INSERT INTO foreigner VALUES (1)`, "",
			"STILL_REFERENCED", "STILL_REFERENCED: foreigner.project_id still refers to the target",
		},
		"key to the group": {
			`CREATE TABLE foreigner (group_id bigint REFERENCES namespaces DEFERRABLE INITIALLY DEFERRED); INSERT INTO foreigner VALUES (10)`, "",
			"STILL_REFERENCED", "STILL_REFERENCED: foreigner.group_id still refers to the target",
		},
		"key to a member": {
			`CREATE TABLE foreigner (member_id bigint REFERENCES members); INSERT INTO foreigner SELECT id FROM members`, "",
			"STILL_REFERENCED", "STILL_REFERENCED: foreigner.member_id still refers to the target",
		},
		"locked group":   {`SELECT`, `SELECT FROM namespaces WHERE id = 10 FOR UPDATE`, "", "cannot start the removal of the group on main: 55P03 lock_not_available" + locked},
		"locked members": {`SELECT`, `SELECT FROM members FOR UPDATE`, "", "cannot remove members on main: 55P03 lock_not_available" + locked},
		"locked notes":   {`SELECT`, `SELECT FROM notes FOR UPDATE`, "", "rows of notes.noteable_id are locked by another transaction: check pg_stat_activity for long transactions"},
		"bad setting": {
			`UPDATE application_settings SET deletion_adjourned_period = -1`, "", "SETTING_INVALID",
			"deletion_adjourned_period in application_settings is -1: set the period to 0 or more days",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g.InTurn(t)
			g.Owned(10, 15)
			g.Project(1, 10, "p")
			g.Content(1)
			g.QueueJob(10, 1)
			g.Exec("main", c.sql)
			if c.other != "" {
				defer g.Other(c.other)()
			}
			g.Attempt(strings.TrimSpace("retryable failed " + c.reason))
			jobs := assert.Must(g.Service.Jobs(t.Context(), job.Filter{Kind: "destroy_group", Limit: 1}))(t)
			assert.Require(t, len(jobs) == 1 && jobs[0].Reason == c.reason &&
				jobs[0].Outcome == job.Failed && len(jobs[0].Errors) == 1, "%+v", jobs)
			assert.Equal(t, jobs[0].Errors[0].Error, c.want)
		})
	}
}

func whatHasBegunIsFinishedWhateverSpeaksAgainstItThen(g *servicetest.Groups) {
	for _, sql := range []string{
		`DELETE FROM group_deletion_schedules; UPDATE namespace_details SET deletion_scheduled_at = NULL`,
		`UPDATE group_deletion_schedules SET marked_for_deletion_on = current_date + 9`,
		`UPDATE users SET state = 'blocked' WHERE id = 1`,
		`DELETE FROM members`,
		`UPDATE namespaces SET state = 0 WHERE id = 10`,
		`UPDATE application_settings SET deletion_adjourned_period = -1`,
		`UPDATE application_settings SET deletion_adjourned_period = 900`,
		`DELETE FROM members; UPDATE issues SET author_id = NULL; DELETE FROM users WHERE id = 1`,
	} {
		g.Exec("main", `UPDATE users SET state = 'active'; UPDATE application_settings SET deletion_adjourned_period = 14;
			DELETE FROM maintenance.river_job`)
		plant(g, "10 owner=1 mark=1@15")
		g.Project(1, 10, "p")
		r := assert.Must(workJob(g, ""))(g.T)
		assert.Require(g.T, r.Snooze > 0, "%s: %+v, want a snooze", sql, r)
		g.WantRows(map[string]int{"maintenance.group_removals": 1})
		g.Exec("main", sql)
		g.Exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
		g.Attempt("completed succeeded")
		g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "maintenance.group_removals": 0})
	}
}

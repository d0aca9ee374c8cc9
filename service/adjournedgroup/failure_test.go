package adjournedgroup_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// raising makes a trigger that refuses an operation on the rows of a table in words of its own.
func raising(operation, table string) string {
	return `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a secret'; END $$;
		CREATE TRIGGER refuse BEFORE ` + operation + ` ON ` + table + ` FOR EACH ROW EXECUTE FUNCTION refuse()`
}

func TestDestroyGroup_FailedAttemptSaysWhyInItsJob(t *testing.T) {
	t.Parallel()
	const (
		raised = ": a trigger or function raises it; its words are in PostgreSQL's log"
		locked = ": another transaction holds a lock on a row of "
		look   = " that this needs; look for long ones in pg_stat_activity"
	)
	for name, c := range map[string]struct{ sql, other, reason, want string }{
		"raised on issues":    {raising("DELETE", "issues"), "", "", "delete issues.project_id on main: P0001 raise_exception" + raised},
		"raised on projects":  {raising("DELETE", "projects"), "", "", "remove project on main: P0001 raise_exception, table projects" + raised},
		"raised on marks":     {raising("DELETE", "group_deletion_schedules"), "", "", "remove group on main: P0001 raise_exception, table group_deletion_schedules" + raised},
		"raised at the begin": {raising("UPDATE", "namespaces"), "", "", "begin to remove group on main: P0001 raise_exception, table namespaces" + raised},
		"state not allowed":   {`ALTER TABLE namespaces ADD CONSTRAINT no_four CHECK (state <> 4)`, "", "", "begin to remove group on main: 23514 check_violation, constraint no_four of namespaces"},
		"key to a project": {
			`CREATE TABLE foreigner (project_id bigint REFERENCES projects); INSERT INTO foreigner VALUES (1)`, "",
			"STILL_REFERENCED", "STILL_REFERENCED: foreigner.project_id still refers to it",
		},
		"key to the group": {
			`CREATE TABLE foreigner (group_id bigint REFERENCES namespaces DEFERRABLE INITIALLY DEFERRED); INSERT INTO foreigner VALUES (10)`, "",
			"STILL_REFERENCED", "STILL_REFERENCED: foreigner.group_id still refers to it",
		},
		"key to a member": {
			`CREATE TABLE foreigner (member_id bigint REFERENCES members); INSERT INTO foreigner SELECT id FROM members`, "",
			"STILL_REFERENCED", "STILL_REFERENCED: foreigner.member_id still refers to it",
		},
		"locked group":   {`SELECT`, `SELECT FROM namespaces WHERE id = 10 FOR UPDATE`, "", "begin to remove group on main: 55P03 lock_not_available" + locked + "namespaces" + look},
		"locked members": {`SELECT`, `SELECT FROM members FOR UPDATE`, "", "remove members on main: 55P03 lock_not_available" + locked + "members" + look},
		"locked notes":   {`SELECT`, `SELECT FROM notes FOR UPDATE`, "", "rows of notes.noteable_id are locked by another transaction: look for long ones in pg_stat_activity"},
		"bad setting": {
			`UPDATE application_settings SET deletion_adjourned_period = -1`, "", "SETTING_INVALID",
			"deletion_adjourned_period in application_settings is -1: set it to a number of days, 0 or more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGroups(t)
			g.Owned(10, 15)
			g.Project(1, 10, "p")
			g.Content(1)
			g.QueueJob(10, 1)
			g.Exec("main", c.sql)
			if c.other != "" {
				defer g.Other(c.other)()
			}
			g.Attempt(strings.TrimSpace("retryable failed " + c.reason))
			jobs, err := g.Service.Jobs(t.Context(), service.JobFilter{Kind: "destroy_group", Limit: 1})
			if err != nil || len(jobs) != 1 || jobs[0].Reason != c.reason || jobs[0].Outcome != service.JobFailed || len(jobs[0].Errors) != 1 {
				t.Fatalf("%+v, %v", jobs, err)
			}
			if got := jobs[0].Errors[0].Error; got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestDestroyGroup_WhatHasBegunIsFinishedWhateverSpeaksAgainstItThen(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"mark gone":            `DELETE FROM group_deletion_schedules; UPDATE namespace_details SET deletion_scheduled_at = NULL`,
		"marked later":         `UPDATE group_deletion_schedules SET marked_for_deletion_on = current_date + 9`,
		"its user is gone":     `DELETE FROM members; UPDATE issues SET author_id = NULL; DELETE FROM users WHERE id = 1`,
		"its user is blocked":  `UPDATE users SET state = 'blocked' WHERE id = 1`,
		"its right is lost":    `DELETE FROM members`,
		"it looks untouched":   `UPDATE namespaces SET state = 0 WHERE id = 10`,
		"fewer days than none": `UPDATE application_settings SET deletion_adjourned_period = -1`,
		"many more days":       `UPDATE application_settings SET deletion_adjourned_period = 900`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGroups(t)
			g.Owned(10, 15)
			g.Project(1, 10, "p")
			if r, err := workJob(g, ""); err != nil || r.Snooze <= 0 {
				t.Fatalf("%+v, %v, want a snooze", r, err)
			}
			g.WantRows(map[string]int{"maintenance.group_removals": 1})
			g.Exec("main", sql)
			g.Exec("main", `UPDATE maintenance.river_job SET state = 'available'`)
			g.Attempt("completed succeeded")
			g.WantRows(map[string]int{"namespaces": 0, "projects": 0, "maintenance.group_removals": 0})
		})
	}
}

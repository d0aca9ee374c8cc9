package ghost

import (
	"strings"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/service/run"
)

// The lists define the actions for rows that refer to a user, in the order of execution.

// action is the change to a column that refers to the user, or to its row.
type action int

const (
	// give sets the column to the ghost.
	give action = iota
	// nullify sets the column to NULL.
	nullify
	// remove deletes the row, after its dependants.
	remove
	// forbid fails the user while such a row exists.
	forbid
)

// listLine is a line of a list: columns of a table, and the action for rows with the user there.
type listLine struct {
	table, columns string
	// only limits the line to some of those rows.
	only condition
	// normal is the action, hard the one with hard_delete.
	normal, hard action
	// database that should have the table, "" for main. If it is not configured, main has the
	// table.
	database string
}

// condition is a requirement on a column, in SQL. Every row meets the zero value.
type condition struct{ column, is string }

// sql returns the condition on the table's alias t. It returns "" for the zero condition.
func (c condition) sql() string {
	if c.column == "" {
		return ""
	}
	return "t." + c.column + " " + c.is
}

// removes reports whether the line deletes rows in any mode.
func (l listLine) removes() bool { return l.normal == remove || l.hard == remove }

// contributions are rows that others still read. The ghost gets them. With hard_delete most are
// deleted. Achievements that the user gave to others, events and vulnerabilities stay even then.
func contributions() []listLine {
	return []listLine{
		{
			table: "user_achievements", columns: "awarded_by_user_id revoked_by_user_id",
			normal: give, hard: give,
		},
		{table: "resource_iteration_events", columns: "user_id", normal: give, hard: give},
		{table: "resource_link_events", columns: "user_id", normal: give, hard: give},
		{table: "todos", columns: "author_id", normal: give, hard: remove},
		{table: "issues", columns: "author_id", normal: give, hard: remove},
		{table: "issues", columns: "last_edited_by_id", normal: give, hard: nullify},
		{table: "saved_views", columns: "created_by_id updated_by_id", normal: give, hard: nullify},
		{table: "merge_requests", columns: "author_id", normal: give, hard: remove},
		{table: "merge_requests", columns: "merge_user_id", normal: give, hard: nullify},
		{table: "notes", columns: "author_id", normal: give, hard: remove},
		{table: "resource_label_events", columns: "user_id", normal: give, hard: nullify},
		{table: "abuse_reports", columns: "reporter_id", normal: give, hard: nullify},
		{table: "award_emoji", columns: "user_id", normal: give, hard: remove},
		{
			table: "snippets", columns: "author_id", only: condition{"project_id", "IS NOT NULL"},
			normal: give, hard: remove,
		},
		{table: "reviews", columns: "author_id", normal: give, hard: remove},
		{table: "releases", columns: "author_id", normal: give, hard: nullify},
		{table: "timelogs", columns: "user_id", normal: give, hard: remove},
		{table: "p_ci_pipelines", columns: "user_id", normal: give, hard: nullify, database: "ci"},
		{table: "p_ci_builds", columns: "user_id", normal: give, hard: nullify, database: "ci"},
		{table: "epics", columns: "author_id", normal: give, hard: remove},
		{table: "epics", columns: "last_edited_by_id", normal: give, hard: nullify},
		{
			table: "vulnerability_feedback", columns: "author_id", normal: give, hard: remove,
			database: "sec",
		},
		{
			table: "vulnerability_feedback", columns: "comment_author_id", normal: give, hard: nullify,
			database: "sec",
		},
		{table: "vulnerabilities", columns: "author_id", normal: give, hard: give, database: "sec"},
		{
			table: "vulnerability_external_issue_links", columns: "author_id", normal: give, hard: give,
			database: "sec",
		},
	}
}

// nullifications are columns that only mention the user, in rows of other owners.
func nullifications() []listLine {
	return both(nullify, []listLine{
		{table: "keys", columns: "user_id", only: condition{"type", "= 'DeployKey'"}},
		{table: "projects", columns: "creator_id marked_for_deletion_by_user_id"},
		{table: "merge_requests", columns: "assignee_id updated_by_id last_edited_by_id"},
		{table: "merge_request_metrics", columns: "merged_by_id latest_closed_by_id"},
		{table: "issues", columns: "updated_by_id closed_by_id"},
		{table: "notes", columns: "updated_by_id resolved_by_id"},
		{table: "resource_state_events", columns: "user_id"},
		{table: "resource_milestone_events", columns: "user_id"},
		{table: "design_management_versions", columns: "author_id"},
		{table: "abuse_reports", columns: "user_id resolved_by_id"},
		{table: "abuse_report_events", columns: "user_id"},
		{table: "authentication_events", columns: "user_id"},
		{
			table:   "import_source_users",
			columns: "placeholder_user_id reassign_to_user_id reassigned_by_user_id",
		},
		{table: "jira_imports", columns: "user_id"},
		{table: "packages_packages", columns: "creator_id"},
		{table: "project_export_jobs", columns: "user_id"},
		{table: "ssh_signatures", columns: "user_id"},
		{table: "namespace_details", columns: "creator_id"},
		{table: "epics", columns: "assignee_id updated_by_id closed_by_id"},
		{table: "ci_pipeline_schedules", columns: "owner_id", database: "ci"},
		{table: "p_ci_builds", columns: "erased_by_id", database: "ci"},
		{
			table: "vulnerabilities",
			columns: "updated_by_id last_edited_by_id resolved_by_id dismissed_by_id " +
				"confirmed_by_id",
			database: "sec",
		},
	})
}

// deletions are rows without meaning after the user's deletion.
func deletions() []listLine {
	return both(remove, []listLine{
		{table: "snippets", columns: "author_id", only: condition{"project_id", "IS NULL"}},
		{table: "events", columns: "author_id"},
		{table: "todos", columns: "user_id"},
		{table: "issue_assignees", columns: "user_id"},
		{table: "merge_request_assignees", columns: "user_id"},
		{table: "merge_request_reviewers", columns: "user_id"},
		{table: "approvals", columns: "user_id"},
		{table: "draft_notes", columns: "author_id"},
		{table: "lists", columns: "user_id"},
		{table: "list_user_preferences", columns: "user_id"},
		{table: "board_group_recent_visits", columns: "user_id"},
		{table: "board_project_recent_visits", columns: "user_id"},
		{table: "protected_tag_create_access_levels", columns: "user_id"},
		{table: "protected_branch_merge_access_levels", columns: "user_id"},
		{table: "protected_branch_push_access_levels", columns: "user_id"},
		{table: "keys", columns: "user_id", only: condition{"type", "IS DISTINCT FROM 'DeployKey'"}},
		{table: "gpg_keys", columns: "user_id"},
		{table: "emails", columns: "user_id"},
		{table: "personal_access_tokens", columns: "user_id"},
		{table: "identities", columns: "user_id"},
		{table: "chat_names", columns: "user_id"},
		{table: "users_star_projects", columns: "user_id"},
		{table: "subscriptions", columns: "user_id"},
		{table: "spam_logs", columns: "user_id"},
		{table: "oauth_applications", columns: "owner_id", only: condition{"owner_type", "= 'User'"}},
		{table: "oauth_access_tokens", columns: "resource_owner_id"},
		{table: "bulk_import_exports", columns: "user_id"},
		{table: "import_offline_exports", columns: "user_id"},
		{table: "csv_issue_imports", columns: "user_id"},
		{table: "group_import_states", columns: "user_id"},
		{table: "import_failures", columns: "user_id"},
		{table: "members_deletion_schedules", columns: "user_id"},
		{table: "user_achievements", columns: "user_id"},
		{table: "members", columns: "user_id"},
		{table: "project_authorizations", columns: "user_id"},
	})
}

// both sets one action, with and without hard_delete.
func both(action action, lines []listLine) []listLine {
	for i := range lines {
		lines[i].normal, lines[i].hard = action, action
	}
	return lines
}

// allLists returns all lines in the order of execution.
func allLists() []listLine {
	return append(append(contributions(), nullifications()...), deletions()...)
}

// listedColumns returns all columns of the lists and of their conditions, by table.
func listedColumns() map[string][]string {
	wanted := map[string][]string{}
	for _, line := range allLists() {
		columns := strings.Fields(line.columns + " " + line.only.column)
		wanted[line.table] = append(wanted[line.table], columns...)
	}
	return wanted
}

// uses returns what runs do with a database: main may have the tables of ci and sec.
func uses(database string) (all []catalog.Use) {
	main := database == run.MainDatabase
	if main {
		all = []catalog.Use{
			{Table: "users", Rights: catalog.ToRemove | catalog.MayInsert, Removes: true},
			{Table: "namespaces", Rights: catalog.ToRemove, Removes: true},
			{Table: "projects", Rights: catalog.ToRead},
			{Table: "ghost_user_migrations", Rights: catalog.ToRemove},
			{Table: "users_ghost_user_migrations", Rights: catalog.ToRemove},
			{Table: schedules, Rights: catalog.ToRead},
			{Table: "loose_foreign_keys_deleted_records", Rights: catalog.MaySelect},
		}
	}
	for _, line := range allLists() {
		if main || line.database == database {
			all = append(all, catalog.Use{
				Table: line.table, Rights: catalog.ToChange, Columns: line.columns, Removes: line.removes(),
			})
		}
	}
	return all
}

// ListedColumns returns the columns, as "table.column", that may have a foreign key to users
// without keeping them: those of the lists, and those handled when a user is deleted.
func ListedColumns() []string {
	all := []string{schedules + ".user_id", "namespaces.owner_id"}
	for table := range gitlab.GhostTables() {
		all = append(all, table+".user_id")
	}
	for table, columns := range listedColumns() {
		for _, column := range columns {
			all = append(all, table+"."+column)
		}
	}
	return all
}

// Cascades returns what the lists do with rows of main, for finding the rows that protections keep.
// With hard_delete more is deleted, which the transactions themselves check.
func Cascades() (all []repo.JobCascade) {
	for _, line := range allLists() {
		for column := range strings.FieldsSeq(line.columns) {
			all = append(all, repo.JobCascade{
				Child: line.table, Column: column, Parent: "users", ParentColumn: "id",
				OnlyColumn: line.only.column, Only: line.only.is, Spared: line.normal != remove,
			})
		}
	}
	return all
}

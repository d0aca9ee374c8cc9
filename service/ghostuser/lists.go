package ghostuser

import "strings"

// What becomes of the rows of a user U, in this order.

// ghostAction is what happens to a column, or row, that refers to U.
type ghostAction int

const (
	// give the column to the ghost (G).
	give ghostAction = iota
	// nullify the column (N).
	nullify
	// remove the row by bounded removal (D).
	remove
	// forbid: a row must not be there.
	forbid
)

// ghostLine is a line of a list: columns of a table, and what happens to rows in which one of them is U.
type ghostLine struct {
	table, columns string
	// only is a further condition on the row.
	only ghostCondition
	// normal is the action, hard the one with hard_delete.
	normal, hard ghostAction
	// database in which the table is expected; "" is main.
	database string
}

// ghostCondition is what a column must be, in SQL; the zero value is none.
type ghostCondition struct{ column, is string }

func (c ghostCondition) sql() string {
	if c.column == "" {
		return ""
	}
	return "t." + c.column + " " + c.is
}

// removes says whether the line deletes rows in any mode.
func (l ghostLine) removes() bool { return l.normal == remove || l.hard == remove }

// contributions are section 6.1.
func contributions() []ghostLine {
	return []ghostLine{
		{table: "user_achievements", columns: "awarded_by_user_id revoked_by_user_id", normal: give, hard: give},
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
		{table: "snippets", columns: "author_id", only: ghostCondition{"project_id", "IS NOT NULL"}, normal: give, hard: remove},
		{table: "reviews", columns: "author_id", normal: give, hard: remove},
		{table: "releases", columns: "author_id", normal: give, hard: nullify},
		{table: "timelogs", columns: "user_id", normal: give, hard: remove},
		{table: "p_ci_pipelines", columns: "user_id", normal: give, hard: nullify, database: "ci"},
		{table: "p_ci_builds", columns: "user_id", normal: give, hard: nullify, database: "ci"},
		{table: "epics", columns: "author_id", normal: give, hard: remove},
		{table: "epics", columns: "last_edited_by_id", normal: give, hard: nullify},
		{table: "vulnerability_feedback", columns: "author_id", normal: give, hard: remove, database: "sec"},
		{table: "vulnerability_feedback", columns: "comment_author_id", normal: give, hard: nullify, database: "sec"},
		{table: "vulnerabilities", columns: "author_id", normal: give, hard: give, database: "sec"},
		{table: "vulnerability_external_issue_links", columns: "author_id", normal: give, hard: give, database: "sec"},
	}
}

// nullifications are section 6.2.
func nullifications() []ghostLine {
	return both(nullify, []ghostLine{
		{table: "keys", columns: "user_id", only: ghostCondition{"type", "= 'DeployKey'"}},
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
		{table: "import_source_users", columns: "placeholder_user_id reassign_to_user_id reassigned_by_user_id"},
		{table: "jira_imports", columns: "user_id"},
		{table: "packages_packages", columns: "creator_id"},
		{table: "project_export_jobs", columns: "user_id"},
		{table: "ssh_signatures", columns: "user_id"},
		{table: "namespace_details", columns: "creator_id"},
		{table: "epics", columns: "assignee_id updated_by_id closed_by_id"},
		{table: "ci_pipeline_schedules", columns: "owner_id", database: "ci"},
		{table: "p_ci_builds", columns: "erased_by_id", database: "ci"},
		{table: "vulnerabilities", columns: "updated_by_id last_edited_by_id resolved_by_id dismissed_by_id confirmed_by_id", database: "sec"},
	})
}

// deletions are section 6.3.
func deletions() []ghostLine {
	return both(remove, []ghostLine{
		{table: "snippets", columns: "author_id", only: ghostCondition{"project_id", "IS NULL"}},
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
		{table: "keys", columns: "user_id", only: ghostCondition{"type", "IS DISTINCT FROM 'DeployKey'"}},
		{table: "gpg_keys", columns: "user_id"},
		{table: "emails", columns: "user_id"},
		{table: "personal_access_tokens", columns: "user_id"},
		{table: "identities", columns: "user_id"},
		{table: "chat_names", columns: "user_id"},
		{table: "users_star_projects", columns: "user_id"},
		{table: "subscriptions", columns: "user_id"},
		{table: "spam_logs", columns: "user_id"},
		{table: "oauth_applications", columns: "owner_id", only: ghostCondition{"owner_type", "= 'User'"}},
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

// both sets one action for both modes.
func both(action ghostAction, lines []ghostLine) []ghostLine {
	for i := range lines {
		lines[i].normal, lines[i].hard = action, action
	}
	return lines
}

// ghostLists are all lines, in the order in which they are worked.
func ghostLists() []ghostLine {
	return append(append(contributions(), nullifications()...), deletions()...)
}

// ghostColumns are all columns of the lists, by table.
func ghostColumns() map[string][]string {
	wanted := map[string][]string{}
	for _, line := range ghostLists() {
		wanted[line.table] = append(wanted[line.table], strings.Fields(line.columns+" "+line.only.column)...)
	}
	return wanted
}

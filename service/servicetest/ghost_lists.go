package servicetest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ghostLists are the lists of the ghost migration: table, column, action, action with hard_delete, and more
// columns of the row where the line has a condition.
const ghostLists = `
user_achievements awarded_by_user_id G G
user_achievements revoked_by_user_id G G
resource_iteration_events user_id G G
resource_link_events user_id G G
todos author_id G D
issues author_id G D
issues last_edited_by_id G N
saved_views created_by_id G N
saved_views updated_by_id G N
merge_requests author_id G D
merge_requests merge_user_id G N
notes author_id G D
resource_label_events user_id G N
abuse_reports reporter_id G N
award_emoji user_id G D
snippets author_id G D project_id=1
reviews author_id G D
releases author_id G N
timelogs user_id G D
p_ci_pipelines user_id G N
p_ci_builds user_id G N
epics author_id G D
epics last_edited_by_id G N
vulnerability_feedback author_id G D
vulnerability_feedback comment_author_id G N
vulnerabilities author_id G G
vulnerability_external_issue_links author_id G G
keys user_id N N type='DeployKey'
projects creator_id N N
projects marked_for_deletion_by_user_id N N
merge_requests assignee_id N N
merge_requests updated_by_id N N
merge_requests last_edited_by_id N N
merge_request_metrics merged_by_id N N
merge_request_metrics latest_closed_by_id N N
issues updated_by_id N N
issues closed_by_id N N
notes updated_by_id N N
notes resolved_by_id N N
resource_state_events user_id N N
resource_milestone_events user_id N N
design_management_versions author_id N N
abuse_reports user_id N N
abuse_reports resolved_by_id N N
abuse_report_events user_id N N
authentication_events user_id N N
import_source_users placeholder_user_id N N
import_source_users reassign_to_user_id N N
import_source_users reassigned_by_user_id N N
jira_imports user_id N N
packages_packages creator_id N N
project_export_jobs user_id N N
ssh_signatures user_id N N
namespace_details creator_id N N
epics assignee_id N N
epics updated_by_id N N
epics closed_by_id N N
ci_pipeline_schedules owner_id N N
p_ci_builds erased_by_id N N
vulnerabilities updated_by_id N N
vulnerabilities last_edited_by_id N N
vulnerabilities resolved_by_id N N
vulnerabilities dismissed_by_id N N
vulnerabilities confirmed_by_id N N
snippets author_id D D project_id=NULL organization_id=1
events author_id D D
todos user_id D D
issue_assignees user_id D D
merge_request_assignees user_id D D
merge_request_reviewers user_id D D
approvals user_id D D
draft_notes author_id D D
lists user_id D D
list_user_preferences user_id D D
board_group_recent_visits user_id D D
board_project_recent_visits user_id D D
protected_tag_create_access_levels user_id D D
protected_branch_merge_access_levels user_id D D
protected_branch_push_access_levels user_id D D
keys user_id D D type=NULL
keys user_id D D type='Key'
gpg_keys user_id D D
emails user_id D D
personal_access_tokens user_id D D
identities user_id D D
chat_names user_id D D
users_star_projects user_id D D
subscriptions user_id D D
spam_logs user_id D D
oauth_applications owner_id D D owner_type='User'
oauth_access_tokens resource_owner_id D D
bulk_import_exports user_id D D
import_offline_exports user_id D D
csv_issue_imports user_id D D
group_import_states user_id D D
import_failures user_id D D
members_deletion_schedules user_id D D
user_achievements user_id D D
members user_id D D
project_authorizations user_id D D
organization_users user_id D D
user_details user_id D D
user_preferences user_id D D
import_placeholder_user_details placeholder_user_id D D
members_deletion_schedules scheduled_by_id D D
oauth_applications owner_id K K owner_type='Group'
users created_by_id K K
members created_by_id K K
ci_triggers owner_id K K`

// GhostRow is a row in which one column is user 10.
type GhostRow struct {
	Line, Database, Table, Column string
	Actions                       [2]string
	// rest is the row without the column, as JSON.
	Rest string
}

// InsertRows inserts a row for each line into the database that has its table, without regard to foreign keys.
func (g *Ghosts) InsertRows() (rows []GhostRow) {
	g.T.Helper()
	n := 1000
	for line := range strings.Lines(strings.TrimSpace(ghostLists)) {
		f := strings.Fields(line)
		r := GhostRow{Line: strings.TrimSpace(line), Table: f[0], Column: f[1], Actions: [2]string{f[2], f[3]}}
		for name := range g.SQL {
			if g.Value(name, `SELECT to_regclass('public.`+f[0]+`') IS NOT NULL`) == "true" {
				r.Database = name
			}
		}
		values := map[string]string{f[1]: "10"}
		for _, more := range f[4:] {
			column, value, _ := strings.Cut(more, "=")
			values[column] = value
		}
		n++
		g.fillRequired(r, values, n)
		columns, texts := []string{}, []string{}
		for column, value := range values {
			columns, texts = append(columns, column), append(texts, value)
		}
		err := g.SQL[r.Database].QueryRow(context.Background(), fmt.Sprintf(`INSERT INTO %[1]s (%[2]s) VALUES (%[3]s) RETURNING to_jsonb(%[1]s) - '%[4]s'`,
			r.Table, strings.Join(columns, ", "), strings.Join(texts, ", "), r.Column)).Scan(&r.Rest)
		if err != nil {
			g.T.Fatalf("%s: %v", r.Line, err)
		}
		rows = append(rows, r)
	}
	return rows
}

// fillRequired adds values for the columns that need one.
func (g *Ghosts) fillRequired(r GhostRow, values map[string]string, n int) {
	g.T.Helper()
	const required = `SELECT column_name, data_type FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name = $1 AND (is_nullable = 'NO' AND column_default IS NULL OR column_name IN ('id', 'project_id'))`
	found, err := g.SQL[r.Database].Query(context.Background(), required, r.Table) //nolint:rowserrcheck // ForEachRow returns it
	if err != nil {
		g.T.Fatal(err)
	}
	var column, kind string
	_, err = pgx.ForEachRow(found, []any{&column, &kind}, func() error {
		if _, is := values[column]; is {
			return nil
		}
		switch {
		case slices.Contains([]string{"namespace_id", "group_id"}, column) && r.Table != "namespace_details" && r.Table != "group_import_states":
			values[column] = "100"
		case strings.HasSuffix(column, "_by_id"), slices.Contains([]string{"user_id", "author_id", "owner_id"}, column):
			values[column] = "7"
		case column == "partition_id":
			values[column] = fmt.Sprint(100 + n%3)
		case slices.Contains([]string{"id", "iid", "group_id", "namespace_id", "project_namespace_id", "merge_request_id"}, column):
			values[column] = fmt.Sprint(n)
		case strings.HasPrefix(kind, "timestamp"):
			values[column] = "now()"
		case kind == "text", kind == "character varying":
			values[column] = fmt.Sprintf("'x%d'", n)
		case kind == "bytea":
			values[column] = "''"
		default:
			values[column] = "1"
		}
		return nil
	})
	if err != nil {
		g.T.Fatal(err)
	}
}

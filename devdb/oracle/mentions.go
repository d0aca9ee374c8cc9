package oracle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// mentions are the columns that mention a user: table, column, what becomes of it, and with
// hard_delete. And more columns of the row where that is so only under a condition. The order is
// that in which they are worked.
const mentions = `
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

// Treatment of a column that mentions a deleted user, beside D: the row is deleted.
const (
	given     = "G" // it is the ghost
	null      = "N"
	untouched = "K"
)

// Mention is a column that mentions users.
type Mention struct {
	// Line reports all of it, in a word for each field.
	Line, Table, Column string
	// Normal is what becomes of it when the user goes, Hard the same with hard_delete.
	Normal, Hard string
	with         map[string]string
	// number of the line, from 0.
	number int
}

// Mentions are all columns of main, ci and sec that mention users.
func Mentions() (all []Mention) {
	for line := range strings.Lines(strings.TrimSpace(mentions)) {
		f := strings.Fields(line)
		m := Mention{
			Line: strings.TrimSpace(line), Table: f[0], Column: f[1], Normal: f[2], Hard: f[3],
			with: map[string]string{}, number: len(all),
		}
		for _, more := range f[4:] {
			column, value, _ := strings.Cut(more, "=")
			m.with[column] = value
		}
		all = append(all, m)
	}
	return all
}

// InsertSQL is a statement that inserts a row and returns it without the column, as JSON. $1 is the
// user who is mentioned, $2, at least 1000, what must be unique. Other users that the row needs are
// user 7. Where nothing else is there that the row refers to, the session must not check foreign
// keys.
func (m Mention) InsertSQL(ctx context.Context, in querier) (string, error) {
	values := map[string]string{m.Column: "x.who"}
	maps.Copy(values, m.with)
	if err := m.fillRequired(ctx, in, values); err != nil {
		return "", fmt.Errorf("%s: %w", m.Line, err)
	}
	columns, texts := []string{}, []string{}
	for column, value := range values {
		columns, texts = append(columns, column), append(texts, value)
	}
	return fmt.Sprintf(`INSERT INTO %[1]s (%[2]s) SELECT %[3]s FROM (SELECT $1::bigint AS who, $2::bigint AS n) x
		RETURNING to_jsonb(%[1]s) - '%[4]s'`, m.Table, strings.Join(columns, ", "), strings.Join(texts, ", "), m.Column), nil
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

const requiredSQL = `
SELECT column_name, data_type FROM information_schema.columns
WHERE table_schema = 'public' AND table_name = $1 AND (is_nullable = 'NO' AND column_default IS NULL OR column_name IN ('id', 'project_id'))`

// onePerNamespace are the tables that have no two rows of a namespace, or of a namespace and a user.
var onePerNamespace = []string{"namespace_details", "group_import_states", "members_deletion_schedules"} //nolint:gochecknoglobals // never changed

// fillRequired adds values for the columns that need one.
func (m Mention) fillRequired(ctx context.Context, in querier, values map[string]string) error {
	found, err := in.Query(ctx, requiredSQL, m.Table) //nolint:rowserrcheck // ForEachRow returns it
	if err != nil {
		return err
	}
	var column, kind string
	_, err = pgx.ForEachRow(found, []any{&column, &kind}, func() error {
		if _, is := values[column]; is {
			return nil
		}
		switch {
		case slices.Contains([]string{"namespace_id", "group_id"}, column) && !slices.Contains(onePerNamespace, m.Table):
			values[column] = fmt.Sprint(FirstGroup)
		case strings.HasSuffix(column, "_by_id"), slices.Contains([]string{"user_id", "author_id", "owner_id"}, column):
			values[column] = fmt.Sprint(clubOwner)
		case column == "partition_id":
			values[column] = "100 + x.n % 3"
		case slices.Contains([]string{"id", "iid", "group_id", "namespace_id", "project_namespace_id", "merge_request_id", "vulnerability_id"}, column):
			values[column] = "x.n"
		case strings.HasPrefix(kind, "timestamp"):
			values[column] = "now()"
		case kind == "text", kind == "character varying":
			values[column] = "'x' || x.n"
		case kind == "bytea":
			values[column] = "''"
		default:
			values[column] = "1"
		}
		return nil
	})
	return err
}

// database is where a mention is, if ci and sec are apart.
func (m Mention) database() string {
	switch {
	case strings.HasPrefix(m.Table, "p_ci_"), strings.HasPrefix(m.Table, "ci_"):
		return "ci"
	case strings.HasPrefix(m.Table, "vulnerabilit"):
		return "sec"
	}
	return "main"
}

// Rows that mention a user have ids from firstMention to lastMention. The other rows of the model
// have ids below 60,000. The remainder by mentionLines reports of which line a row is, where a
// table has ids.
const (
	firstMention, lastMention = 60_032, 99_999 // the first is a multiple of mentionLines
	mentionLines              = 128
)

// mention is a line of which an estate has a row for each of these users.
type mention struct {
	Mention
	users []int
}

// id of the row of the nth user, and of other rows of that line.
func (m Mention) id(n int) int { return firstMention + m.number + mentionLines*n }

// modelled are the mentions of which an estate has rows, not those that stay, nor those of tables
// that other parts of the model cover.
func modelled() []Mention {
	known := []string{"users", "members", "projects", "namespace_details", "personal_access_tokens", "import_placeholder_user_details"}
	return slices.DeleteFunc(Mentions(), func(m Mention) bool { return m.Normal == untouched || slices.Contains(known, m.Table) })
}

// addMentions adds rows in some columns for all users that may be deleted. It adds rows in all
// columns for the user who is deleted with all contributions.
func (e *Estate) addMentions() {
	for _, m := range modelled() {
		of := mention{Mention: m}
		for _, u := range e.users {
			if u.id == hardDeleted || u.id >= lastCast && u.kind != 15 && (13*u.id+m.number)%16 == 0 {
				of.users = append(of.users, u.id)
			}
		}
		e.mentions = append(e.mentions, of)
	}
}

// loadMentions inserts the rows, which may refer to what is not there.
func (e *Estate) loadMentions(ctx context.Context, to Databases) error {
	for _, database := range []string{"main", "ci", "sec"} {
		err := pgx.BeginFunc(ctx, to.of(database), func(tx pgx.Tx) error {
			rows := &pgx.Batch{}
			rows.Queue(`SET LOCAL session_replication_role = replica`)
			for _, m := range e.mentions {
				if m.database() != database {
					continue
				}
				sql, err := m.InsertSQL(ctx, tx)
				if err != nil {
					return err
				}
				for n, user := range m.users {
					rows.Queue(sql, user, m.id(n))
				}
			}
			return tx.SendBatch(ctx, rows).Close()
		})
		if err != nil {
			return fmt.Errorf("mentions in %s: %w", database, err)
		}
	}
	return nil
}

// mentionTables are [Tables] of how many rows of each line mention whom.
func mentionTables() map[string]Table {
	queries := map[string][]string{}
	for _, m := range modelled() {
		queries[m.database()] = append(queries[m.database()], fmt.Sprintf(`
			SELECT concat_ws(' ', '%[1]s:', who, n) FROM (SELECT `+ghostOrUser+` AS who, count(*) AS n
				FROM (SELECT %[2]s AS user_id, coalesce((to_jsonb(t) ->> 'id')::bigint, %[4]d) AS id FROM %[3]s t) x
				WHERE id BETWEEN %[5]d AND %[6]d AND id %% %[7]d = %[8]d GROUP BY 1) y`,
			strings.ReplaceAll(m.Line, "'", "''"), m.Column, m.Table, m.id(0), firstMention, lastMention, mentionLines, m.number))
	}
	tables := map[string]Table{}
	for database, of := range queries {
		tables["mentions in "+database] = Table{database, strings.Join(of, " UNION ALL ")}
	}
	return tables
}

// addMentionRows adds how many rows of each line mention whom at the end.
func (e *Estate) addMentionRows(add func(string, ...any)) {
	for _, m := range e.mentions {
		rows := map[string]int{}
		for _, user := range m.users {
			becomes := m.Normal
			if user == hardDeleted {
				becomes = m.Hard
			}
			switch {
			case !e.userGone(user):
				rows[fmt.Sprint(user)]++
			case becomes == given:
				rows[e.author(user)]++
			case becomes == null:
				rows["nobody"]++
			}
		}
		for who, n := range rows {
			add("mentions in "+m.database(), m.Line+":", who, n)
		}
	}
}

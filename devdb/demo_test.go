package devdb

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// demoEstate clones main, ci and sec with demo data in them.
func demoEstate(t *testing.T) map[string]string {
	t.Helper()
	urls := map[string]string{}
	for _, name := range []string{"main", "ci", "sec"} {
		urls[name] = databases.Clone(t, DemoTemplate(name))
	}
	return urls
}

// marks are the groups' marks in both stores as the later date, and the user.
const marks = `
SELECT n.id, n.state, n.path, d.state_metadata, greatest(s.marked_for_deletion_on, (d.deletion_scheduled_at AT TIME ZONE 'UTC')::date) AS on,
       coalesce((d.state_metadata ->> 'deletion_scheduled_by_user_id')::bigint, s.user_id) AS user_id
FROM namespaces n JOIN namespace_details d ON d.namespace_id = n.id LEFT JOIN group_deletion_schedules s ON s.group_id = n.id
WHERE s.group_id IS NOT NULL OR d.deletion_scheduled_at IS NOT NULL`

const owners = `(SELECT m.source_id, m.user_id FROM members m WHERE m.type = 'GroupMember' AND m.access_level = 50)`

// keeps is the rule by which a token keeps its bot, with 30 days.
const keeps = `(t.revoked IS NOT TRUE AND (t.expires_at IS NULL OR t.expires_at > current_date)
	OR t.expires_at <= current_date AND t.expires_at >= current_date - 30
	OR t.revoked AND t.updated_at >= now() AT TIME ZONE 'UTC' - interval '30 days')`

// referenced is the rule that keeps a placeholder, in what the demo has of it.
const referenced = `(EXISTS (SELECT FROM notes WHERE author_id = p.placeholder_user_id) OR EXISTS (SELECT FROM approvals WHERE user_id = p.placeholder_user_id))`

const due = "p.namespace_id IS NULL AND p.deletion_attempts < 15 AND (p.last_deletion_attempt_at IS NULL OR p.last_deletion_attempt_at < now() - interval '48 hours')"

type census struct {
	what, database, from string // SELECT count(*) FROM ...
	want                 int
}

func (c census) check(t *testing.T, urls map[string]string) {
	t.Helper()
	assert.Equal(t, column(t, urls[c.database], "SELECT count(*)::text FROM "+c.from)[0], strconv.Itoa(c.want), c.what, c.want)
}

func TestDemo_HasWorkForEachWorkerAndRowsToLeaveAlone(t *testing.T) {
	t.Parallel()
	urls := demoEstate(t)
	for _, c := range slices.Concat(workCensus(), groupCensus()) {
		c.check(t, urls)
	}
	// New rows never get the id of a deleted parent.
	for database, sequences := range map[string]map[string]string{
		"main": {"users_id_seq": "users", "namespaces_id_seq": "namespaces", "projects_id_seq": "projects", "merge_requests_id_seq": "merge_requests"},
		"ci":   {"ci_pipelines_id_seq": "p_ci_pipelines", "ci_triggers_id_seq": "ci_triggers"},
		"sec":  {"vulnerabilities_id_seq": "vulnerabilities"},
	} {
		for sequence, table := range sequences {
			census{sequence + " too low", database, "loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public." + table +
				"' AND primary_key_value > (SELECT last_value FROM " + sequence + ")", 0}.check(t, urls)
		}
	}
}

func workCensus() []census {
	details, bots := "import_placeholder_user_details p WHERE ", "users b WHERE user_type = 6"
	queue := "ghost_user_migrations q JOIN users u ON u.id = q.user_id WHERE "
	kept := " AND EXISTS (SELECT FROM personal_access_tokens t WHERE t.user_id = b.id AND " + keeps + ")"
	dead := " AND NOT EXISTS (SELECT FROM personal_access_tokens t WHERE t.user_id = b.id AND " + keeps + ")"
	queued := " EXISTS (SELECT FROM ghost_user_migrations WHERE user_id = b.id)"
	return []census{
		{"eligible placeholders", "main", details + due, 30},
		{"of these on the last attempt", "main", details + due + " AND p.deletion_attempts = 14", 2},
		{"of these still referenced", "main", details + due + " AND " + referenced, 5},
		{"placeholders tried yesterday", "main", details + "namespace_id IS NULL AND last_deletion_attempt_at BETWEEN now() - interval '25 hours' AND now() - interval '23 hours'", 5},
		{"exhausted placeholders", "main", details + "namespace_id IS NULL AND deletion_attempts >= 15", 3},
		{"placeholders with a live namespace", "main", details + "namespace_id IS NOT NULL", 4},
		{"placeholder details that are no placeholder's", "main", "import_placeholder_user_details p JOIN users u ON u.id = p.placeholder_user_id WHERE u.user_type <> 15", 0},
		{"bots", "main", bots, 60},
		{"inactive bots", "main", bots + dead + " AND NOT" + queued, 20},
		{"of these without a token", "main", bots + " AND NOT" + queued + " AND NOT EXISTS (SELECT FROM personal_access_tokens WHERE user_id = b.id)", 5},
		{"active bots", "main", bots + kept + " AND EXISTS (SELECT FROM personal_access_tokens t WHERE t.user_id = b.id AND t.revoked IS NOT TRUE AND (t.expires_at IS NULL OR t.expires_at > current_date))", 30},
		{"bots revoked lately", "main", bots + kept + " AND NOT EXISTS (SELECT FROM personal_access_tokens t WHERE t.user_id = b.id AND t.revoked IS NOT TRUE)", 5},
		{"bots in the ghost queue", "main", bots + " AND" + queued, 5},
		{"humans due", "main", queue + "u.user_type = 0 AND q.consume_after <= now()", 8},
		{"bots due", "main", queue + "u.user_type IN (6, 13, 15) AND q.consume_after <= now()", 12},
		{"rows half an hour ahead", "main", queue + "q.consume_after = q.created_at + interval '12 hours 30 minutes'", 2},
		{"refused rows", "main", queue + "u.user_type NOT IN (0, 6, 13, 15)", 1},
		{"queued support bots", "main", queue + "u.user_type = 1", 1},
		{"users with 20,000 notes", "main", queue + "q.consume_after <= now() AND (SELECT count(*) FROM notes WHERE author_id = u.id) = 20000", 1},
	}
}

func groupCensus() []census {
	all := "(" + marks + ") AS g"
	is := "g.on <= (now() AT TIME ZONE 'UTC')::date - 30"
	dueGroups := all + " WHERE " + is
	return []census{
		{"groups due", "main", dueGroups, 6},
		{"of these with an owner through the parent", "main", dueGroups + " AND NOT EXISTS (SELECT FROM " + owners + " o WHERE o.source_id = g.id) AND EXISTS (SELECT FROM " + owners + " o JOIN namespaces n ON n.parent_id = o.source_id WHERE n.id = g.id AND o.user_id = g.user_id)", 1},
		{"of these with a blocked owner", "main", dueGroups + " AND EXISTS (SELECT FROM " + owners + " o JOIN users u ON u.id = o.user_id WHERE o.source_id = g.id AND o.user_id = g.user_id AND u.state = 'blocked')", 1},
		{"of these with a missing user", "main", dueGroups + " AND NOT EXISTS (SELECT FROM users u WHERE u.id = g.user_id)", 1},
		{"of these with a due parent", "main", "namespaces n WHERE n.id IN (SELECT id FROM " + dueGroups + ") AND n.parent_id IN (SELECT id FROM " + dueGroups + ")", 1},
		{"groups not yet due", "main", all + " WHERE g.on > (now() AT TIME ZONE 'UTC')::date - 30", 3},
		{"lost marks", "main", "namespaces n WHERE (state = 2 OR path LIKE '%-deletion\\_scheduled-' || id) AND NOT EXISTS (SELECT FROM " + all + " WHERE g.id = n.id)", 1},
		{"groups archived before", "main", all + " WHERE g.state_metadata -> 'preserved_states' ->> 'schedule_deletion' = 'archived'", 1},
		{"marked groups without the suffix", "main", all + " WHERE g.path NOT LIKE '%-deletion\\_scheduled-' || g.id", 0},
	}
}

func TestDemo_DeletedParentsLeaveChildrenInAllDatabases(t *testing.T) {
	t.Parallel()
	urls := demoEstate(t)
	records := 0
	parents := map[string]map[string]bool{}
	for _, url := range urls {
		for _, record := range column(t, url, "SELECT fully_qualified_table_name || ' ' || primary_key_value FROM loose_foreign_keys_deleted_records") {
			records++
			table, key, _ := strings.Cut(record, " ")
			if parents[table] == nil {
				parents[table] = map[string]bool{}
			}
			parents[table][key] = true
		}
	}
	assert.That(t, records >= 950 && records <= 1050, "%d records, want about 1,000", records)
	for _, child := range []struct{ database, table, column, parent string }{
		{"ci", "ci_namespace_mirrors", "namespace_id", "namespaces"},
		{"ci", "ci_pipeline_metadata", "project_id", "projects"},
		{"ci", "ci_pipeline_schedules", "project_id", "projects"},
		{"ci", "ci_pipeline_schedules", "owner_id", "users"},
		{"ci", "ci_project_mirrors", "project_id", "projects"},
		{"main", "merge_requests", "head_pipeline_id", "p_ci_pipelines"},
		{"main", "notes", "noteable_id", "vulnerabilities"},
		{"ci", "p_ci_builds", "project_id", "projects"},
		{"ci", "p_ci_builds", "user_id", "users"},
		{"ci", "p_ci_pipelines", "trigger_id", "ci_triggers"},
		{"ci", "p_ci_pipelines", "merge_request_id", "merge_requests"},
		{"ci", "p_ci_pipelines", "project_id", "projects"},
		{"ci", "p_ci_pipelines", "user_id", "users"},
		{"main", "packages_npm_metadata_caches", "project_id", "projects"},
		{"sec", "vulnerabilities", "project_id", "projects"},
		{"sec", "vulnerabilities", "resolved_by_id", "users"},
	} {
		keys := slices.Collect(maps.Keys(parents["public."+child.parent]))
		if got := children(t, urls[child.database], child.table, child.column, keys); got == 0 {
			t.Errorf("%s.%s: no row refers to a deleted row of %s", child.table, child.column, child.parent)
		}
	}
	// Loaded twice, it stays as it is.
	before := column(t, urls["main"], fingerprint)[0]
	assert.NoError(t, LoadDemo(t.Context(), urls))
	assert.Equal(t, column(t, urls["main"], fingerprint)[0], before, "the rows")
}

// children counts the rows that refer to one of the keys.
func children(t *testing.T, url, table, column string, keys []string) int {
	t.Helper()
	ctx := context.Background()
	conn := assert.Must(pgx.Connect(ctx, url))(t)
	defer func() { _ = conn.Close(ctx) }()
	var count int
	query := "SELECT count(*) FROM " + pgx.Identifier{table}.Sanitize() + " WHERE " + pgx.Identifier{column}.Sanitize() + "::text = ANY ($1)"
	assert.NoError(t, conn.QueryRow(ctx, query, keys).Scan(&count))
	return count
}

// fingerprint is of the rows without their times.
const fingerprint = `SELECT md5(string_agg(row, ',' ORDER BY row)) FROM (
	SELECT format('u %s %s %s %s', id, user_type, state, organization_id) FROM users
	UNION ALL SELECT format('n %s %s %s %s', id, path, state, traversal_ids) FROM namespaces
	UNION ALL SELECT format('i %s %s %s %s', id, author_id, closed_by_id, iid) FROM issues
	UNION ALL SELECT format('c %s %s %s %s', id, author_id, noteable_type, noteable_id) FROM notes) AS rows (row)`

func TestDemo_GoesIntoMainAloneWhenNothingElseIsConfigured(t *testing.T) {
	t.Parallel()
	urls := map[string]string{"main": databases.Clone(t, Template{Name: "demo_alone", Schema: "all", Dated: true, Prepare: func(ctx context.Context, url string) error {
		return LoadDemo(ctx, map[string]string{"main": url})
	}})}
	if got, want := column(t, urls["main"], fingerprint)[0], column(t, demoEstate(t)["main"], fingerprint)[0]; got != want {
		t.Errorf("rows differ from one load to the next: %s, %s", got, want)
	}
	census{"pipelines", "main", "p_ci_pipelines", 10000}.check(t, urls)
	census{"vulnerabilities", "main", "vulnerabilities", 500}.check(t, urls)
	census{"records", "main", "loose_foreign_keys_deleted_records", 1000}.check(t, urls)
}

func TestDemo_DefinitionsNameTablesAndColumnsThatExist(t *testing.T) {
	t.Parallel()
	url := databases.Clone(t, Template{Name: "all", Schema: "all"})
	child, entries := "", 0
	for line := range strings.Lines(Definitions()) {
		key, value, _ := strings.Cut(strings.TrimLeft(strings.TrimSpace(line), "- "), ":")
		value = strings.TrimSpace(value)
		switch {
		case strings.HasPrefix(line, "#"):
		case !strings.HasPrefix(line, " "):
			child = key
		case key == "table":
			entries++
			census{value + " with a trigger", "main", "pg_trigger WHERE tgname = '" + value + "_loose_fk_trigger'", 1}.check(t, map[string]string{"main": url})
		case key == "column", key == "target_column":
			census{child + "." + value, "main", "pg_attribute WHERE attrelid = to_regclass('" + child + "') AND attname = '" + value + "'", 1}.check(t, map[string]string{"main": url})
		}
	}
	assert.Equal(t, entries, 16, "definitions")
}

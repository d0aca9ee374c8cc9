package devdb

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// column returns the first column of a query.
func column(t *testing.T, url, query string) []string {
	t.Helper()
	ctx := context.Background()
	conn := assert.Must(pgx.Connect(ctx, url))(t)
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, query)
	assert.NoError(t, err)
	return assert.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
}

// run executes statements.
func run(t *testing.T, url string, statements ...string) {
	t.Helper()
	ctx := context.Background()
	conn := assert.Must(pgx.Connect(ctx, url))(t)
	defer func() { _ = conn.Close(ctx) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func triggersOf(t *testing.T, url string) []string {
	t.Helper()
	return column(t, url, `SELECT tgrelid::regclass || ' ' || tgname || ' ' || tgenabled::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1`)
}

func TestSchema_HasGitLabsTriggersAndNoOthers(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string][]string{
		"main": {
			"merge_requests merge_requests_loose_fk_trigger O", "namespaces namespaces_insert_details O", "namespaces namespaces_loose_fk_trigger O",
			"projects projects_delete_namespace O", "projects projects_loose_fk_trigger O", "users users_loose_fk_trigger O",
		},
		"ci": {
			"ci_triggers ci_triggers_loose_fk_trigger O", "gitlab_partitions_dynamic.ci_pipelines_100 ci_pipelines_100_loose_fk_trigger O",
			"gitlab_partitions_dynamic.ci_pipelines_101 ci_pipelines_101_loose_fk_trigger O",
			"gitlab_partitions_dynamic.ci_pipelines_102 ci_pipelines_102_loose_fk_trigger O", "p_ci_pipelines p_ci_pipelines_loose_fk_trigger O",
		},
		"sec": {"vulnerabilities vulnerabilities_loose_fk_trigger O"},
	} {
		if got := triggersOf(t, databases.Clone(t, Template{Name: schema, Schema: schema})); !slices.Equal(got, want) {
			t.Errorf("%s: %q", schema, got)
		}
	}
}

const records = `SELECT fully_qualified_table_name || ' ' || primary_key_value || ' ' || partition || ' ' || status || ' ' || cleanup_attempts || ' ' || (consume_after = created_at)
	FROM loose_foreign_keys_deleted_records ORDER BY id`

func TestSchema_ADeleteIsRecordedOnceForEachRow(t *testing.T) {
	t.Parallel()
	url := databases.Clone(t, Template{Name: "ci", Schema: "ci"})
	run(t, url, "INSERT INTO p_ci_pipelines (id, partition_id, project_id) SELECT n, 100 + n % 3, 1 FROM generate_series(1, 6) AS n",
		"DELETE FROM p_ci_pipelines WHERE id IN (1, 2)", "DELETE FROM gitlab_partitions_dynamic.ci_pipelines_100 WHERE id = 3", "DELETE FROM p_ci_pipelines WHERE id = 99")
	want := []string{"public.p_ci_pipelines 1 1 1 0 true", "public.p_ci_pipelines 2 1 1 0 true", "public.p_ci_pipelines 3 1 1 0 true"}
	got := column(t, url, records)
	slices.Sort(got)
	assert.That(t, slices.Equal(got, want), "%q", got)
}

func TestSchema_AProjectTakesItsNamespaceAlong(t *testing.T) {
	t.Parallel()
	url := databases.Clone(t, Template{Name: "main", Schema: "main"})
	run(t, url, "INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())",
		"INSERT INTO namespaces (id, name, path, type, organization_id) VALUES (7, 'p', 'p', 'Project', 1), (8, 'g', 'g', 'Group', 1)",
		"INSERT INTO projects (id, namespace_id, project_namespace_id, organization_id) VALUES (5, 8, 7, 1)")
	if got := column(t, url, "SELECT namespace_id::text FROM namespace_details ORDER BY 1"); !slices.Equal(got, []string{"7", "8"}) {
		t.Errorf("namespace_details of %q", got)
	}
	run(t, url, "DELETE FROM projects")
	got := column(t, url, records)
	slices.Sort(got)
	assert.That(t, slices.Equal(got, []string{"public.namespaces 7 1 1 0 true", "public.projects 5 1 1 0 true"}), "%q", got)
	if got := column(t, url, "SELECT id::text FROM namespaces"); !slices.Equal(got, []string{"8"}) {
		t.Errorf("namespaces %q", got)
	}
}

func TestSchema_LoadedTwiceStaysAsItIs(t *testing.T) {
	t.Parallel()
	url := databases.Clone(t, Template{Name: "main", Schema: "main"})
	for _, schema := range []string{"main", "all"} { // ci and sec come in addition
		assert.NoError(t, LoadSchema(t.Context(), url, schema))
	}
	if got := triggersOf(t, url); len(got) != 12 {
		t.Errorf("triggers: %q", got)
	}
	if err := LoadSchema(t.Context(), "postgres://127.0.0.1:1/x", "man"); err == nil {
		t.Error("an unknown name is no error")
	}
}

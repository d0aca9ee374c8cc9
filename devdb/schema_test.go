package devdb

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// catalogueFacts spells the catalogue like readNotation. Partitions are one
// fact each; that they are like their parent is PostgreSQL's business.
const catalogueFacts = `
WITH ours AS (
	SELECT oid, relname, relkind FROM pg_class
	WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')),
plain (oid, spelled) AS ( -- casts of literals and outer parentheses go
	SELECT d.oid, regexp_replace(pg_get_expr(d.adbin, d.adrelid), '::[a-z ]+(\[\])?', '', 'g') FROM pg_attrdef d
	UNION ALL
	SELECT c.oid, lower(regexp_replace(regexp_replace(pg_get_constraintdef(c.oid), '::[a-z ]+', '', 'g'), '^CHECK \((.*)\)$', '\1')) FROM pg_constraint c)
SELECT 'table ' || relname FROM ours
UNION ALL
SELECT t.relname || ' partitioned ' || pg_get_partkeydef(t.oid) FROM ours t WHERE t.relkind = 'p'
UNION ALL
SELECT n.nspname || '.' || c.relname || ' of ' || t.relname || ' ' || pg_get_expr(c.relpartbound, c.oid)
FROM ours t JOIN pg_inherits i ON i.inhparent = t.oid JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.relkind = 'p' AND c.relkind = 'r'
UNION ALL
SELECT t.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
	|| CASE WHEN a.attnotnull THEN ' not null' ELSE '' END || coalesce(' default ' || p.spelled, '')
FROM ours t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum LEFT JOIN plain p ON p.oid = d.oid
UNION ALL
SELECT t.relname || ' primary key (' || (SELECT string_agg(a.attname, ', ' ORDER BY k.n)
	FROM unnest(c.conkey) WITH ORDINALITY AS k (num, n) JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.num) || ')'
FROM ours t JOIN pg_constraint c ON c.conrelid = t.oid AND c.contype = 'p'
UNION ALL
SELECT t.relname || '.' || a.attname || ' references ' || c.confrelid::regclass
	|| ' on delete ' || CASE c.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'a' THEN 'NO ACTION' ELSE c.confdeltype::text END
FROM ours t JOIN pg_constraint c ON c.conrelid = t.oid AND c.contype = 'f' JOIN pg_attribute a ON a.attrelid = t.oid AND ARRAY[a.attnum] = c.conkey
UNION ALL
SELECT t.relname || ' check ' || p.spelled FROM ours t JOIN pg_constraint c ON c.conrelid = t.oid AND c.contype = 'c' JOIN plain p ON p.oid = c.oid
UNION ALL
SELECT t.relname || CASE WHEN i.indisunique THEN ' unique' WHEN m.amname = 'gin' THEN ' gin' ELSE '' END || ' index '
	|| regexp_replace(split_part(split_part(regexp_replace(pg_get_indexdef(i.indexrelid), '::text', '', 'g'), ' USING ' || m.amname || ' ', 2), ' WHERE ', 1), '\(\((.*)\)\)', '(\1)')
	|| coalesce(' where ' || lower(trim(both '()' from pg_get_expr(i.indpred, i.indrelid))), '')
FROM ours t JOIN pg_index i ON i.indrelid = t.oid AND NOT i.indisprimary
JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam`

func readCatalogue(t *testing.T, url string) schemaFacts {
	t.Helper()
	facts := schemaFacts{}
	for _, fact := range column(t, url, catalogueFacts) {
		facts[fact] = true
	}
	return facts
}

// column returns the first column of a query.
func column(t *testing.T, url, query string) []string {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, query)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestSchema_IsTheNotation(t *testing.T) {
	for schema, parts := range map[string][]string{
		"main": {"main"}, "ci": {"ci"}, "sec": {"sec"}, "all": {"main", "ci", "sec"},
	} {
		t.Run(schema, func(t *testing.T) {
			want := readNotation(t, "queue")
			// Section 7 gives the queue's id its sequence in words.
			delete(want, "loose_foreign_keys_deleted_records.id bigint not null")
			want.add("loose_foreign_keys_deleted_records.id bigint not null default nextval('loose_foreign_keys_deleted_records_id_seq')")
			for _, part := range parts {
				maps.Copy(want, readNotation(t, part))
			}
			got := readCatalogue(t, databases.Clone(t, Template{Name: schema, Schema: schema}))
			for _, fact := range slices.Sorted(maps.Keys(want)) {
				if !got[fact] {
					t.Errorf("missing: %s", fact)
				}
			}
			for _, fact := range slices.Sorted(maps.Keys(got)) {
				if !want[fact] {
					t.Errorf("not in the notation: %s", fact)
				}
			}
		})
	}
}

// run executes statements.
func run(t *testing.T, url string, statements ...string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
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
	url := databases.Clone(t, Template{Name: "ci", Schema: "ci"})
	run(t, url, "INSERT INTO p_ci_pipelines (id, partition_id, project_id) SELECT n, 100 + n % 3, 1 FROM generate_series(1, 6) AS n",
		"DELETE FROM p_ci_pipelines WHERE id IN (1, 2)", "DELETE FROM gitlab_partitions_dynamic.ci_pipelines_100 WHERE id = 3", "DELETE FROM p_ci_pipelines WHERE id = 99")
	want := []string{"public.p_ci_pipelines 1 1 1 0 true", "public.p_ci_pipelines 2 1 1 0 true", "public.p_ci_pipelines 3 1 1 0 true"}
	got := column(t, url, records)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestSchema_AProjectTakesItsNamespaceAlong(t *testing.T) {
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
	if !slices.Equal(got, []string{"public.namespaces 7 1 1 0 true", "public.projects 5 1 1 0 true"}) {
		t.Errorf("%q", got)
	}
	if got := column(t, url, "SELECT id::text FROM namespaces"); !slices.Equal(got, []string{"8"}) {
		t.Errorf("namespaces %q", got)
	}
}

func TestSchema_LoadedTwiceStaysAsItIs(t *testing.T) {
	url := databases.Clone(t, Template{Name: "main", Schema: "main"})
	for _, schema := range []string{"main", "all"} { // ci and sec come in addition
		if err := LoadSchema(t.Context(), url, schema); err != nil {
			t.Fatal(err)
		}
	}
	if got := triggersOf(t, url); len(got) != 12 {
		t.Errorf("triggers: %q", got)
	}
}

func TestSchema_UnknownNameIsAnError(t *testing.T) {
	if err := LoadSchema(t.Context(), "postgres://127.0.0.1:1/x", "man"); err == nil {
		t.Error("no error")
	}
}

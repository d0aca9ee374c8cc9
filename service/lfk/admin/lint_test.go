package admin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestLint_ReferenceSchemaWithItsOwnDefinitions(t *testing.T) {
	e := &servicetest.Estate{T: t}
	for _, name := range []string{"main", "ci", "sec"} {
		e.Open = append(e.Open, servicetest.New(t, name, name).Open...)
	}
	servicetest.WantFindings(t, e.Keys(devdb.Definitions()),
		"warning trigger_not_always main public.users", "warning trigger_not_always main public.projects",
		"warning trigger_not_always main public.namespaces", "warning trigger_not_always main public.merge_requests",
		"warning trigger_not_always ci public.ci_triggers", "warning trigger_not_always ci public.p_ci_pipelines",
		"warning trigger_not_always ci gitlab_partitions_dynamic.ci_pipelines_100", "warning trigger_not_always ci gitlab_partitions_dynamic.ci_pipelines_101",
		"warning trigger_not_always ci gitlab_partitions_dynamic.ci_pipelines_102", "warning trigger_not_always sec public.vulnerabilities")
}

func TestLint_IndexedMeansThatTheKeyIsFound(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TYPE mood AS ENUM ('good');
		CREATE TABLE none (p_id int);
		CREATE TABLE behind (x int, p_id int); CREATE INDEX ON behind (x, p_id);
		CREATE TABLE typed (type text, p_id int); CREATE INDEX ON typed (type, p_id);
		CREATE TABLE first (x int, p_id int); CREATE INDEX ON first (p_id, x);
		CREATE TABLE nonnull (p_id int); CREATE INDEX ON nonnull (p_id) WHERE p_id IS NOT NULL;
		CREATE TABLE positive (p_id int); CREATE INDEX ON positive (p_id) WHERE p_id > 0;
		CREATE TABLE conditional (type varchar(20), p_id int, b boolean); CREATE INDEX ON conditional (p_id) WHERE type = 'It''s' AND b;
		CREATE TABLE otherwise (type varchar(20), p_id int); CREATE INDEX ON otherwise (p_id) WHERE type = 'Other';
		CREATE TABLE moody (m mood, p_id int); CREATE INDEX ON moody (p_id, m) WHERE p_id IS NOT NULL;
		CREATE TABLE invalid (p_id int); CREATE INDEX invalid_p_id ON invalid (p_id);
		UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'invalid_p_id'::regclass;
		CREATE TABLE hashed (p_id int); CREATE INDEX ON hashed USING hash (p_id);
		CREATE TABLE computed (p_id int); CREATE INDEX ON computed ((p_id + 1), p_id);
		CREATE TABLE included (x int, p_id int); CREATE INDEX ON included (x) INCLUDE (p_id);
		CREATE TABLE parts (p_id int, part int) PARTITION BY LIST (part); CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1); CREATE INDEX ON parts (p_id);
		CREATE TABLE leaves (p_id int, part int) PARTITION BY LIST (part); CREATE TABLE leaves_1 PARTITION OF leaves FOR VALUES IN (1); CREATE INDEX ON leaves_1 (p_id);
		CREATE TABLE half (p_id int, part int) PARTITION BY LIST (part); CREATE TABLE half_1 PARTITION OF half FOR VALUES IN (1);
		CREATE TABLE half_2 PARTITION OF half FOR VALUES IN (2); CREATE INDEX ON half_1 (p_id); CREATE INDEX ON ONLY half (p_id);
		CREATE TABLE bare (p_id int, part int) PARTITION BY LIST (part)`)
	e.Install("p")
	const entry = ": [{table: p, column: p_id, on_delete: async_delete}]\n"
	conditional := func(table, conditions string) string {
		return table + ": [{table: p, column: p_id, on_delete: async_delete, conditions: [" + conditions + "]}]\n"
	}
	servicetest.WantFindings(t, e.Keys("bare"+entry+"behind"+entry+"computed"+entry+
		conditional("conditional", `{column: b, value: true}, {column: type, value: "It's"}`)+"first"+entry+"half"+entry+"hashed"+entry+
		"included"+entry+"invalid"+entry+"leaves"+entry+conditional("moody", "{column: m, value: good}")+"none"+entry+"nonnull"+entry+
		conditional("otherwise", "{column: type, value: X}")+"parts"+entry+"positive"+entry+conditional("typed", "{column: type, value: X}")),
		"error fk_not_indexed main none.p_id -> p", "error fk_not_indexed main behind.p_id -> p", "error fk_not_indexed main positive.p_id -> p",
		"error fk_not_indexed main otherwise.p_id -> p", "error fk_not_indexed main invalid.p_id -> p", "error fk_not_indexed main hashed.p_id -> p",
		"error fk_not_indexed main computed.p_id -> p", "error fk_not_indexed main included.p_id -> p", "error fk_not_indexed main half.p_id -> p",
		"error fk_not_indexed main bare.p_id -> p")
}

func TestLint_ColumnsAndValuesMustFit(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE DOMAIN number AS int; CREATE DOMAIN strict AS int NOT NULL; CREATE TYPE mood AS ENUM ('good');
		CREATE TABLE c (p_id bigint, nn bigint NOT NULL, checked int CHECK (checked IS NOT NULL), free int CHECK (free > 0), t text, u uuid, n number, s strict,
			mood mood, short varchar(3), fixed char(4), money numeric(4, 2), doc json, b boolean, at timestamptz);
		CREATE INDEX ON c (p_id); CREATE INDEX ON c (nn); CREATE INDEX ON c (checked); CREATE INDEX ON c (free); CREATE INDEX ON c (n); CREATE INDEX ON c (s);
		CREATE TABLE d (p_id int, part int) PARTITION BY LIST (part); CREATE TABLE d1 PARTITION OF d FOR VALUES IN (1); CREATE INDEX ON d (p_id);
		ALTER TABLE d1 ALTER p_id SET NOT NULL`)
	e.Install("p")
	var yaml strings.Builder
	yaml.WriteString("c:\n")
	nullify := func(column string) {
		yaml.WriteString("  - {table: p, column: " + column + ", on_delete: async_nullify}\n")
	}
	for _, column := range []string{"p_id", "nn", "checked", "free", "n", "s", "t", "u", "absent"} {
		nullify(column)
	}
	update := func(column, value string) {
		yaml.WriteString("  - {table: p, column: p_id, on_delete: update_column_to, target_column: " + column + ", target_value: " + value + "}\n")
	}
	for _, good := range []string{"mood good", "short abc", "fixed abcd", "fixed ab", "money 12.5", "b true", "b 1", "at '2026-01-01 00:00Z'", "nn 5", "u 00000000-0000-0000-0000-000000000000"} {
		column, value, _ := strings.Cut(good, " ")
		update(column, `"`+strings.Trim(value, "'")+`"`)
	}
	result := servicetest.WantFindings(t, e.Keys(yaml.String()+"d: [{table: p, column: p_id, on_delete: async_nullify}]"),
		"error nullify_not_null main c.nn -> p", "error nullify_not_null main c.checked -> p", "error nullify_not_null main c.s -> p",
		"error nullify_not_null main d.p_id -> p", "error type_mismatch main c.t -> p", "error type_mismatch main c.u -> p",
		"error column_missing main c.absent -> p")
	assert.That(t, result.Errors == 7, "%d errors, want 7", result.Errors)
	for _, bad := range []string{"mood bad", "short abcd", "fixed abcde", "money 12.345", "money 123", "b maybe", "at never", "nn x", "nn 99999999999999999999", "doc 1", "u 5"} {
		column, value, _ := strings.Cut(bad, " ")
		for _, how := range []string{
			"on_delete: update_column_to, target_column: " + column + `, target_value: "` + value + `"`,
			`on_delete: async_delete, conditions: [{column: ` + column + `, value: "` + value + `"}]`,
		} {
			servicetest.WantFindings(t, e.Keys("c: [{table: p, column: p_id, "+how+"}]"), "error type_mismatch main c.p_id -> p")
		}
	}
	for _, how := range []string{"on_delete: update_column_to, target_column: absent, target_value: 1", "on_delete: async_delete, conditions: [{column: absent, value: 1}]"} {
		servicetest.WantFindings(t, e.Keys("c: [{table: p, column: p_id, "+how+"}]"), "error column_missing main c.p_id -> p")
	}
}

func TestLint_ColumnsInTheOrderOfAnotherKeyAreNamed(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (shop int, no int, PRIMARY KEY (shop, no)); CREATE TABLE c (shop int, p_no int); CREATE INDEX ON c (shop, p_no)`)
	assert.Must(e.Keys("").Install(t.Context()))(t)
	assert.Must(e.Keys("").Track(t.Context(), "p", "shop", "no"))(t)
	servicetest.WantFindings(t, e.Keys("c: [{table: p, column: [p_no, shop], on_delete: async_delete}]"), "warning key_order main c.(p_no, shop) -> p")
	servicetest.WantFindings(t, e.Keys("c: [{table: p, column: [p_no, shop], key: [no, shop], on_delete: async_delete}]"))
	servicetest.WantFindings(t, e.Keys("c: [{table: p, column: [shop, p_no], on_delete: async_delete}]"))
}

func TestLint_ATextThatMayEqualAnotherIsNoKey(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE p (code text PRIMARY KEY); CREATE TABLE c (k text COLLATE ci); CREATE INDEX ON c (k)`)
	e.Install("p code")
	result := servicetest.WantFindings(t, e.Keys("c: [{table: p, column: k, on_delete: async_delete}]"), "error type_mismatch main c.k -> p")
	assert.Contains(t, result.Findings[0].Advice,
		"k has a collation that treats different texts as equal, but only text with a deterministic collation can "+
			"refer to code of p")
}

func TestLint_FileAndScheduleAreChecked(t *testing.T) {
	e := servicetest.New(t, "main", "main", "ci")
	e.Exec("main", "CREATE TABLE c (p_id int); CREATE INDEX ON c (p_id)")
	keys := e.Keys("c:\n  - {table: users, column: p_id, on_delete: async_delete}\n  - {table: users, column: p_id, on_delete: async_delete}\nb: []")
	keys.Only, keys.Schedule = "main", "*/2 * * * *"
	result := servicetest.WantFindings(t, keys, "warning duplicate_definition  c.p_id -> users", "warning not_sorted  b",
		"warning schedule_starves_database ci */2 * * * *", "warning trigger_not_always main public.users",
		"warning trigger_without_definition main merge_requests", "warning trigger_without_definition main namespaces", "warning trigger_without_definition main projects")
	assert.That(t, result.Errors == 0, "%d errors", result.Errors)
	keys.Only = "sec"
	if _, err := keys.Lint(context.Background()); !errors.Is(err, fault.ErrUnknownDatabase) {
		t.Errorf("got %v, want ErrUnknownDatabase", err)
	}
	keys.Definitions = nil
	if _, err := keys.Lint(context.Background()); err == nil || !strings.Contains(err.Error(), "workers.loose_foreign_keys_cleanup.definitions") {
		t.Errorf("got %v, want the name of the setting", err)
	}
}

func TestLint_MissingIsAFactOnlyIfAllDatabasesAnswered(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci")
	e.Exec("main", "CREATE TABLE c (p_id int, q_id int); CREATE INDEX ON c (p_id); CREATE INDEX ON c (q_id)")
	e.Exec("ci", "CREATE TABLE p (id int PRIMARY KEY)")
	e.Install("p")
	e.Exec("ci", "INSERT INTO p VALUES (1); DELETE FROM p")
	keys := e.Keys(`
absent: [{table: p, column: p_id, on_delete: async_delete}]
c: [{table: q, column: q_id, on_delete: async_delete}]
`)
	servicetest.WantFindings(t, keys, "error child_missing  absent.p_id -> p", "warning parent_missing  q")
	e.Exec("ci", "CREATE VIEW q AS SELECT 1 AS id")
	servicetest.WantFindings(t, keys, "error child_missing  absent.p_id -> p", "error parent_missing  q")
	e.Exec("ci", "DROP VIEW q")
	keys.Only = "ci"
	servicetest.WantFindings(t, keys)
	keys.Only = ""
	e.AddDown()
	keys.Databases = e.Open
	result, err := keys.Lint(context.Background())
	assert.That(t, errors.Is(err, dberr.ErrUnreachable) && len(result.Findings) == 0 && slices.Equal(result.Unchecked, []string{"down"}),
		"got %+v, %v, want ErrUnreachable and nothing about what may be there", result, err)
	const accepted = "absent: [{table: p, column: p_id, on_delete: async_delete}]"
	e.Open = e.Open[:2]
	assert.Must(e.Keys(accepted).AcceptAbsent(t.Context(), []string{"absent"}, "me@here"))(t)
	keys.Definitions = servicetest.Definitions(t, accepted)
	if result, err = keys.Lint(context.Background()); err == nil || result.Errors != 1 || result.Warnings != 1 {
		t.Errorf("got %+v, %v, want that main is asked what was accepted: p has records and a trigger, and nobody needs them", result, err)
	}
}

func TestLint_NeedsTheSchemaMaintenance(t *testing.T) {
	url := servicetest.Databases.Clone(t, devdb.Template{Name: "bare"})
	d, err := repo.Open(context.Background(), "main", url)
	assert.NoError(t, err)
	defer d.Close()
	_, err = admin.Admin{Databases: []*repo.Database{d}, Definitions: servicetest.Definitions(t, "")}.Lint(context.Background())
	assert.That(t, errors.Is(err, dberr.ErrNotMigrated) && strings.Contains(err.Error(), "run `caretaker migrate` first"),
		"got %v, want ErrNotMigrated and what to do", err)
}

func TestLint_RealForeignKeysThatStopTheCleaningOrLeaveItNothing(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY);
		CREATE TABLE c (id bigint, p_id bigint, up bigint, PRIMARY KEY (id)); CREATE INDEX ON c (p_id);
		ALTER TABLE c ADD CONSTRAINT tree FOREIGN KEY (up) REFERENCES c;
		CREATE TABLE n (id bigint PRIMARY KEY, p_id bigint); CREATE INDEX ON n (p_id);
		CREATE TABLE parts (id bigint, part int, p_id bigint, PRIMARY KEY (id, part)) PARTITION BY LIST (part); CREATE INDEX ON parts (p_id);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1); CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);
		CREATE SCHEMA other;
		CREATE TABLE other.refs (
			plain bigint CONSTRAINT plain REFERENCES c, restricted bigint CONSTRAINT restricted REFERENCES c ON DELETE RESTRICT,
			late bigint CONSTRAINT late REFERENCES c DEFERRABLE INITIALLY DEFERRED, kept bigint REFERENCES n,
			gone bigint REFERENCES c ON DELETE CASCADE, nulled bigint REFERENCES c ON DELETE SET NULL,
			part_id bigint, part int, CONSTRAINT to_root FOREIGN KEY (part_id, part) REFERENCES parts,
			CONSTRAINT to_leaf FOREIGN KEY (part_id, part) REFERENCES parts_1);
		CREATE TABLE cleaned (c_id bigint CONSTRAINT cleaned REFERENCES c); CREATE INDEX ON cleaned (c_id);
		ALTER TABLE n ADD CONSTRAINT beside FOREIGN KEY (p_id) REFERENCES p ON DELETE CASCADE;
		ALTER TABLE parts_2 ADD CONSTRAINT on_leaf FOREIGN KEY (p_id) REFERENCES p ON DELETE SET NULL;
		ALTER TABLE c ADD CONSTRAINT other_column FOREIGN KEY (id) REFERENCES p ON DELETE CASCADE`)
	e.Install("p", "c")
	result := servicetest.WantFindings(t, e.Keys(`
c: [{table: p, column: p_id, on_delete: async_delete}]
cleaned: [{table: c, column: c_id, on_delete: async_delete}]
n: [{table: p, column: p_id, on_delete: async_nullify}]
parts: [{table: p, column: p_id, on_delete: async_delete}]
`),
		"error fk_blocks_deletion main plain on other.refs", "error fk_blocks_deletion main restricted on other.refs",
		"error fk_blocks_deletion main late on other.refs", "error fk_blocks_deletion main to_root on other.refs",
		"error fk_blocks_deletion main to_leaf on other.refs", "error fk_blocks_deletion main cleaned on public.cleaned",
		"error fk_blocks_deletion main tree on public.c", "warning fk_beside_definition main cleaned on public.cleaned",
		"warning fk_beside_definition main beside on public.n", "warning fk_beside_definition main on_leaf on public.parts_2")
	for _, f := range result.Findings {
		if f.Code == "fk_beside_definition" {
			want := map[bool]string{true: "drop the foreign key, or remove the " +
				"definition", false: "run `caretaker lfk adopt " +
				""}[strings.HasPrefix(f.Object, "on_leaf")]
			assert.Contains(t, f.Advice, want)
		}
		if f.Object == "plain on other.refs" && !strings.Contains(f.Advice, "foreign key plain on other.refs "+
			"prevents c.p_id -> p from deleting rows of c (23503)") {
			t.Errorf("got %q", f.Advice)
		}
	}
}

func TestLint_ChildrenThatTakeNoChangesAreNamed(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY);
		CREATE TABLE gen (x bigint, p_id bigint GENERATED ALWAYS AS (x) STORED); CREATE INDEX ON gen (p_id);
		CREATE TABLE marked (p_id bigint, n bigint GENERATED ALWAYS AS IDENTITY); CREATE INDEX ON marked (p_id);
		CREATE TABLE bare (p_id bigint); CREATE INDEX ON bare (p_id); CREATE TABLE full_row (p_id bigint); CREATE INDEX ON full_row (p_id);
		ALTER TABLE full_row REPLICA IDENTITY FULL;
		CREATE TABLE keyed (id bigint PRIMARY KEY, p_id bigint); CREATE INDEX ON keyed (p_id);
		CREATE TABLE parts (p_id bigint, part int) PARTITION BY LIST (part); CREATE INDEX ON parts (p_id); CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
		CREATE PUBLICATION all_of_them FOR TABLE bare, full_row, keyed, parts WITH (publish = 'insert, delete', publish_via_partition_root = true)`)
	e.Install("p")
	entry := func(table, action string) string {
		return table + ": [{table: p, column: p_id, on_delete: " + action + "}]\n"
	}
	keys := e.Keys(entry("bare", "async_delete") + entry("full_row", "async_delete") + entry("gen", "async_nullify") + entry("keyed", "async_delete") +
		entry("marked", "update_column_to, target_column: n, target_value: 1") + entry("parts", "async_delete"))
	result := servicetest.WantFindings(t, keys, "error column_generated main gen.p_id -> p", "error column_generated main marked.p_id -> p",
		"error replica_identity_missing main bare.p_id -> p", "error replica_identity_missing main parts.p_id -> p")
	assert.Contains(t, result.Findings[3].Advice, "ALTER TABLE public.parts_1 REPLICA IDENTITY FULL")
	e.Exec("main", "ALTER PUBLICATION all_of_them SET (publish = 'insert, update')")
	servicetest.WantFindings(t, e.Keys(entry("bare", "async_nullify")+entry("parts", "async_delete")),
		"error replica_identity_missing main bare.p_id -> p")
}

func TestLint_TriggersThatMayKeepRowsAreNamed(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE gone (p_id bigint); CREATE INDEX ON gone (p_id);
		CREATE TABLE nulled (p_id bigint); CREATE INDEX ON nulled (p_id);
		CREATE TABLE parts (p_id bigint, part int) PARTITION BY LIST (part); CREATE INDEX ON parts (p_id);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
		CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER on_delete BEFORE DELETE ON gone FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER on_update BEFORE UPDATE ON gone FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER on_delete BEFORE DELETE ON nulled FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER on_update BEFORE UPDATE ON nulled FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER off BEFORE DELETE ON gone FOR EACH ROW EXECUTE FUNCTION keep(); ALTER TABLE gone DISABLE TRIGGER off;
		CREATE TRIGGER statement BEFORE DELETE ON gone EXECUTE FUNCTION keep();
		CREATE TRIGGER later AFTER DELETE ON gone FOR EACH ROW EXECUTE FUNCTION keep();
		CREATE TRIGGER on_leaf BEFORE DELETE ON parts_1 FOR EACH ROW EXECUTE FUNCTION keep()`)
	e.Install("p")
	result := servicetest.WantFindings(t, e.Keys(`
gone: [{table: p, column: p_id, on_delete: async_delete}]
nulled: [{table: p, column: p_id, on_delete: async_nullify}]
parts: [{table: p, column: p_id, on_delete: async_delete}]
`), "warning row_trigger main gone.p_id -> p", "warning row_trigger main nulled.p_id -> p", "warning row_trigger main parts.p_id -> p")
	for i, want := range []string{"trigger on_delete of gone may prevent rows", "trigger on_update of nulled ", "trigger on_leaf of parts_1 "} {
		got := result.Findings[i].Advice
		assert.That(t, strings.Contains(got, want), "got %q, want %q", got, want)
	}
	assert.That(t, len(result.Findings) == 3, "%d findings", len(result.Findings))
}

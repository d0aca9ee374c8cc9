package lfk_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// track installs queues and tracks a table by a key.
func track(e *servicetest.Estate, table string, columns ...string) {
	e.T.Helper()
	e.Install()
	assert.Must(e.Keys("").Track(context.Background(), table, columns...))(e.T)
	e.Reroute()
}

// awkward are texts that are easily taken for something else.
var awkward = []string{
	"plain", "it's", `"quoted"`, "a,b", "{a}", "{}", "NULL", "", " ", "line\nbreak", `back\slash`, "Ünïcödé 🛒", "%s $1 {queue}", "\t",
	"7", "007", "$$", `\000`, "x\x01", strings.Repeat("long ", 20),
}

func TestLooseForeignKeysCleanup_AParentIsKnownByAKeyOfAnyKind(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci")
	databases := []string{"main", "ci"}
	for _, name := range databases {
		e.Exec(name, `CREATE DOMAIN label AS text CHECK (VALUE <> 'never')`)
	}
	var definitions strings.Builder
	tables := []string{}
	for i, k := range []struct {
		kind   string
		values []string
	}{
		{"uuid", []string{
			"0198f000-0000-7000-8000-000000000001", "0198f000-0000-7000-8000-000000000002", "0198f000-0000-7000-8000-000000000003",
			"0198f000-0000-7000-8000-000000000004",
		}},
		{"text", awkward},
		{"varchar(120)", awkward},
		{"label", awkward},
		{"char(6)", []string{"a", "ab", "A", "it's", "{,}", `"`, "äöü", "123456"}},
	} {
		p, c, n := fmt.Sprintf("t%d_p", i), fmt.Sprintf("t%d_c", i), fmt.Sprintf("t%d_n", i)
		tables = append(tables, p, c, n)
		e.Exec("main", `CREATE TABLE `+p+` AS SELECT v::text::`+k.kind+` AS key FROM unnest($1::text[]) v`, k.values)
		e.Exec("main", `ALTER TABLE `+p+` ADD PRIMARY KEY (key)`)
		for _, name := range databases {
			e.Exec(name, `CREATE TABLE `+c+` (id serial PRIMARY KEY, ref `+k.kind+`); CREATE INDEX ON `+c+` (ref);
				CREATE TABLE `+n+` (ref `+k.kind+`); CREATE INDEX ON `+n+` (ref); INSERT INTO `+c+` (ref) VALUES (NULL);
				INSERT INTO `+n+` VALUES (NULL)`)
			e.Exec(name, `INSERT INTO `+c+` (ref) SELECT v::text::`+k.kind+` FROM unnest($1::text[]) WITH ORDINALITY x (v, i), generate_series(0,
				i % 3)`, k.values)
			e.Exec(name, `INSERT INTO `+n+` SELECT v::text::`+k.kind+` FROM unnest($1::text[]) v`, k.values)
		}
		track(e, p, "key")
		// Every second parent goes. With it go its children, and no others.
		for j := 0; j < len(k.values); j += 2 {
			e.Exec("main", `DELETE FROM `+p+` WHERE key = $1::text::`+k.kind, k.values[j])
		}
		fmt.Fprintf(&definitions, "%s: [{table: %s, column: ref, key: key, on_delete: async_delete, delete_limit: 2}]\n"+
			"%s: [{table: %[2]s, column: ref, on_delete: async_nullify}]\n", c, p, n)
	}
	servicetest.WantFindings(t, e.Keys(definitions.String()))
	before := e.State("main", tables...)
	s := e.Service(definitions.String(), unhurried)
	dry := servicetest.DryRun(t, s)
	e.WantSame("main", before, tables...)
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, r, "succeeded")
	if dry.Counts["deleted_rows"] != r.Counts["deleted_rows"] || dry.Counts["updated_rows"] != r.Counts["updated_rows"] || r.Counts["deleted_rows"] == 0 {
		t.Errorf("the dry run counted %v, the run %v", dry.Counts, r.Counts)
	}
	e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "0")
	const left = `SELECT string_agg(DISTINCT ref::text, '|' ORDER BY ref::text) FROM `
	for i := 0; i < len(tables); i += 3 {
		living := e.Value("main", `SELECT string_agg(key::text, '|' ORDER BY key::text) FROM `+tables[i])
		for _, name := range databases {
			e.Want(name, left+tables[i+1]+" WHERE ref IS NOT NULL", living)
			e.Want(name, left+tables[i+2]+" WHERE ref IS NOT NULL", living)
			e.Want(name, `SELECT count(*) FROM `+tables[i+1]+` WHERE ref IS NULL`, "1")
		}
	}
}

func TestLooseForeignKeysCleanup_AParentIsKnownByUpToFourColumns(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (a int, b uuid, c text, d char(4), UNIQUE (d, c, b, a));
		CREATE TABLE c (id serial PRIMARY KEY, w smallint, x uuid, y varchar(20), z char(4), kind text);
		CREATE INDEX ON c (kind, x, w, z, y);
		INSERT INTO p SELECT i, md5(j::text)::uuid, k, 'x' FROM generate_series(1, 4) i, generate_series(1, 3) j, unnest('{1,"1,2","}"}'::text[]) k;
		INSERT INTO p VALUES (9, NULL, '1', 'x'), (70000, md5('1')::uuid, '1', 'x');
		INSERT INTO c (w, x, y, z, kind) SELECT a, b, c, d, k FROM p, unnest('{good,other}'::text[]) k, generate_series(1, 3) WHERE a < 9;
		INSERT INTO c (w, x, y, z, kind) VALUES (9, NULL, '1', 'x', 'good')`)
	track(e, "p", "b", "a", "d", "c")
	e.Exec("main", `DELETE FROM p WHERE a > 2 OR c = '1'`)
	e.Want("main", `SELECT count(*) || ' ' || max(primary_key_value) FROM loose_foreign_keys_deleted_records`, "25 0")
	definitions := "c: [{table: p, column: [w, x, y, z], key: [a, b, c, d], on_delete: async_delete, delete_limit: 20, conditions: [{column: kind, value: good}]}]\n"
	keys := e.Keys(definitions)
	servicetest.WantFindings(t, keys)
	dry := servicetest.DryRun(t, e.Service(definitions))
	d := dry.Definitions[0]
	assert.That(t, d.Column == "(w, x, y, z)" && d.Rows == 72, "the dry run says %+v", d)
	wantRun(t, e.Service(definitions), "processed_records=25 deleted_rows=72")
	e.Want("main", `SELECT count(*) FROM c WHERE kind = 'good' AND x IS NOT NULL AND NOT EXISTS (
		SELECT FROM p WHERE (p.a, p.b, p.c, p.d) = (c.w, c.x, c.y, c.z))`, "0")
	e.Want("main", `SELECT count(*) FILTER (WHERE kind = 'good') || ' ' || count(*) FILTER (WHERE kind = 'other') FROM c`, "37 108")
}

func TestLooseForeignKeysCleanup_SeveralColumnsAreNullifiedTogether(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (a int, b int, PRIMARY KEY (a, b)); INSERT INTO p VALUES (1, 1), (1, 2), (2, 1);
		CREATE TABLE c (x int, y int, part int) PARTITION BY LIST (part); CREATE INDEX ON c (x, y);
		CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1); CREATE TABLE c_2 PARTITION OF c FOR VALUES IN (2);
		INSERT INTO c SELECT a, b, part FROM p, generate_series(1, 2) part`)
	track(e, "p", "a", "b")
	e.Exec("main", `DELETE FROM p WHERE (a, b) = (1, 2)`)
	wantRun(t, e.Service("c: [{table: p, column: [x, y], on_delete: async_nullify}]"), "processed_records=1 updated_rows=2")
	e.Want("main", `SELECT string_agg(concat_ws('-', x, y), ' ' ORDER BY x, y, part) FROM c`, "1-1 1-1 2-1 2-1  ")
}

// The order of the recorded columns is the trigger's: a definition that names them may have another one, and one that
// names others deletes nothing.
func TestLooseForeignKeysCleanup_ADefinitionWithAnotherKeyFindsNothing(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (a int, b int, c int, PRIMARY KEY (a, b)); INSERT INTO p VALUES (1, 2, 2);
		CREATE TABLE i (id int PRIMARY KEY); INSERT INTO i VALUES (1);
		CREATE TABLE c (x int, y int, z text, f float8 DEFAULT 1); INSERT INTO c VALUES (1, 2, '2'), (2, 1, '1'); CREATE INDEX ON c (x, y); CREATE INDEX ON c (x, z)`)
	track(e, "p", "a", "b")
	track(e, "i")
	e.Exec("main", `DELETE FROM p; DELETE FROM i`)
	for _, test := range []struct{ definition, finding string }{
		{"c: [{table: p, column: x, on_delete: async_delete}]", "key_mismatch"},
		{"c: [{table: p, column: [x, y], key: [a, c], on_delete: async_delete}]", "key_mismatch"},
		{"c: [{table: p, column: [x, z], key: [a, b], on_delete: async_delete}]", "type_mismatch"},
		{"c: [{table: i, column: [x, y], on_delete: async_delete}]", "key_mismatch"},
		{"c: [{table: i, column: f, on_delete: async_delete}]", "type_mismatch"},
	} {
		s := e.Service(test.definition)
		r := servicetest.RunBatch(t, s, "main")
		servicetest.WantState(t, r, "failed")
		assert.Equal(t, servicetest.Status(t, s).Failing.Class, status.FailureSchema)
		assert.That(t, strings.Contains(r.Error, " on main: ") && !strings.Contains(r.Error, "unreachable"),
			"%s: error %q", test.definition, r.Error)
		e.Want("main", `SELECT count(*) FROM c`, "2")
		e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records`, "2")
		result := assert.Must(e.Keys(test.definition).Lint(context.Background()))(t)
		if !slices.ContainsFunc(result.Findings, func(f lfk.Finding) bool { return f.Code == test.finding }) {
			t.Errorf("%s: lint found %+v, want %s", test.definition, result.Findings, test.finding)
		}
		dueAgain(e, "main")
	}
}

func TestLooseForeignKeys_TablesOfSeveralSchemasAreToldApart(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci")
	for _, name := range []string{"main", "ci"} {
		e.Exec(name, `CREATE SCHEMA sales; CREATE SCHEMA stock; CREATE SCHEMA "od.d"`)
		for _, schema := range []string{"public", "sales", "stock"} {
			e.Exec(name, `CREATE TABLE `+schema+`.items (id serial PRIMARY KEY, order_id bigint); CREATE INDEX ON `+schema+`.items (order_id);
				INSERT INTO `+schema+`.items (order_id) VALUES (1), (2), (2)`)
		}
	}
	e.Exec("main", `CREATE TABLE orders (id bigint PRIMARY KEY); CREATE TABLE sales.orders (id bigint PRIMARY KEY);
		CREATE TABLE stock.orders (number bigint UNIQUE, part int) ; CREATE TABLE "od.d".orders (id bigint PRIMARY KEY);
		CREATE TABLE "with.dot" (id bigint, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part); CREATE TABLE leaf PARTITION OF "with.dot" DEFAULT;
		CREATE TABLE sales.parts (id bigint, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part); CREATE TABLE sales.leaf PARTITION OF sales.parts DEFAULT;
		INSERT INTO orders VALUES (1), (2); INSERT INTO sales.orders VALUES (1), (2); INSERT INTO stock.orders VALUES (1), (2), (NULL);
		INSERT INTO "with.dot" VALUES (1, 1); INSERT INTO sales.parts VALUES (7, 1)`)
	track(e, "sales.orders")
	for table, column := range map[string]string{"stock.orders": "number", `"with.dot"`: "", "sales.parts": "", "public.orders": ""} {
		assert.Must(e.Keys("").Track(context.Background(), table, column))(t)
	}
	if _, err := e.Keys("").Track(context.Background(), `"od.d".orders`); err == nil || !strings.Contains(err.Error(), "the dot in its schema name") {
		t.Errorf("a schema with a dot in its name: %v", err)
	}
	e.Exec("main", `DELETE FROM sales.orders WHERE id = 2; DELETE FROM stock.orders WHERE number = 1 OR number IS NULL; DELETE FROM "with.dot"; DELETE FROM sales.leaf`)
	e.Want("main", `SELECT string_agg(fully_qualified_table_name || ' ' || primary_key_value || coalesce(key_values::text, ''), ', ' ORDER BY 1)
		FROM (SELECT * FROM loose_foreign_keys_deleted_records ORDER BY fully_qualified_table_name) q`,
		"public.with.dot 1, sales.orders 2, sales.parts 7, stock.orders 1")
	definitions := `
items:
  - {table: orders, column: order_id, on_delete: async_delete}
public.items:
  - {table: public.orders, column: order_id, on_delete: async_delete}
sales.items:
  - {table: sales.orders, column: order_id, on_delete: async_delete}
  - {table: sales.parts, column: order_id, on_delete: async_delete}
  - {table: '"with.dot"', column: order_id, on_delete: async_nullify}
stock.items:
  - {table: stock.orders, column: order_id, on_delete: async_nullify}
`
	servicetest.WantFindings(t, e.Keys(definitions))
	wantRun(t, e.Service(definitions), "processed_records=4 deleted_rows=4 updated_rows=4")
	for _, name := range []string{"main", "ci"} {
		e.Want(name, `SELECT concat_ws(' ', (SELECT count(*) FROM items), (SELECT count(order_id) FROM sales.items), (SELECT count(order_id) FROM stock.items))`, "3 0 2")
	}
	// By both names it is one table, and cleaned once.
	e.Exec("main", `DELETE FROM orders WHERE id = 2`)
	wantRun(t, e.Service(definitions), "processed_records=1 deleted_rows=4")
	untracked := assert.Must(e.Keys(definitions).Untrack(context.Background(), "sales.orders"))(t)
	assert.That(t, len(untracked) == 1 && len(untracked[0].Unfed) == 1 &&
		untracked[0].Unfed[0] == "sales.items.order_id -> sales.orders", "untracked %+v", untracked)
}

func TestLooseForeignKeys_DeadRecordsOfAnyKeyAreListedAndPutBack(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (a text, b int, PRIMARY KEY (a, b)); INSERT INTO p VALUES ('it''s, 1', 2), ('fine', 3);
		CREATE TABLE c (p_id text, b int); CREATE INDEX ON c (p_id, b); INSERT INTO c SELECT a, b FROM p`)
	track(e, "p", "a", "b")
	e.Exec("main", `DELETE FROM p`)
	e.Mine("c", "OLD.b = 2", "P0001")
	const definitions = "c: [{table: p, column: [p_id, b], on_delete: async_delete}]"
	const failure = "c.(p_id, b) -> p on main: P0001 raise_exception, 1 record"
	s, keys := e.Service(definitions), e.Keys(definitions)
	wantFailedRun(t, s, failure, "processed_records=1 deleted_rows=1 rescheduled_records=1")
	failing, err := keys.Failing(context.Background(), "p")
	assert.That(t, err == nil && len(failing) == 1 && failing[0].Key().String() == `("it's, 1", 2)`, "failing: %+v, %v", failing, err)
	e.Exec("main", `UPDATE maintenance.record_failures SET failures = 9`)
	dueAgain(e, "main")
	wantFailedRun(t, s, failure, "dead_records=1")
	var dead []admin.DeadRecord
	err = keys.Dead(context.Background(), "public.p", func(r admin.DeadRecord) error {
		dead = append(dead, r)
		return nil
	})
	assert.Require(t, err == nil && len(dead) == 1, "dead: %+v, %v", dead, err)
	if text, err := json.Marshal(dead[0]); err != nil || !strings.Contains(string(text), `"key":null,"key_values":["it's, 1","2"]`) {
		t.Errorf("dead: %s, %v", text, err)
	}
	e.Exec("main", `DROP TRIGGER mine ON c`)
	if retried, err := keys.Retry(context.Background(), nil, "p"); err != nil || len(retried) != 1 || retried[0].Records != 1 {
		t.Errorf("retried: %+v, %v", retried, err)
	}
	wantRun(t, s, "processed_records=1 deleted_rows=1")
}

func TestLooseForeignKeys_AnOlderQueueGetsTheColumnForKeys(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id uuid PRIMARY KEY); CREATE TABLE c (p_id uuid); CREATE INDEX ON c (p_id);
		CREATE TABLE q (id int PRIMARY KEY); INSERT INTO q VALUES (1); CREATE TABLE d (q_id int); CREATE INDEX ON d (q_id); INSERT INTO d VALUES (1)`)
	e.Install("q")
	e.Exec("main", `ALTER TABLE loose_foreign_keys_deleted_records DROP COLUMN key_values; DELETE FROM q`)
	const integer = "d: [{table: q, column: q_id, on_delete: async_delete}]"
	servicetest.WantFindings(t, e.Keys(integer))
	wantRun(t, e.Service(integer), "processed_records=1 deleted_rows=1")
	keys := e.Keys("c: [{table: p, column: p_id, on_delete: async_delete}]\n" + integer)
	servicetest.WantFindings(t, keys, "error queue_old main public.loose_foreign_keys_deleted_records", "error trigger_missing main public.p")
	if _, err := keys.Track(context.Background(), "p"); err == nil || !strings.Contains(err.Error(), "run `caretaker lfk install` to add the column") {
		t.Errorf("tracked: %v", err)
	}
	if done, err := keys.Install(context.Background()); err != nil || done[0].Result != "managed by caretaker, column key_values added" {
		t.Errorf("installed: %+v, %v", done, err)
	}
	track(e, "p")
	servicetest.WantFindings(t, keys)
}

// Without its trigger the order of the values of a recorded key is unknown.
func TestLooseForeignKeysCleanup_AKeyOfSeveralColumnsKeepsItsMeaning(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (a int, b int, PRIMARY KEY (a, b)); INSERT INTO p VALUES (1, 2);
		CREATE TABLE c (x int, y int); INSERT INTO c VALUES (1, 2), (2, 1); CREATE INDEX ON c (x, y)`)
	track(e, "p", "b", "a")
	e.Exec("main", `DELETE FROM p`)
	const named = "c: [{table: p, column: [x, y], key: [a, b], on_delete: async_delete}]"
	_, err := e.Keys(named).Untrack(context.Background(), "p")
	assert.That(t, err != nil && strings.Contains(err.Error(), "public.p has pending or dead records"), "untrack: %v", err)
	e.Exec("main", `DROP TRIGGER p_loose_fk_trigger ON p`)
	r := servicetest.RunBatch(t, e.Service(named), "main")
	servicetest.WantState(t, r, "failed")
	assert.That(t, strings.Contains(r.Error, "p is no longer tracked"), "error %q", r.Error)
	e.Want("main", `SELECT count(*) FROM c`, "2")
	e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
	// Nor can the key be looked up in its table, so the operator decides.
	recorded := e.Service("c: [{table: p, column: [y, x], on_delete: async_delete}]")
	wantRun(t, recorded, "rescheduled_records=1")
	assert.Must(e.Keys(named).DecideReused(t.Context(), "p", true))(t)
	wantRun(t, recorded, "processed_records=1 deleted_rows=1")
	e.Want("main", `SELECT x || ' ' || y FROM c`, "2 1")
}

func TestUntrack_DropsTheFunctionsOfItsTable(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main")
	e.Exec("main", `CREATE TABLE p (id uuid PRIMARY KEY); CREATE TABLE other (id uuid PRIMARY KEY)`)
	track(e, "p")
	track(e, "other")
	assert.Must(e.Keys("").Untrack(context.Background(), "p"))(t)
	e.Want("main", `SELECT count(*) FROM pg_proc WHERE proname LIKE 'insert\_into\_loose\_foreign\_keys\_deleted\_records\_key\_%'`, "1")
	e.Exec("main", `INSERT INTO other VALUES (gen_random_uuid()); DELETE FROM other`)
	track(e, "p")
	e.Exec("main", `INSERT INTO p VALUES (gen_random_uuid()); DELETE FROM p`)
	e.Want("main", `SELECT string_agg(fully_qualified_table_name, ' ' ORDER BY id) FROM loose_foreign_keys_deleted_records`, "public.other public.p")
}

// For any form of the trigger of an integer key, a definition of another key is refused: it would
// delete the rows of others.
func TestLooseForeignKeysCleanup_EveryFormOfTriggerSaysItsKey(t *testing.T) {
	const plain = `CREATE TABLE p (id bigint PRIMARY KEY, number int UNIQUE)`
	estates := map[string]*servicetest.Estate{}
	for _, schema := range []string{"", servicetest.Small} {
		estates[schema] = servicetest.New(t, schema, "main")
		estates[schema].Install()
	}
	for _, c := range []struct{ form, schema, parents, table, key, other string }{
		{"override_table", "", `CREATE TABLE p (id bigint, number int) PARTITION BY LIST (id); CREATE TABLE p_1 PARTITION OF p DEFAULT`, "p", "id", "number"},
		{"with_number", "", plain, "p", "number", "id"},
		{"records", "", plain, "p", "id", "number"},
		{"records", servicetest.Small, plain, "p", "id", "number"},
		{"int_", "", `CREATE SCHEMA sales; CREATE TABLE sales.p (id bigint PRIMARY KEY, number int UNIQUE)`, "sales.p", "number", "id"},
		{"override_table", servicetest.Small, `CREATE TABLE p (id bigint, number int) PARTITION BY LIST (id); CREATE TABLE p_1 PARTITION OF p DEFAULT`, "p", "id", "number"},
	} {
		e := estates[c.schema]
		t.Run(c.form+" "+c.schema, func(t *testing.T) {
			e.InTurn(t)
			e.Exec("main", `DROP SCHEMA IF EXISTS sales CASCADE; `+c.parents+`; INSERT INTO `+c.table+` VALUES (7, 7);
				CREATE TABLE c (p_id int, label text); INSERT INTO c VALUES (7, '7'); CREATE INDEX ON c (p_id)`)
			track(e, c.table, c.key)
			e.Want("main", `SELECT bool_and(tgfoid::regproc::text LIKE '%\_`+c.form+`%') FROM pg_trigger WHERE tgrelid = '`+c.table+`'::regclass AND NOT tgisinternal`, "true")
			e.Exec("main", `DELETE FROM `+c.table)
			definition := func(of string) string {
				return "c: [{table: " + c.table + ", column: " + of + ", on_delete: async_delete}]"
			}
			for of, want := range map[string]string{
				"p_id, key: " + c.other: "refers to " + c.other + ", but the recorded key of " + c.table + " is " + c.key, "label": "42883",
			} {
				r := servicetest.RunBatch(t, e.Service(definition(of)), "main")
				servicetest.WantState(t, r, "failed")
				assert.Contains(t, r.Error, want)
				dueAgain(e, "main")
			}
			wantRun(t, e.Service(definition("p_id, key: "+c.key)), "processed_records=1 deleted_rows=1")
		})
	}
}

// Protections are of GitLab's users, whose ids are integers. Without GitLab's workers there may be no table of protections.
func TestLooseForeignKeysCleanup_UsersOfAnotherApplicationAreNotProtected(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), servicetest.IntegerKeys(), "main")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p VALUES (1), (2), (3);
		CREATE TABLE users (id uuid PRIMARY KEY, p_id bigint); CREATE INDEX ON users (p_id);
		INSERT INTO users SELECT gen_random_uuid(), id FROM p`)
	track(e, "p")
	const users = "users: [{table: p, column: p_id, on_delete: async_delete}]"
	e.Exec("main", `DELETE FROM p WHERE id = 1`)
	wantRun(t, e.Service(users), "processed_records=1 deleted_rows=1")
	e.Exec("main", `DROP TABLE maintenance.protected_targets; DELETE FROM p WHERE id = 3`)
	wantRun(t, e.Service(users, func(c *service.Config) { c.Use = service.UseLooseForeignKeys }), "processed_records=1 deleted_rows=1")
	e.Want("main", `SELECT p_id FROM users`, "2")
}

// A server may have started before the application's tables were created.
func TestLooseForeignKeysCleanup_UsersThatAreCreatedWhileItRunsAreProtected(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Exec("main", `INSERT INTO c (id, p_id) VALUES (101, 1), (102, 2)`)
	e.Deleted("main", "p", 1, 1)
	s := e.Service(servicetest.OneChild)
	wantRun(t, s, "processed_records=1 deleted_rows=1")
	e.Exec("main", `CREATE TABLE namespaces (id bigint PRIMARY KEY);
		CREATE TABLE users (id bigint PRIMARY KEY, c_id bigint REFERENCES c ON DELETE CASCADE); INSERT INTO users VALUES (7, 102);
		INSERT INTO maintenance.protected_targets (kind, id, reason, protected_by) VALUES ('user', 7, 'r', 'ann')`)
	e.Deleted("main", "p", 2, 2)
	servicetest.RunBatch(t, s, "main")
	e.Want("main", `SELECT count(*) FROM users`, "1")
}

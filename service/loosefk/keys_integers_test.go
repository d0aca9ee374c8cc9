package loosefk_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// A definition that names a key other than the recorded one would delete the rows of others.
func TestLooseForeignKeysCleanup_AnotherIntegerKeyThanTheRecordedOneIsRefused(t *testing.T) {
	for name, schema := range map[string]string{"own queue": "", "GitLab's queue": servicetest.Small} {
		t.Run(name, func(t *testing.T) {
			e := servicetest.New(parallel(t), schema, "main")
			e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY, number int UNIQUE); INSERT INTO p VALUES (7, 1007), (8, 7);
				CREATE TABLE c (number int, label text); INSERT INTO c VALUES (7, '7'), (1007, '007');
				CREATE INDEX ON c (number); CREATE INDEX ON c (label)`)
			track(e, "p")
			e.Exec("main", `DELETE FROM p WHERE id = 7`)
			for definition, want := range map[string]string{
				"c: [{table: p, column: number, key: number, on_delete: async_delete}]": "refers to number, but the recorded key of p is id",
				"c: [{table: p, column: label, on_delete: async_delete}]":               "42883",
			} {
				r := servicetest.RunBatch(t, e.Service(definition), "main")
				servicetest.WantState(t, r, "failed")
				wantWords(t, r.Error, want)
				e.Want("main", `SELECT count(*) FROM c`, "2")
				e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.p'`, "1")
				dueAgain(e, "main")
			}
		})
	}
}

// Whatever form the trigger of an integer key has, a definition of another key is refused.
func TestLooseForeignKeysCleanup_EveryFormOfTriggerSaysItsKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ form, schema, parents, table, key, other string }{
		{"override_table", "", `CREATE TABLE p (id bigint, number int) PARTITION BY LIST (id); CREATE TABLE p_1 PARTITION OF p DEFAULT`, "p", "id", "number"},
		{"with_number", "", `CREATE TABLE p (id bigint PRIMARY KEY, number int UNIQUE)`, "p", "number", "id"},
		{"int_", "", `CREATE SCHEMA sales; CREATE TABLE sales.p (id bigint PRIMARY KEY, number int UNIQUE)`, "sales.p", "number", "id"},
		{"override_table", "main", `CREATE TABLE p (id bigint, number int) PARTITION BY LIST (id); CREATE TABLE p_1 PARTITION OF p DEFAULT`, "p", "id", "number"},
	} {
		t.Run(c.form+" "+c.schema, func(t *testing.T) {
			e := servicetest.New(parallel(t), c.schema, "main")
			e.Exec("main", c.parents+`; INSERT INTO `+c.table+` VALUES (7, 7);
				CREATE TABLE c (p_id int); INSERT INTO c VALUES (7); CREATE INDEX ON c (p_id)`)
			track(e, c.table, c.key)
			e.Want("main", `SELECT bool_and(tgfoid::regproc::text LIKE '%\_`+c.form+`%') FROM pg_trigger WHERE tgrelid = '`+c.table+`'::regclass AND NOT tgisinternal`, "true")
			e.Exec("main", `DELETE FROM `+c.table)
			definition := func(key string) string {
				return "c: [{table: " + c.table + ", column: p_id, key: " + key + ", on_delete: async_delete}]"
			}
			r := servicetest.RunBatch(t, e.Service(definition(c.other)), "main")
			servicetest.WantState(t, r, "failed")
			if want := "refers to " + c.other + ", but the recorded key of " + c.table + " is " + c.key; !strings.Contains(r.Error, want) {
				t.Errorf("error %q, want %q", r.Error, want)
			}
			e.Exec("main", `UPDATE loose_foreign_keys_deleted_records SET consume_after = now()`)
			wantRun(t, e.Service(definition(c.key)), "processed_records=1 deleted_rows=1")
		})
	}
}

// Protections are of GitLab's users, whose ids are integers. Without GitLab's workers nothing is protected.
func TestLooseForeignKeysCleanup_UsersOfAnotherApplicationAreNotProtected(t *testing.T) {
	e := servicetest.New(parallel(t), "", "main")
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

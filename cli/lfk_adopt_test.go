package cli_test

import (
	"os"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// adoptable is a main with a real foreign key, whose definitions file has a comment and another entry.
func (sh *shell) adoptable(onDelete string) (sql func(string), file string) {
	sh.t.Helper()
	t := sh.t
	conn := sh.database("main", servicetest.Migrated(""))
	file = sh.defined("# kept\nz: # this one, too\n  - {table: customers, column: customer_id, on_delete: async_delete}\n")
	execute(t, conn, `CREATE TABLE customers (id bigint PRIMARY KEY);
		CREATE TABLE orders (id bigserial PRIMARY KEY, customer_id bigint CONSTRAINT fk REFERENCES customers `+onDelete+`);
		CREATE TABLE z (customer_id bigint); CREATE INDEX ON z (customer_id)`)
	sh.want(0, "lfk install")
	return func(s string) { t.Helper(); execute(t, conn, s) }, file
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	return string(assert.Must(os.ReadFile(path))(t))
}

// wantFixed repeats a command that records orphans, which other packages' transactions on the cluster hold up, until it
// is done.
func (sh *shell) wantFixed(command, part string) {
	sh.t.Helper()
	var out string
	devdb.Eventually(sh.t, command, func() bool {
		code, text, errOut := sh.caretaker(strings.Fields(command)...)
		out = text
		if code != 0 && !strings.Contains(text+errOut, "older transactions are open") {
			sh.t.Fatalf("%s: exit %d\n%s%s", command, code, text, errOut)
		}
		return code == 0
	})
	assert.Contains(sh.t, out, part)
}

func TestLfkAdopt_ThereAndBack(t *testing.T) {
	sh := newShell(t)
	sql, file := sh.adoptable("ON DELETE CASCADE")
	before := fileText(t, file)
	sh.want(1, "lfk adopt orders.customer_id", "create an index on orders (customer_id)")
	sql(`CREATE INDEX ON orders (customer_id)`)
	sh.want(0, "lfk adopt orders.customer_id --plan", "1. add the definition to "+file, "- table: customers", "2. track customers",
		"CREATE TRIGGER", "3. send SIGHUP to every server", `4. drop the foreign key fk`, `ALTER TABLE "public"."orders" DROP CONSTRAINT "fk"`)
	for _, changes := range []string{"lfk adopt", "lfk adopt --plan", "lfk revert"} {
		sh.want(2, changes+" orders.customer_id orders.nope nix.nope", "nothing was changed\n",
			"unknown foreign key orders.nope: orders has foreign keys on customer_id", "unknown table nix in main")
	}
	sh.want(2, "lfk track customers nix", "nothing was changed\n", "unknown table nix in main")
	sql(`DO $$ BEGIN ASSERT NOT EXISTS (SELECT FROM pg_trigger WHERE tgname LIKE '%loose_fk_trigger'); END $$`)
	assert.Equal(t, fileText(t, file), before, "a wrong name or --plan has written")
	// Naming a key twice does not drop it before the servers know its definition.
	sh.want(0, "lfk adopt orders.customer_id public.orders.customer_id --yes", "orders.customer_id -> customers: add the definition to "+file+": done",
		"track customers: done", "send SIGHUP to every server to load the definition, and grant the server's role the privileges that "+
			"`caretaker doctor --grants --role ROLE` prints. Then run this command again to drop fk\n")
	after := "# kept\norders:\n  - table: customers\n    column: customer_id\n    on_delete: async_delete\n" + strings.TrimPrefix(before, "# kept\n")
	if got := fileText(t, file); !strings.Contains(got, "orders:\n  - table: customers\n    column: customer_id\n    on_delete: async_delete\n") ||
		!strings.Contains(got, "# kept\n") || !strings.Contains(got, "z: # this one, too\n") || len(got) != len(after) {
		t.Errorf("the file is\n%s", got)
	}
	sql(`INSERT INTO customers VALUES (1), (2); INSERT INTO orders (customer_id) VALUES (1), (2); DELETE FROM customers WHERE id = 1`)
	sh.want(1, "lfk adopt orders.customer_id", "nothing was dropped", "--yes")
	sh.want(0, "lfk adopt orders.customer_id --yes", "drop the foreign key fk: done", "now a "+
		"loose foreign key")
	sh.want(0, "lfk adopt orders.customer_id", "already a loose foreign key")
	sh.want(1, "lfk untrack customers", "nothing was dropped, because without the triggers, deletions from customers leave orphaned rows (",
		"z.customer_id -> customers", "with --yes (first run `caretaker lfk revert` for the adopted foreign keys public.orders.customer_id")
	sh.want(0, "lfk untrack customers --yes", "dropped trigger")
	sh.want(0, "lfk track customers", "trigger customers_loose_fk_trigger")
	sql(`DELETE FROM customers WHERE id = 2`)
	sh.want(0, "lfk orphans", "no orphans")
	sh.want(1, "lfk revert orders.customer_id", "add the foreign key fk: done", "records of the parent are "+
		"pending (customers on main)")
	sql(`UPDATE loose_foreign_keys_deleted_records SET consume_after = '2126-01-01 01:02:03Z'`)
	sh.want(1, "lfk revert orders.customer_id", "records of the parent are pending (customers on main), and the next attempt is at 2126-01-01 01:02:03 UTC: "+
		"run `caretaker lfk dead --failing --table customers` to see the causes, wait until the worker has processed the records, then run this command again")
	sql(`DELETE FROM loose_foreign_keys_deleted_records`)
	sh.want(1, "lfk revert orders.customer_id", "rows of orders refer to rows of customers that "+
		"no longer exist", "caretaker lfk orphans orders.customer_id --fix")
	sh.wantFixed("lfk orphans orders.customer_id --fix", "orders.customer_id -> customers  main      1     1     1")
	sql(`DELETE FROM orders; DELETE FROM loose_foreign_keys_deleted_records`)
	sh.want(0, "lfk revert orders.customer_id", "fk is a real foreign key", "stays tracked for z.customer_id -> customers",
		"send SIGHUP to every server")
	sh.want(0, "lfk revert orders.customer_id", "main: fk is not adopted: nothing to do\n", "stays tracked for z.customer_id -> customers")
	assert.Equal(t, fileText(t, file), before, "the file")
	sql(`INSERT INTO customers VALUES (3); INSERT INTO orders (customer_id) VALUES (3); DELETE FROM customers;
		DO $$ BEGIN ASSERT NOT EXISTS (SELECT FROM orders); ASSERT (SELECT convalidated FROM pg_constraint WHERE conname = 'fk');
		ASSERT NOT EXISTS (SELECT FROM maintenance.adopted_foreign_keys); END $$`)
}

func TestLfkRevert_DoesNothingForAKeyThatWasNeverAdopted(t *testing.T) {
	sh := newShell(t)
	sql, file := sh.adoptable("ON DELETE CASCADE")
	sql(`CREATE INDEX ON orders (customer_id)`)
	for _, command := range []string{"lfk revert orders.customer_id", "lfk revert orders.customer_id --plan"} {
		_, out, notes := sh.caretaker(strings.Fields(command)...)
		assert.Equal(t, out+notes, "main: fk is not adopted: nothing to do\n", command)
	}
	// Without a definition, a tracked parent may be left from an earlier call.
	sh.want(0, "lfk track customers")
	sh.want(0, "lfk revert orders.customer_id", "customers stays tracked for z.customer_id -> customers")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	_, out, notes := sh.caretaker("lfk", "revert", "orders.customer_id")
	assert.Equal(t, out+notes, "main: fk is not adopted: nothing to do\nnothing else needs the records of customers: run "+
		"`caretaker lfk untrack customers` to stop recording\n", "the output")
	// The first step of an adoption is undone.
	sh.want(0, "lfk adopt orders.customer_id", "add the definition")
	sh.want(0, "lfk revert orders.customer_id --plan", "remove the definition from "+file)
	sh.want(0, "lfk revert orders.customer_id", "fk is a real foreign key again", "untrack customers", "send SIGHUP to every server")
}

func TestLfkAdopt_RefusesWhatCannotBeLoose(t *testing.T) {
	sh := newShell(t)
	sql, file := sh.adoptable("")
	sql(`CREATE INDEX ON orders (customer_id); ALTER TABLE orders ALTER customer_id SET NOT NULL`)
	before := fileText(t, file)
	sh.want(1, "lfk adopt orders.customer_id", "fk prevents the deletion of parents that have children (ON DELETE "+
		"NO ACTION)", "--on-delete async_delete or --on-delete async_nullify")
	sh.want(1, "lfk adopt orders.customer_id --on-delete async_nullify", "customer_id does not allow NULL")
	sh.want(2, "lfk adopt orders.customer_id --on-delete drop", "--on-delete drop: use async_delete or async_nullify")
	sh.want(2, "lfk adopt orders.id", "unknown foreign key orders.id")
	sh.want(2, "lfk adopt orders", "use the form TABLE.COLUMN")
	sh.want(2, "lfk adopt nowhere.x", "unknown table nowhere in main")
	sql(`ALTER TABLE orders ADD CONSTRAINT fk2 FOREIGN KEY (customer_id) REFERENCES customers ON DELETE CASCADE`)
	sh.want(1, "lfk adopt orders.customer_id", "has several foreign keys (fk, fk2): select one with --constraint")
	assert.Equal(t, fileText(t, file), before, "the file")
	sh.want(0, "lfk adopt orders.customer_id --constraint fk2 --plan", "(fk2)")
	const shared = "aa: &list\n  - {table: customers, column: other_id, on_delete: async_delete}\norders: *list\n"
	assert.NoError(t, os.WriteFile(file, []byte(shared), 0o600))
	sh.want(1, "lfk adopt orders.customer_id --constraint fk2", "this command cannot edit a definitions file with "+
		"this layout: add the following lines with an editor", "- table: customers")
}

// TestLfkAdopt_ADefinitionThatDoesLessDoesNotStandForTheConstraint: nothing is dropped with it, and the command adds its own.
func TestLfkAdopt_ADefinitionThatDoesLessDoesNotStandForTheConstraint(t *testing.T) {
	sh := newShell(t)
	sql, file := sh.adoptable("ON DELETE CASCADE")
	sql(`CREATE INDEX ON orders (customer_id); ALTER TABLE orders ADD kind text`)
	write := func(entry string) {
		t.Helper()
		assert.NoError(t, os.WriteFile(file, []byte("orders:\n  - {table: customers, column: customer_id, "+entry+"}\n"), 0o600))
	}
	write("on_delete: async_delete, conditions: [{column: kind, value: A}]")
	sh.want(0, "lfk adopt orders.customer_id --yes", "add the definition to "+file+": done", "send SIGHUP to every server")
	got := fileText(t, file)
	assert.That(t, strings.Count(got, "table: customers") == 2, "the file is\n%s", got)
	out := sh.want(0, "lfk adopt orders.customer_id --plan", "1. add the definition to "+file+": already done",
		"3. send SIGHUP to every server to load the definition, and grant the server's role the privileges",
		" prints (this command cannot check the servers), then run this command again\n")
	assert.Equal(t, strings.Count(out, "already done"), 2, out)
	write("on_delete: async_nullify")
	const other = "the definition orders.customer_id -> customers has on_delete async_nullify, " +
		"but async_delete is equivalent to the foreign key fk"
	sh.want(1, "lfk adopt orders.customer_id --yes", other, "use --on-delete "+
		"async_nullify")
	sh.want(1, "lfk adopt orders.customer_id --yes --on-delete async_delete", "not async_delete: correct the "+
		"definition")
	sh.want(0, "lfk adopt orders.customer_id --yes --on-delete async_nullify", "now a loose "+
		"foreign key")
	sh.want(1, "lfk adopt orders.customer_id --on-delete async_delete", "not async_delete: correct the definition")
	sh.want(0, "lfk adopt orders.customer_id", "already a loose foreign key")
	sh.want(2, "lfk adopt orders.customer_id --constraint nope", "unknown foreign key nope on "+
		"orders.customer_id: set --constraint to one of fk")
}

func TestLfkOrphans_TakesQuotedNamesAndSaysWhatIsLeft(t *testing.T) {
	sh := newShell(t)
	sql, _ := sh.adoptable("ON DELETE CASCADE")
	sql(`INSERT INTO z SELECT i % 10 FROM generate_series(1, 40) i; INSERT INTO customers VALUES (3); INSERT INTO z VALUES (NULL)`)
	sh.want(0, "lfk orphans --limit 4", "z.customer_id -> customers  main      at least 4  at least 16  0",
		"z.customer_id -> customers may have more orphans on main",
		"customers is not tracked on main, so the search assumed the key id",
		"to delete or update these rows, run this command again with --fix\n")
	sh.want(0, "lfk orphans z.customer_id -o json", `"keys": 9`, `"rows": 36`, `"more": false`)
	sh.want(2, "lfk orphans --limit 0", "--limit must be at least 1")
	sh.want(2, "lfk orphans z.customer_id --parent orders", "no definition matches: choose from z.customer_id")
	sh.want(2, "lfk orphans z.other", "no definition matches: choose from z.customer_id "+
		"-> customers on main (did you mean z.customer_id?): run `caretaker lfk lint`")
	sh.want(2, "lfk orphans --database nowhere", `unknown database "nowhere"`)
	sh.want(1, "lfk orphans --fix", "customers is not tracked on main")
	sh.want(0, "lfk track customers")
	sh.wantFixed("lfk orphans --fix", "z.customer_id -> customers  main      9     36    9")
	_, out, remarks := sh.caretaker("lfk", "orphans")
	assert.Equal(t, out+remarks, "no orphans\n")
	sql(`DO $$ BEGIN ASSERT (SELECT array_agg(primary_key_value ORDER BY 1) = '{0,1,2,4,5,6,7,8,9}' FROM loose_foreign_keys_deleted_records); END $$`)
	// Names may be quoted.
	sql(`CREATE TABLE "Kid.Table" ("Cust.Id" bigint, "a""b,c" bigint, FOREIGN KEY ("Cust.Id") REFERENCES customers ON DELETE CASCADE);
		CREATE INDEX ON "Kid.Table" ("Cust.Id")`)
	sh.want(0, `lfk adopt "Kid.Table"."Cust.Id"`, `add the definition`)
	sh.want(0, `lfk adopt "Kid.Table"."Cust.Id" --yes`, `now a loose foreign key`)
	sh.want(0, `lfk orphans "Kid.Table"."Cust.Id"`, "no orphans")
	sh.want(0, `lfk orphans "z"."customer_id"`, "no orphans")
	sh.want(2, `lfk adopt "Kid.Table"."a""b,c","Cust.Id"`, `unknown foreign key "Kid.Table".(a"b,c, Cust.Id)`)
	for _, wrong := range []string{`"Kid.Table"`, `.a`, `a.`, `a.b,`, `"a.b`} {
		sh.want(2, "lfk orphans "+wrong, "use the form TABLE.COLUMN")
	}
}

func TestLfkOrphans_NamesDefinitionsThatItCannotSearch(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	execute(t, sql, `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE pp (id bigint PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE pp1 PARTITION OF pp FOR VALUES IN (1);
		CREATE VIEW pv AS TABLE p; CREATE VIEW cv AS SELECT id AS p_id FROM p; CREATE TABLE c (p_id bigint); CREATE INDEX ON c (p_id)`)
	const entry = "{table: p, column: p_id, on_delete: async_delete}"
	sh.defined("c: [" + strings.ReplaceAll(entry, "table: p", "table: pp1") + ", " + strings.ReplaceAll(entry, "table: p", "table: pv") + "]")
	sh.want(1, "lfk orphans", "c.p_id -> pp1 on main: pp1 is a partition of pp: use pp in "+
		"the definitions",
		"c.p_id -> pv on main: pv is a view in database main: use its underlying table in the definition")
	sh.defined("c: [" + entry + "]\ncv: [" + entry + "]\ngone: [" + entry + "]")
	sh.want(0, "lfk orphans", "no orphans", "skipped cv.p_id -> p (cv is a view in database main: use its underlying table in the definition), "+
		"gone.p_id -> p (gone is not in any configured database): run `caretaker lfk lint` for details")
	sh.want(2, "lfk orphans cv.p_id", "cannot search cv.p_id -> p (cv is a view in database main: use its underlying table")
	sh.want(0, "lfk accept-absent gone")
	_, _, remarks := sh.caretaker("lfk", "orphans")
	assert.Contains(t, remarks, "skipped cv.p_id")
	assert.Lacks(t, remarks, "gone")
}

func TestLfk_TablesAreTrackedWithoutDefinitionsThatCanBeRead(t *testing.T) {
	sh := newShell(t)
	conn := sh.database("main", servicetest.Migrated(""))
	sh.defined("c: 1\n")
	execute(t, conn, `CREATE TABLE "Price.List" (id bigint PRIMARY KEY)`)
	const warning = "warning: cannot read the definitions, so they were not checked: "
	sh.want(0, "lfk install", warning, "main: ")
	sh.want(0, `lfk track "Price.List"`, warning, "trigger")
	sh.want(0, `lfk untrack "Price.List"`, warning, "dropped trigger")
	sh.want(0, "lfk dead", warning)
	sh.want(1, "lfk lint", "definitions.yml:1: c: ")

	// The advice can be copied into a shell.
	sh.defined("")
	sh.want(0, `lfk track "Price.List"`, "trigger")
	sh.want(0, "lfk lint", "`caretaker lfk untrack '\"Price.List\"'`")
}

// A name of a database cannot make a terminal obey, or look like something else.
func TestLfkAndDoctor_ShowNamesWithoutControlCharacters(t *testing.T) {
	sh := newShell(t)
	conn := sh.database("main", servicetest.Migrated(""))
	const name = "p\x1b[7m\u202egnp\u2066\u009b\r\u2028\n0 errors forged\t"
	execute(t, conn, `CREATE TABLE "`+name+`" (id bigint PRIMARY KEY); CREATE TABLE c (p_id bigint)`)
	sh.defined(`c: [{table: "p\e[7m\u202egnp\u2066\u009b\r\u2028\n0 errors forged\t", column: p_id, on_delete: async_delete}]` + "\n")
	shown := ""
	for _, command := range []string{
		"lfk install", "lfk lint", "lfk lint -o json", "doctor", "doctor -o json", "lfk dead --table " + name,
		"lfk track " + name, "lfk orphans", "lfk adopt c." + name, "lfk untrack " + name,
	} {
		_, out, err := sh.caretaker(strings.SplitN(command, " ", 3)...)
		shown += out + err
		for _, bad := range []string{"\x1b", `\u001b`, "\u202e", "\u2066", "\r", `\r`, "\u009b", "\u2028", `\u2028`, "\n0 errors f", `\n`, "\t", `\t`} {
			assert.That(t, !strings.Contains(out+err, bad), "%q: %q is in\n%s%s", command, bad, out, err)
		}
	}
	assert.Contains(t, shown, "p [7m gnp   ")
}

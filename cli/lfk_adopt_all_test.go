package cli_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// shopKeys makes a schema of its own with nine foreign keys of eight tables.
const shopKeys = `CREATE SCHEMA shop; CREATE TABLE shop.customers (id bigint PRIMARY KEY); CREATE TABLE shop.products (code int UNIQUE NOT NULL);
	CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id bigint CONSTRAINT orders_customer REFERENCES shop.customers ON DELETE CASCADE,
		product_code int CONSTRAINT orders_product REFERENCES shop.products (code) ON DELETE SET NULL);
	CREATE INDEX ON shop.orders (customer_id); CREATE INDEX ON shop.orders (product_code);
	DO $$ BEGIN FOR n IN 1..7 LOOP
		EXECUTE format('CREATE TABLE shop.c%s (id bigint PRIMARY KEY, order_id bigint CONSTRAINT c%1$s_order REFERENCES shop.orders ON DELETE CASCADE)', n);
		EXECUTE format('CREATE INDEX ON shop.c%s (order_id)', n);
	END LOOP; END $$`

// looseNow fails unless nine foreign keys are adopted, and one deletion cleans up below.
const looseNow = `DO $$ BEGIN
	ASSERT (SELECT count(*) FROM maintenance.adopted_foreign_keys) = 9;
	ASSERT NOT EXISTS (SELECT FROM pg_constraint WHERE contype = 'f' AND connamespace = 'shop'::regnamespace);
	ASSERT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE '%loose_fk_trigger') = 3; END $$`

func TestLfkAdopt_NineForeignKeysOfASchemaInOneCommand(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	execute(t, sql, shopKeys)
	file := sh.defined("")
	sh.want(0, "lfk install")
	columns := "shop.orders.customer_id shop.orders.product_code"
	for n := 1; n <= 7; n++ {
		columns += fmt.Sprintf(" shop.c%d.order_id", n)
	}
	code, out, errOut := sh.caretaker(strings.Fields("lfk adopt " + columns)...)
	assert.Equal(t, code, 0, out+errOut)
	assert.Equal(t, errOut, "send SIGHUP to every server to load the definition, and grant the server's role the privileges that "+
		"`caretaker doctor --grants --role ROLE` prints. Then run this command again with --yes to drop orders_customer, orders_product, c1_order, c2_order, c3_order, c4_order, c5_order, c6_order, c7_order\n")
	assert.Equal(t, strings.Count(fileText(t, file), "on_delete:"), 9)
	out = sh.want(0, "lfk adopt --yes "+columns)
	assert.Equal(t, strings.Count(out, "now a loose foreign key"), 9, out)
	execute(t, sql, looseNow)
	sh.want(0, "lfk lint", "0 errors, 0 warnings")

	sh.want(2, "lfk revert shop.orders.customer_id shop.nix.order_id shop.c1.order_id", "nothing was changed", "unknown table shop.nix")
	execute(t, sql, looseNow)
	code, out, errOut = sh.caretaker(strings.Fields("lfk revert " + columns)...)
	assert.That(t, code == 0 && strings.Count(out, "is a real foreign key") == 9, "exit %d\n%s%s", code, out, errOut)
	assert.Equal(t, strings.Count(errOut, "SIGHUP"), 1, errOut)
	assert.Equal(t, strings.Count(errOut, "nothing else needs the records of "), 3, errOut)
	assert.Lacks(t, fileText(t, file), "on_delete:")
	execute(t, sql, `DO $$ BEGIN
		ASSERT NOT EXISTS (SELECT FROM maintenance.adopted_foreign_keys);
		ASSERT (SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated AND connamespace = 'shop'::regnamespace) = 9; END $$`)
}

func TestLfkAdopt_AllAdoptsWhatCanBeAdopted(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	sh.defined("")
	sh.want(0, "lfk install")
	assert.Equal(t, sh.want(0, "lfk adopt --list"), "no foreign keys with ON DELETE CASCADE or SET NULL\n")
	assert.Equal(t, sh.want(0, "lfk adopt --all"), "no foreign keys to adopt\n")
	execute(t, sql, shopKeys+`; CREATE TABLE bare (order_id bigint CONSTRAINT bare_order REFERENCES shop.orders ON DELETE CASCADE);
		CREATE TABLE fixed (order_id bigint NOT NULL CONSTRAINT fixed_order REFERENCES shop.orders ON DELETE SET NULL); CREATE INDEX ON fixed (order_id);
		CREATE TABLE kept (order_id bigint REFERENCES shop.orders);
		INSERT INTO shop.orders SELECT n FROM generate_series(1, 1200) n; ANALYZE shop.orders`)
	const noIndex = "no index on bare (order_id), so every statement reads the whole table: create an index on bare (order_id)"
	out := sh.want(0, "lfk adopt --list",
		"DATABASE  FOREIGN KEY      CHILD                     PARENT          ON DELETE  CHILD ROWS   INDEX  ADOPTABLE\n",
		"main      bare_order       bare.order_id             shop.orders     CASCADE    unknown      no     no\n",
		"main      fixed_order      fixed.order_id            shop.orders     SET NULL   unknown      yes    no\n",
		"main      orders_customer  shop.orders.customer_id   shop.customers  CASCADE    about 1,200  yes    yes\n",
		"main      orders_product   shop.orders.product_code  shop.products   SET NULL   about 1,200  yes    yes\n")
	assert.Equal(t, strings.Count(out, "\n"), 12, out)
	assert.Lacks(t, out, "kept")
	sh.want(0, "lfk adopt --list -o json", `"constraint": "bare_order",`, `"estimated_rows": null,`, `"estimated_rows": 1200,`, `"refused": "no index`)
	sh.want(2, "lfk adopt --list --all", "--list and --all are mutually exclusive")
	sh.want(2, "lfk adopt --all shop.c1.order_id", "--list and --all cannot be used with TABLE.COLUMN")
	out = sh.want(0, "lfk adopt --all --plan", "main: shop.c1.order_id -> shop.orders (c1_order)", "3. send SIGHUP to every server", "3. once for all foreign keys: see above",
		"4. drop the foreign key c7_order")
	assert.Equal(t, strings.Count(out, "SIGHUP"), 1, out)
	const skipped = "skipped bare_order of bare on main: " + noIndex + "\n"
	sh.want(0, "lfk adopt shop.c1.order_id")
	sh.want(0, "lfk adopt --list", "  started\n")
	// A key that has been started before waits for the next command, like the others.
	code, out, errOut := sh.caretaker("lfk", "adopt", "--all")
	assert.That(t, code == 0 && strings.Contains(errOut, skipped) && strings.Count(errOut, "SIGHUP") == 1, "exit %d\n%s%s", code, out, errOut)
	assert.Contains(t, errOut, "to drop c2_order, ", "orders_product, c1_order\n")
	sh.want(1, "lfk adopt --all", skipped, "nothing was dropped: send SIGHUP to every server to load the definition, and grant the server's role")
	out = sh.want(0, "lfk adopt --all --yes", skipped)
	assert.Equal(t, strings.Count(out, "now a loose foreign key"), 9, out)
	execute(t, sql, looseNow)
	sh.want(0, "lfk adopt --all --yes -o json", `"adopted": [],`, `"constraint": "bare_order",`)
	sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", "")
	sh.want(1, "lfk adopt --list", "no definitions file configured: set workers.loose_foreign_keys_cleanup.definitions")
}

func TestLfkAdopt_AllSkipsStartedReversionsAndPrintsWhatItCannotWrite(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	file := sh.defined("")
	execute(t, sql, `CREATE TABLE p (id uuid PRIMARY KEY); INSERT INTO p VALUES (gen_random_uuid());
		CREATE TABLE a (p_id uuid CONSTRAINT a_p REFERENCES p ON DELETE CASCADE); CREATE INDEX ON a (p_id);
		CREATE TABLE b (p_id uuid CONSTRAINT b_p REFERENCES p ON DELETE CASCADE); CREATE INDEX ON b (p_id)`)
	sh.want(0, "lfk install")
	// The command does not edit aliases, as it does not write a file without the right to.
	assert.NoError(t, os.WriteFile(file, []byte("a: &list\n  - {table: p, column: other_id, on_delete: async_delete}\nx: *list\n"), 0o600))
	code, out, errOut := sh.caretaker("lfk", "adopt", "--all")
	assert.Equal(t, code, 1, out+errOut)
	assert.Contains(t, errOut, "add the following lines with an editor, then run this command again")
	const lines = "  - table: p\n    column: p_id\n    on_delete: async_delete\n"
	assert.Contains(t, errOut, "a:\n"+lines+"b:\n"+lines)
	assert.Lacks(t, errOut, "SIGHUP")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	sh.want(0, "lfk adopt --all")
	sh.want(0, "lfk adopt --all --yes", "now a loose foreign key")
	execute(t, sql, "DELETE FROM p")
	sh.want(1, "lfk revert a.p_id", "records of the parent are pending")
	const started = "a revert of this foreign key has started: to finish the revert, run `caretaker lfk revert " +
		"a.p_id`. To undo the revert, run `caretaker lfk adopt a.p_id`"
	sh.want(0, "lfk adopt --list", "cannot adopt a_p of a on main: "+started+"\n")
	sh.want(0, "lfk adopt --all --yes", "skipped a_p of a on main: "+started, "no foreign keys to adopt: 1 skipped")
}

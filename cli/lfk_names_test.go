package cli_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestLfk_UnknownNamesSuggestTheSimilarOnes(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	execute(t, sql, `CREATE SCHEMA shop; CREATE TABLE shop.customers (id bigint PRIMARY KEY);
		CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id bigint REFERENCES shop.customers ON DELETE CASCADE,
		seller_id bigint REFERENCES shop.customers ON DELETE CASCADE); CREATE INDEX ON shop.orders (customer_id)`)
	const entry = "{table: shop.customers, column: customer_id, on_delete: async_delete}"
	sh.defined("shop.orders: [" + entry + ", {table: shop.custmers, column: custmer_id, on_delete: async_delete}]\nshop.ordrs: [" + entry + "]")
	sh.want(2, "lfk adopt shop.orders.custmer_id", "unknown foreign key shop.orders.custmer_id: shop.orders has foreign keys on "+
		"customer_id, seller_id (did you mean customer_id?)")
	sh.want(2, "lfk adopt shop.ordrs.customer_id", "unknown table shop.ordrs in main: did you mean shop.orders?")
	sh.want(2, "lfk track order", "unknown table order in main: did you mean shop.orders?")
	sh.want(2, "lfk track Customers", "unknown table Customers in main: did you mean shop.customers?")
	sh.want(1, "lfk lint",
		"shop.orders has no column custmer_id (did you mean customer_id?): correct the definition or the table",
		"parent_missing  -  shop.custmers: shop.custmers is not in any configured database (did you mean "+
			"shop.customers?), so the definitions with this parent have no records",
		"shop.ordrs is not in any configured database (did you mean shop.orders?), so records of "+
			"shop.customers are held")
}

func TestLfk_TakesNamesAsListsPrintThem(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	file := sh.defined("# kept\n")
	execute(t, sql, `CREATE SCHEMA billing; CREATE TABLE billing.invoices (account_id uuid, invoice_number int, PRIMARY KEY (account_id, invoice_number));
		CREATE TABLE billing.invoice_lines (account_id uuid, invoice_number int,
			CONSTRAINT line_invoice FOREIGN KEY (account_id, invoice_number) REFERENCES billing.invoices ON DELETE CASCADE);
		CREATE INDEX ON billing.invoice_lines (account_id, invoice_number)`)
	// Before the queue is there, it is the only thing that is missing.
	out := sh.want(0, "lfk adopt --list", "run `caretaker lfk install --database main`")
	assert.Lacks(t, out, "GitLab")
	sh.want(1, "lfk adopt --all", "skipped line_invoice", "main has no queue of "+
		"deleted parents: run `caretaker lfk install` first")
	sh.want(0, "lfk install")
	const name = "billing.invoice_lines.(account_id, invoice_number)"
	want := func(code int, part string, command ...string) {
		t.Helper()
		got, out, errOut := sh.caretaker(append([]string{"lfk"}, command...)...)
		assert.That(t, got == code && strings.Contains(out+errOut, part), "%q: exit %d\n%s%s", command, got, out, errOut)
	}
	want(0, "send SIGHUP", "adopt", name)
	assert.Equal(t, fileText(t, file)[:7], "# kept\n")
	want(0, "now a loose foreign key", "adopt", name, "--yes")
	want(0, "no orphans", "orphans", name)
	want(0, "is a real foreign key", "revert", `billing.invoice_lines.("account_id", "invoice_number")`)
	assert.Contains(t, fileText(t, file), "# kept\n")
	want(2, "billing.invoice_lines: this is the name of a table, so write TABLE.COLUMN", "adopt", "billing.invoice_lines")
	_, _, errOut := sh.caretaker("lfk", "revert", "billing.invoice_lines.account_id,invoice_numbr")
	assert.Contains(t, errOut, "did you mean")
	assert.Lacks(t, errOut, "never adopted")
	sh.defined("billing.invoice_lines: [{table: billing.invoices, column: [account_id, invoice_number], on_delete: async_delete}]")
	want(2, "did you mean billing.invoice_lines.(account_id, invoice_number)?", "orphans", "billing.invoice_lines.(account_id, invoice_numbr)")
	want(2, "did you mean billing.invoices?", "orphans", name, "--parent", "billing.invoice")
	want(2, "did you mean billing.invoice_lines.(account_id, invoice_number)?", "orphans", "sales.invoice_lines.account_id")
	_, _, errOut = sh.caretaker("lfk", "orphans", name, "--parent", "nix")
	assert.Contains(t, errOut, "choose from")
	assert.Lacks(t, errOut, "did you mean")
	want(1, "no column named id: specify the key with --column, such as --column account_id,invoice_number", "track", "billing.invoices")
	want(2, "has no column invoice_numbr: did you mean invoice_number?", "track", "billing.invoices", "--column", "account_id,invoice_numbr")
}

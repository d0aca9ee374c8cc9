package cli_test

import (
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestLfkList_ShowsDefinitionsTrackedTablesAndAdoptedKeys(t *testing.T) {
	sh := newShell(t)
	main, ci := sh.configured("main"), sh.configured("ci")
	sh.migrate()
	assert.Equal(t, sh.want(0, "lfk"), "no definitions and no tracked tables\n")
	sh.want(0, "lfk install")
	execute(t, main, `CREATE TABLE customers (id bigint PRIMARY KEY); CREATE TABLE tags (id bigint PRIMARY KEY);
		CREATE TABLE products (code int UNIQUE NOT NULL); CREATE TABLE loose (id bigint PRIMARY KEY);
		CREATE TABLE orders (customer_id bigint REFERENCES customers ON DELETE CASCADE); CREATE INDEX ON orders (customer_id)`)
	execute(t, ci, `CREATE TABLE builds (customer_id bigint, product_code int)`)
	sh.defined(`
builds:
  - {table: customers, column: customer_id, on_delete: async_delete}
  - {table: products, column: product_code, key: code, on_delete: async_nullify}
  - {table: tags, column: product_code, on_delete: async_delete, conditions: [{column: product_code, value: 7}]}
gone: [{table: nowhere, column: x_id, on_delete: async_delete}]
`)
	sh.want(0, "lfk track customers loose")
	sh.want(0, "lfk adopt orders.customer_id")
	sh.want(0, "lfk adopt orders.customer_id --yes", "now a loose foreign key")
	const remarks = "no configured database contains the parents nowhere: run `caretaker lfk lint` for details\n" +
		"2 parents not tracked: run `caretaker lfk track products --database main --column code`, then `caretaker lfk track tags --database main`\n"
	code, out, errOut := sh.caretaker("lfk", "list")
	assert.Equal(t, code, 0)
	assert.Equal(t, out, `
PARENT     CHILD                                    ACTION         TRACKED ON  CHILD ON  ADOPTED
customers  builds.customer_id                       async_delete   main        ci        -
customers  orders.customer_id                       async_delete   main        main      yes
loose      -                                        -              main        -         -
nowhere    gone.x_id                                async_delete   -           -         -
products   builds.product_code                      async_nullify  not main    ci        -
tags       builds.product_code if product_code = 7  async_delete   not main    ci        -
`[1:])
	assert.Equal(t, errOut, remarks)
	out = sh.want(0, "lfk --database ci")
	assert.That(t, strings.Contains(out, "builds.customer_id") && !strings.Contains(out, "orders"), "%s", out)
	sh.want(0, "lfk list -o json", `"parent": "customers",`, `"untracked_parents": [`, `"adopted": true,`, `"unknown_parents": [`)
	sh.want(0, "lfk list -o yaml", "loose_foreign_keys:\n", "- parent: customers\n")
	sh.want(2, "lfk list --database nowhere", `unknown database "nowhere"`)
	// An adopted foreign key is listed without its definition, too.
	sh.defined("")
	sh.want(0, "lfk list", "customers  orders.customer_id  no definition  main        main      yes")
}

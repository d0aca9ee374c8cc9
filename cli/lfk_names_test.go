package cli_test

import "testing"

func TestLfk_UnknownNamesSuggestTheSimilarOnes(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	execute(t, sql, `CREATE SCHEMA shop; CREATE TABLE shop.customers (id bigint PRIMARY KEY);
		CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id bigint REFERENCES shop.customers ON DELETE CASCADE,
		seller_id bigint REFERENCES shop.customers ON DELETE CASCADE); CREATE INDEX ON shop.orders (customer_id)`)
	const entry = "{table: shop.customers, column: customer_id, on_delete: async_delete}"
	sh.defined("shop.orders: [" + entry + ", {table: shop.custmers, column: custmer_id, on_delete: async_delete}]\nshop.ordrs: [" + entry + "]")
	sh.want(2, "lfk adopt shop.orders.custmer_id", "unknown foreign key of shop.orders.custmer_id: the foreign keys of shop.orders are of "+
		"customer_id, seller_id, did you mean customer_id?")
	sh.want(2, "lfk adopt shop.ordrs.customer_id", "unknown table shop.ordrs in main: did you mean shop.orders?")
	sh.want(2, "lfk track Customers", "unknown table Customers in main: did you mean shop.customers?")
	sh.want(1, "lfk lint",
		"shop.orders has no column custmer_id (did you mean customer_id?): correct the definition or the table",
		"parent_missing  -  shop.custmers: is in no configured database (did you mean shop.customers?), so its definitions",
		"shop.ordrs is in no configured database (did you mean shop.orders?), so records of shop.customers are held")
}

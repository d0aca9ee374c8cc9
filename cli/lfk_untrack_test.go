package cli_test

import (
	"testing"
)

func TestLfkUntrack_DeletesRecordsThatNoDefinitionNeeds(t *testing.T) {
	sh := newShell(t)
	sql := sh.configured("main")
	sh.migrate()
	file := sh.defined("")
	sh.want(0, "lfk install")
	execute(t, sql, `CREATE TABLE invoices (account uuid, number int, PRIMARY KEY (account, number)); CREATE TABLE plain (id bigint PRIMARY KEY);
		CREATE TABLE lines (account uuid, number int,
			CONSTRAINT lines_invoice FOREIGN KEY (account, number) REFERENCES invoices ON DELETE CASCADE); CREATE INDEX ON lines (account, number)`)
	sh.want(0, "lfk adopt lines.account,number")
	sh.want(0, "lfk adopt lines.account,number --yes")
	const more = `INSERT INTO invoices SELECT gen_random_uuid(), n FROM generate_series(1, 1200) n; DELETE FROM invoices;
		INSERT INTO maintenance.dead_records (fully_qualified_table_name, primary_key_value, key_values, definition, sqlstate, message, failures, recorded_at)
		VALUES ('public.invoices', 0, '{a,1}', 'd', 'P0001', 'no', 10, now())`
	execute(t, sql, more)
	// Without its definition, an adopted foreign key still needs the records.
	before := fileText(t, file)
	sh.defined("")
	const key = "adopted_without_definition  main  public.lines.account,number: adopted foreign key " +
		"public.lines.account,number to public.invoices has no definition"
	sh.want(1, "lfk lint", "error    "+key, "1 error, 0 warnings", "or run `caretaker lfk revert public.lines.account,number`")
	sh.want(1, "doctor", "definitions: adopted_without_definition:", "public.lines.account,number: adopted foreign key")
	sh.set("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", "")
	sh.want(1, "lfk lint", key, "set workers.loose_foreign_keys_cleanup.definitions to the file that contains "+
		"the definition")
	sh.want(1, "doctor", "definitions: adopted_without_definition:", "public.lines.account,number: adopted foreign key")
	sh.defined("")
	sh.want(1, "lfk untrack invoices --yes", "public.invoices has pending or dead records, and without its trigger")
	sh.defined(before)
	execute(t, sql, `TRUNCATE loose_foreign_keys_deleted_records; DELETE FROM maintenance.dead_records`)
	sh.want(2, "lfk untrack invoice", "did you mean invoices?")
	sh.want(0, "lfk revert lines.account,number", "lines_invoice is a real foreign key", "caretaker lfk untrack invoices")
	execute(t, sql, more+`; ALTER TABLE invoices RENAME TO bills; ALTER TABLE bills RENAME TO invoices`)
	const records = "records of invoices are pending or dead, and no definition needs these records"
	sh.want(1, "lfk lint", "pending_without_definition  main  public.invoices: records stay pending, because no "+
		"definition has public.invoices as its parent: add a definition, "+
		"or run `caretaker lfk untrack public.invoices` to delete the records")
	sh.want(1, "lfk untrack invoices", "nothing was dropped, because "+records+": add a definition, or run this command again with --yes")
	sh.want(0, "lfk untrack invoices --yes", "main: dropped trigger invoices_loose_fk_trigger on public.invoices\n",
		"main: deleted 1,201 records of public.invoices that no definition needs\n")
	sh.want(0, "lfk lint", "0 errors")
	execute(t, sql, `DO $$ BEGIN ASSERT NOT EXISTS (SELECT FROM loose_foreign_keys_deleted_records);
		ASSERT NOT EXISTS (SELECT FROM maintenance.dead_records); END $$`)
	sh.want(1, "lfk untrack invoices --yes", "public.invoices is not tracked")
	// A table that is no longer tracked may have records, too, and definitions that cannot be read may need any.
	sh.want(0, "lfk track plain")
	execute(t, sql, `INSERT INTO plain VALUES (1); DELETE FROM plain`)
	sh.defined("{")
	sh.want(0, "lfk untrack plain --yes", "dropped trigger plain_loose_fk_trigger")
	sh.defined("")
	sh.want(1, "lfk untrack plain", "nothing was dropped, because records of plain are pending or dead")
	sh.want(0, "lfk untrack plain --yes -o json", `"discarded_records": 1`)
}

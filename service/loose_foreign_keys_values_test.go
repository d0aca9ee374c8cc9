package service_test

import "testing"

// The names of some types, written without their length, mean a length of one.
func TestLooseForeignKeys_ValuesOfFixedLengthAreNotCutOff(t *testing.T) {
	e := newEstate(t, "", "main")
	e.exec("main", `CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1);
		CREATE TABLE c (p_id int, kind char(4), flags bit(3), done char(3)); CREATE INDEX ON c (p_id);
		INSERT INTO c VALUES (1, 'abcd', B'101', 'no'), (1, 'a', B'101', 'no'), (1, 'abcd', B'100', 'no')`)
	e.install("p")
	e.exec("main", "DELETE FROM p")
	const conditions = `conditions: [{column: kind, value: abcd}, {column: flags, value: "101"}]`
	keys := e.keys("c: [{table: p, column: p_id, on_delete: update_column_to, target_column: done, target_value: 'yes', " + conditions + "}]")
	wantFindings(t, keys)
	r := run(t, e.service("c: [{table: p, column: p_id, on_delete: update_column_to, target_column: done, target_value: 'yes', "+conditions+"}]"), "main")
	wantCounts(t, r, "processed_records=1 updated_rows=1")
	e.want("main", "SELECT string_agg(concat_ws(' ', kind, flags, done), ', ' ORDER BY kind, flags) FROM c", "a    101 no , abcd 100 no , abcd 101 yes")
}

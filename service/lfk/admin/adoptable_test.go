package admin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestAdoptable_GivesTheReasonOfEachForeignKeyThatCannotBeAdopted(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "", "main", "ci")
	e.Exec("main", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE n (id numeric PRIMARY KEY);
		CREATE TABLE parts (p_id bigint CONSTRAINT parts_fk REFERENCES p ON DELETE CASCADE, n_id numeric CONSTRAINT wrong_type REFERENCES n ON DELETE CASCADE, k int) PARTITION BY LIST (k);
		CREATE INDEX ON parts (p_id); CREATE INDEX ON parts (n_id);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1); CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);
		INSERT INTO parts SELECT NULL, NULL, 1 + n % 2 FROM generate_series(1, 50) n; ANALYZE parts;
		CREATE TABLE twice (p_id bigint CONSTRAINT one REFERENCES p ON DELETE CASCADE CONSTRAINT other REFERENCES p ON DELETE CASCADE); CREATE INDEX ON twice (p_id);
		CREATE TABLE defined (p_id bigint CONSTRAINT defined_fk REFERENCES p ON DELETE CASCADE); CREATE INDEX ON defined (p_id);
		CREATE TABLE shared (p_id bigint CONSTRAINT shared_fk REFERENCES p ON DELETE CASCADE); CREATE INDEX ON shared (p_id)`)
	e.Exec("ci", `CREATE TABLE p (id bigint PRIMARY KEY); CREATE TABLE shared (p_id bigint)`)
	e.Install()
	all := assert.Must(at(t, e, servicetest.Save(t, "defined: [{table: p, column: p_id, on_delete: async_nullify}]\n")).Adoptable(t.Context()))(t)
	var got []string
	for _, c := range all {
		rows := "unknown"
		if c.Rows != nil {
			rows = fmt.Sprint(*c.Rows)
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %t %s", c.Constraint, c.Table, rows, c.Started, c.Refused)))
	}
	want := []string{
		"defined_fk defined unknown true ", "parts_fk parts 50 false", "wrong_type parts 50 false n_id is of type " +
			"numeric, but only numeric can refer to id of n: correct the definition or the table; n: key id",
		"shared_fk shared unknown false p is in main, ci, and shared is in main, ci, so a deletion", "one twice " +
			"unknown false", "other twice unknown false",
	}
	assert.Require(t, len(got) == len(want), "%q", got)
	for i := range want {
		assert.That(t, strings.HasPrefix(got[i], want[i]), "%q, want %q", got[i], want[i])
	}
	assert.Contains(t, got[0], "the definition defined.p_id -> p has on_delete async_nullify, "+
		"but async_delete is equivalent to the foreign key defined_fk")
	// A name for each of two foreign keys of one column selects it.
	keys := at(t, e, servicetest.Save(t, ""))
	a := assert.Must(keys.PlanAdoption(t.Context(), all[4].Request("test")))(t)
	assert.Equal(t, a.Constraint, "one")
}

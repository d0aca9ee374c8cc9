package loosefk_test

import (
	"flag"
	"testing"

	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) {
	// Properties are tried on a few schemas, unless -rapid.checks says otherwise.
	_ = flag.Set("rapid.checks", "5")
	servicetest.Main(m)
}

func TestContract(t *testing.T) {
	t.Parallel()
	servicetest.Contract(t, servicetest.Fixture{
		Worker: loosefk.Name,
		Schema: "main",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
		},
		Due: func(e *servicetest.Estate, n int) {
			e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, $1::int)`, n)
			e.Deleted("main", "p", 1, n)
		},
		Done: servicetest.Change{Event: "DELETE", Table: "c", Thing: `r ->> 'id'`},
		Settings: map[string]string{
			"definitions": servicetest.Save(t, servicetest.OneChild), "batch_size": "1", "max_runtime": "2m",
		},
		Limit: map[string]string{"max_deletes": "3"},
	})
}

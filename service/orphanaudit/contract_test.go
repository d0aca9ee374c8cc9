package orphanaudit_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/orphanaudit"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestContract(t *testing.T) {
	// The definitions are another worker's setting.
	t.Setenv("CARETAKER_WORKERS_LOOSE_FOREIGN_KEYS_CLEANUP_DEFINITIONS", servicetest.Save(t, servicetest.OneChild))
	servicetest.Contract(t, servicetest.Fixture{
		Worker: orphanaudit.Name,
		Schema: "main",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `CREATE TABLE p (id bigserial PRIMARY KEY);
				CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); CREATE INDEX ON c (p_id)`)
			e.Install("p")
		},
		Due: func(e *servicetest.Estate, n int) {
			e.Exec("main", `INSERT INTO c (p_id) SELECT generate_series(1, $1::int)`, n)
		},
		Done: servicetest.Change{
			Event: "INSERT", Table: "loose_foreign_keys_deleted_records", Thing: `r ->> 'primary_key_value'`,
		},
		Settings: map[string]string{
			"enabled": "true", "fix": "true", "batch_size": "1", "max_runtime": "2m",
		},
		Limit:  map[string]string{"max_records": "3"},
		Unseen: true,
	})
}

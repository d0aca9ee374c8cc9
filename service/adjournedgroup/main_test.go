package adjournedgroup_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/adjournedgroup"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m) }

func TestContract(t *testing.T) {
	t.Parallel()
	servicetest.Contract(t, servicetest.Fixture{
		Worker: adjournedgroup.Name,
		Schema: "main",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
			e.Exec("main", `INSERT INTO application_settings (deletion_adjourned_period) VALUES (14)`)
		},
		Due: func(e *servicetest.Estate, n int) {
			g := &servicetest.Groups{Estate: e}
			g.User(1)
			for i := range n {
				g.Owned(100+i, 15)
			}
		},
		Done: servicetest.Change{
			Event: "INSERT", Table: "maintenance.river_job", Thing: `r -> 'args' ->> 'group_id'`,
		},
		Settings:   map[string]string{"batch_size": "1"},
		StayDue:    true,
		RolledBack: "river_job",
	})
}

// parallel lets a test run beside others, with a database of its own.
func parallel(t *testing.T) *testing.T {
	t.Helper()
	t.Parallel()
	return t
}

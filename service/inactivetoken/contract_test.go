package inactivetoken_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/inactivetoken"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	servicetest.Contract(t, servicetest.Fixture{
		Worker: inactivetoken.Name,
		Schema: "main",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
			e.Exec("main", `INSERT INTO application_settings (id, resource_access_tokens_settings) VALUES (1, $1)`,
				servicetest.TokenSettings("42"))
		},
		Due: func(e *servicetest.Estate, n int) {
			e.User(1001, 11, 1) // the admin bot in whose name the jobs delete
			for i := range n {
				e.Bots(i + 1)
			}
		},
		Done: servicetest.Change{
			Event: "INSERT", Table: "maintenance.river_job", Thing: `r -> 'args' ->> 'user_id'`,
		},
		Settings: map[string]string{"batch_size": "1"},
		Limit:    map[string]string{"max_runtime": "1ms"},
		Unseen:   true,
	})
}

package placeholderuser_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/placeholderuser"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m) }

func TestContract(t *testing.T) {
	t.Parallel()
	servicetest.Contract(t, servicetest.Fixture{
		Worker: placeholderuser.Name,
		Schema: "main",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now())`)
		},
		Due: func(e *servicetest.Estate, n int) {
			for id := range n {
				e.Detail(id+1, 0, "NULL::timestamptz")
			}
		},
		Done:     servicetest.Change{Event: "UPDATE", Table: "import_placeholder_user_details", Thing: `r ->> 'id'`},
		Settings: map[string]string{"batch_size": "1"},
	})
}

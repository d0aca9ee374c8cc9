package ghost_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m) }

func TestContract(t *testing.T) {
	servicetest.Contract(t, servicetest.Fixture{
		Worker: ghost.Name,
		Schema: "all",
		Prepare: func(e *servicetest.Estate) {
			e.Exec("main", `INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'o', now(), now());
				INSERT INTO users (id, email, username, projects_limit, state, user_type, organization_id)
				VALUES (1005, 'ghost@x', 'ghost', 0, 'active', 5, 1)`)
		},
		Due: func(e *servicetest.Estate, n int) {
			g := &servicetest.Ghosts{Estate: e}
			for i := range n {
				g.Doomed(i + 1)
			}
		},
		Done:     servicetest.Change{Event: "DELETE", Table: "ghost_user_migrations", Thing: `r ->> 'user_id'`},
		Settings: map[string]string{"max_runtime": "2m"},
		Limit:    map[string]string{"limit": "3"},
	})
}

// newDoomed is NewGhosts with human users in the queue.
func newDoomed(t *testing.T, ids ...int) *servicetest.Ghosts {
	t.Helper()
	g := servicetest.NewGhosts(t)
	g.Doomed(ids...)
	return g
}

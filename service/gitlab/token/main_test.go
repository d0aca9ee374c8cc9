package token_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/token"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m) }

func TestContract(t *testing.T) {
	servicetest.Contract(t, servicetest.Fixture{
		Worker: token.Name,
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

// continuations are the jobs that continue a pass, by their states.
const continuations = `SELECT coalesce(string_agg(state::text, ' ' ORDER BY id), '') FROM maintenance.river_job WHERE kind = 'continue_inactive_token_deletion'`

// passes are all passes: cursor, examined, scheduled, and whether they are finished.
const passes = `SELECT coalesce(string_agg(concat_ws('/', cursor, examined, scheduled) || CASE WHEN finished_at IS NULL THEN '' ELSE ' finished' END, ', ' ORDER BY started_at), '') FROM maintenance.token_passes`

func TestInactiveTokenDeletion_DemoHasSomethingToDoAndSomethingToLeaveAlone(t *testing.T) {
	g := servicetest.NewDemoGroups(servicetest.Parallel(t))
	servicetest.WantCounts(t, dryTokens(t, g.Service), "examined_users=60 scheduled_jobs=20")
	wantTokens(t, g.Service, "examined_users=60 scheduled_jobs=20")
	// Each organization has an admin bot of its own.
	g.Want("main", `SELECT string_agg(DISTINCT args ->> 'deleted_by_id', ' ') FROM maintenance.river_job`, "205 206")
	const queued = `SELECT count(*) FROM ghost_user_migrations q JOIN users u ON u.id = q.user_id WHERE u.user_type = 6`
	before := g.Value("main", queued)
	assert.Equal(t, g.Work(g.Service, "delete_user"), 20, "jobs worked")
	g.Want("main", `SELECT string_agg(DISTINCT concat_ws(' ', state, metadata ->> 'outcome', metadata ->> 'reason'), ', ') FROM maintenance.river_job`, "completed succeeded ")
	g.Want("main", `SELECT count(*) - `+before+` FROM ghost_user_migrations q JOIN users u ON u.id = q.user_id WHERE u.user_type = 6`, "20")
	g.Want("main", `SELECT count(*) FROM users u JOIN maintenance.river_job j ON u.id = (j.args ->> 'user_id')::bigint
		WHERE u.state <> 'blocked' OR EXISTS (SELECT FROM members m WHERE m.user_id = u.id)`, "0")
	wantTokens(t, g.Service, "examined_users=60")
}

// newBots is NewTokens with bots of organization 1 that have no tokens.
func newBots(t *testing.T, ids ...int) *servicetest.Estate {
	t.Helper()
	e := servicetest.NewTokens(t)
	e.Bots(ids...)
	return e
}

// wantTokens runs the worker. The run must succeed with these counts.
func wantTokens(t *testing.T, s *service.Service, counts string) run.Run {
	t.Helper()
	r := servicetest.RunTokens(t, s)
	servicetest.WantRun(t, r, control.RunSucceeded, counts)
	return r
}

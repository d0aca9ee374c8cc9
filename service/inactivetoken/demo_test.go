package inactivetoken_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestInactiveTokenDeletion_DemoHasSomethingToDoAndSomethingToLeaveAlone(t *testing.T) {
	t.Parallel()
	g := servicetest.NewDemoGroups(t)
	servicetest.WantCounts(t, dryTokens(t, g.Service), "examined_users=60 scheduled_jobs=20")
	servicetest.WantCounts(t, servicetest.RunTokens(t, g.Service), "examined_users=60 scheduled_jobs=20")
	// Each organization has an admin bot of its own.
	g.Want("main", `SELECT string_agg(DISTINCT args ->> 'deleted_by_id', ' ') FROM maintenance.river_job`, "205 206")
	const queued = `SELECT count(*) FROM ghost_user_migrations q JOIN users u ON u.id = q.user_id WHERE u.user_type = 6`
	before := g.Value("main", queued)
	if n := g.Work(g.Service, "delete_user"); n != 20 {
		t.Errorf("%d jobs worked, want 20", n)
	}
	g.Want("main", `SELECT string_agg(DISTINCT concat_ws(' ', state, metadata ->> 'outcome', metadata ->> 'reason'), ', ') FROM maintenance.river_job`, "completed succeeded ")
	g.Want("main", `SELECT count(*) - `+before+` FROM ghost_user_migrations q JOIN users u ON u.id = q.user_id WHERE u.user_type = 6`, "20")
	g.Want("main", `SELECT count(*) FROM users u JOIN maintenance.river_job j ON u.id = (j.args ->> 'user_id')::bigint
		WHERE u.state <> 'blocked' OR EXISTS (SELECT FROM members m WHERE m.user_id = u.id)`, "0")
	servicetest.WantCounts(t, servicetest.RunTokens(t, g.Service), "examined_users=60")
}

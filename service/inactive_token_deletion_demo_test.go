package service_test

import "testing"

func TestInactiveTokenDeletion_DemoHasSomethingToDoAndSomethingToLeaveAlone(t *testing.T) {
	t.Parallel()
	g := demoGroups(t)
	wantCounts(t, dryTokens(t, g.service), "examined_users=60 scheduled_jobs=20")
	wantCounts(t, runTokens(t, g.service), "examined_users=60 scheduled_jobs=20")
	// Each organization has an admin bot of its own.
	g.want("main", `SELECT string_agg(DISTINCT args ->> 'deleted_by_id', ' ') FROM maintenance.river_job`, "205 206")
	const queued = `SELECT count(*) FROM ghost_user_migrations q JOIN users u ON u.id = q.user_id WHERE u.user_type = 6`
	before := g.value("main", queued)
	if n := g.work(g.service, "delete_user"); n != 20 {
		t.Errorf("%d jobs worked, want 20", n)
	}
	g.want("main", `SELECT string_agg(DISTINCT concat_ws(' ', state, metadata ->> 'outcome', metadata ->> 'reason'), ', ') FROM maintenance.river_job`, "completed succeeded ")
	g.want("main", `SELECT count(*) - `+before+` FROM ghost_user_migrations q JOIN users u ON u.id = q.user_id WHERE u.user_type = 6`, "20")
	g.want("main", `SELECT count(*) FROM users u JOIN maintenance.river_job j ON u.id = (j.args ->> 'user_id')::bigint
		WHERE u.state <> 'blocked' OR EXISTS (SELECT FROM members m WHERE m.user_id = u.id)`, "0")
	wantCounts(t, runTokens(t, g.service), "examined_users=60")
}

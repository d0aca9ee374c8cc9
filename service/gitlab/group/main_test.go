package group_test

import (
	"testing"

	"github.com/caretaker-go/caretaker/service/gitlab/group"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestMain(m *testing.M) { servicetest.Main(m) }

func TestContract(t *testing.T) {
	servicetest.Contract(t, servicetest.Fixture{
		Worker: group.Name,
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

func TestAdjournedGroupDeletion_DemoHasSomethingToDoAndSomethingToLeaveAlone(t *testing.T) {
	g := servicetest.NewDemoGroups(servicetest.Parallel(t))
	wantBacklog(g, "8 5 3 2 40")
	const want = "scheduled_jobs=2 restored_groups=2 held_groups=2"
	g.DryRun(want)
	g.Run(want)
	g.WantJobs("8:28@0", "26:31@80")
	g.Want("main", `SELECT string_agg(path || state, ' ' ORDER BY id) FROM namespaces WHERE id IN (12, 14)`, "team-120 team-141")
	g.WantLog(2, "group needs attention", "group_id=13")
	g.WantLog(2, "Deletion schedule lost", "group_id=25")

	groups := g.Value("main", `SELECT count(*) FROM namespaces WHERE type = 'Group'`)
	g.Attempt("completed succeeded")
	g.Want("main", `SELECT string_agg(state::text, ' ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "completed completed")
	g.Want("main", `SELECT count(*) FROM namespaces WHERE id IN (8, 18, 26, 33)`, "0")
	g.Want("main", `SELECT `+groups+` - count(*) FROM namespaces WHERE type = 'Group'`, "4")
	g.Want("main", `SELECT 120 - count(*) FROM projects`, "12")
	for _, orphans := range []string{
		`issues i WHERE project_id IS NOT NULL AND NOT EXISTS (SELECT FROM projects p WHERE p.id = i.project_id)`,
		`routes r WHERE source_type = 'Project' AND NOT EXISTS (SELECT FROM projects p WHERE p.id = r.source_id)`,
		`members m WHERE source_type = 'Project' AND NOT EXISTS (SELECT FROM projects p WHERE p.id = m.source_id)`,
		`members m WHERE source_type = 'Namespace' AND NOT EXISTS (SELECT FROM namespaces n WHERE n.id = m.source_id)`,
		`notes n WHERE noteable_type = 'Issue' AND NOT EXISTS (SELECT FROM issues i WHERE i.id = n.noteable_id)`,
		`award_emoji e WHERE awardable_type = 'Note' AND NOT EXISTS (SELECT FROM notes n WHERE n.id = e.awardable_id)`,
	} {
		g.Want("main", `SELECT count(*) FROM `+orphans, "0")
	}
	g.Run("held_groups=2")
}

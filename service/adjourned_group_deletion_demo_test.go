package service_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
)

// demoGroups is the demo data, all in one database.
func demoGroups(t *testing.T) *groupEstate {
	t.Helper()
	g := &groupEstate{estate: newEstate(t, "all")}
	g.add("main", databases.Clone(t, devdb.Template{Name: "service_demo", Schema: "all", Prepare: func(ctx context.Context, url string) error {
		if err := migrated("all").Prepare(ctx, url); err != nil {
			return err
		}
		return devdb.LoadDemo(ctx, map[string]string{"main": url})
	}}))
	g.service = g.estate.service("", g.withQueue, func(c *service.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&g.log, nil))
	})
	return g
}

func TestAdjournedGroupDeletion_DemoHasSomethingToDoAndSomethingToLeaveAlone(t *testing.T) {
	t.Parallel()
	g := demoGroups(t)
	g.wantBacklog("8 5 3 2 40")
	const want = "scheduled_jobs=2 restored_groups=2 held_groups=2"
	g.dryRun(want)
	g.run(want)
	g.wantJobs("8:28@0", "26:31@80")
	g.want("main", `SELECT string_agg(path || state, ' ' ORDER BY id) FROM namespaces WHERE id IN (12, 14)`, "team-120 team-141")
	g.wantLog(2, "Group held", "group_id=13")
	g.wantLog(2, "Deletion schedule lost", "group_id=25")

	groups := g.value("main", `SELECT count(*) FROM namespaces WHERE type = 'Group'`)
	g.attempt("completed succeeded")
	g.want("main", `SELECT string_agg(state::text, ' ') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "completed completed")
	g.want("main", `SELECT count(*) FROM namespaces WHERE id IN (8, 18, 26, 33)`, "0")
	g.want("main", `SELECT `+groups+` - count(*) FROM namespaces WHERE type = 'Group'`, "4")
	g.want("main", `SELECT 120 - count(*) FROM projects`, "12")
	for _, orphans := range []string{
		`issues i WHERE project_id IS NOT NULL AND NOT EXISTS (SELECT FROM projects p WHERE p.id = i.project_id)`,
		`routes r WHERE source_type = 'Project' AND NOT EXISTS (SELECT FROM projects p WHERE p.id = r.source_id)`,
		`members m WHERE source_type = 'Project' AND NOT EXISTS (SELECT FROM projects p WHERE p.id = m.source_id)`,
		`members m WHERE source_type = 'Namespace' AND NOT EXISTS (SELECT FROM namespaces n WHERE n.id = m.source_id)`,
		`notes n WHERE noteable_type = 'Issue' AND NOT EXISTS (SELECT FROM issues i WHERE i.id = n.noteable_id)`,
		`award_emoji e WHERE awardable_type = 'Note' AND NOT EXISTS (SELECT FROM notes n WHERE n.id = e.awardable_id)`,
	} {
		g.want("main", `SELECT count(*) FROM `+orphans, "0")
	}
	g.run("held_groups=2")
}

package service_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// A user in the queue, a user whose children are users, and a group that looks marked.
func TestPlanDeletion_SaysWhatTheNextRunWouldSay(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(27, 28)
	g.Exec("main", `UPDATE users SET state = 'active' WHERE id = 27;
		ALTER TABLE users ADD COLUMN manager_id bigint REFERENCES users ON DELETE CASCADE; INSERT INTO application_settings (deletion_adjourned_period) VALUES (14)`)
	g.PersonalProjects(28, 901)
	s := g.Service(g.WithQueue)
	plan := func(kind string, id int64) *service.Plan {
		return assert.Must(s.PlanDeletion(t.Context(), kind, id))(t)
	}
	active := plan("user", 27)
	dry := g.Runs(s, true)
	assert.That(t, active.Refused == nil && active.Exact && len(active.Remarks) == 1 && strings.HasPrefix(active.Remarks[0], "the user is active again"), "%+v", active)
	assert.That(t, len(dry.Candidates) == 2 && dry.Candidates[0].Action == "delete" && dry.Candidates[0].Reason == active.Remarks[0], "%v", dry.Candidates)
	refused := plan("user", 28).Refused
	assert.That(t, refused != nil && dry.Candidates[1].Reason == refused.Reason+": "+refused.Detail && refused.Reason == "PERSONAL_PROJECTS", "%v, %v", refused, dry.Candidates)
	// Those of user 27 are counted, and the database deletes those of user 29 by itself.
	for id := 29; id < 31; id++ {
		g.User(id, 0)
		g.Exec("main", fmt.Sprintf(`UPDATE users SET manager_id = %d WHERE id = %d`, map[int]int{29: 27, 30: 29}[id], id))
		i := slices.IndexFunc(plan("user", 27).Tables, func(t service.PlannedTable) bool { return t.Table == "users" })
		got := plan("user", 27)
		assert.That(t, got.Exact == (id == 29) && got.Tables[i].Deleted == 2, "%d: %+v", id, got)
	}
	g.Exec("main", `UPDATE namespaces SET state = 4 WHERE id = 100`)
	lost := plan("group", 100).Refused
	assert.That(t, lost != nil && lost.Reason == "SCHEDULE_LOST", "%v", lost)
	held := assert.Must(s.RunBatch(t.Context(), service.RunRequest{Worker: servicetest.AdjournedGroups, DryRun: true}))(t)
	assert.That(t, fmt.Sprint(held.Candidates) == "[{group 100  hold SCHEDULE_LOST}]", "%v", held.Candidates)
	st := assert.Must(s.Status(t.Context(), servicetest.AdjournedGroups))(t)
	assert.Equal(t, st[0].Backlog.Dead, 1, "groups held")
}

package web

import (
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

func TestRun_SaysHowMuchOfWhatWasDueIsDone(t *testing.T) {
	t.Parallel()
	page := func(change func(*runPage)) int64 {
		p := &runPage{
			Run:    service.Run{Worker: "ghost_user_migration", State: running, Counts: map[string]int64{"migrated_users": 20, "failed_users": 5, "moved_rows": 9}},
			Status: service.WorkerStatus{Backlog: repo.Backlog{Due: 75}},
		}
		change(p)
		return p.Percent()
	}
	assert.Equal(t, page(func(*runPage) {}), 25, "%%")
	for what, change := range map[string]func(*runPage){
		"ended":    func(p *runPage) { p.Run.State = "succeeded" },
		"dry":      func(p *runPage) { p.Run.DryRun = true },
		"not read": func(p *runPage) { p.Status.BacklogUnknown = true },
		"at least": func(p *runPage) { p.Status.Backlog.AtLeast = true },
		"none due": func(p *runPage) { p.Status.Backlog.Due = 0 },
		"several":  func(p *runPage) { p.Status.Leases = make([]service.Lease, 2) },
		"unknown":  func(p *runPage) { p.Run.Worker = "other" },
	} {
		assert.Equal(t, page(change), 0, what)
	}
}

package job_test

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// heldJobs are jobs that find nothing to do, by what they are.
func heldJobs() map[string]repo.JobArgs {
	return map[string]repo.JobArgs{
		"group":                  repo.DestroyGroup{GroupID: 4711},
		"placeholder":            repo.DeletePlaceholderUser{PlaceholderUserID: 4711},
		"continuation":           repo.ContinueInactiveTokenDeletion{PassID: "00000000-0000-0000-0000-000000000000"},
		"user for its tokens":    repo.DeleteUser{UserID: 4711, Reason: repo.TokenDeletionReason},
		"user as a placeholder":  repo.DeleteUser{UserID: 4711, Reason: repo.PlaceholderDeletionReason},
		"user with its group":    repo.DeleteUser{UserID: 4711, Reason: "Group was deleted"},
		"user for other reasons": repo.DeleteUser{UserID: 4711, Reason: "because"},
	}
}

func TestWorkJob_WaitsWhileTheWorkerOfItsOriginIsPaused(t *testing.T) {
	t.Parallel()
	e := servicetest.NewTokens(t)
	s := e.Service(servicetest.OneChild, e.WithQueue)
	held := map[string][]string{
		service.AllWorkers:           {"group", "placeholder", "continuation", "user for its tokens", "user as a placeholder", "user with its group", "user for other reasons"},
		servicetest.AdjournedGroups:  {"group", "user with its group"},
		servicetest.PlaceholderUsers: {"placeholder", "user as a placeholder"},
		servicetest.InactiveTokens:   {"user for its tokens"},
	}
	for _, paused := range append(servicetest.Workers(), service.AllWorkers) {
		servicetest.Pause(t, s, paused)
		want := map[string]bool{}
		for _, name := range held[paused] {
			want[name] = true
		}
		for name, args := range heldJobs() {
			is := e.Holds(s, args)
			check(t, is == want[name], "%s paused: job of a %s held: %t", paused, name, is)
		}
		servicetest.Resume(t, s, paused)
	}
	for name, args := range heldJobs() {
		check(t, !e.Holds(s, args), "job of a %s held without a pause", name)
	}
	// It hears of a pause and of its end from other replicas.
	job, replica := repo.DestroyGroup{GroupID: 4711}, e.Service("", e.WithQueue)
	servicetest.Pause(t, replica, service.AllWorkers)
	devdb.Eventually(t, "the job to be held", func() bool { return e.Holds(s, job) })
	servicetest.Resume(t, replica, service.AllWorkers)
	devdb.Eventually(t, "the job to be worked", func() bool { return !e.Holds(s, job) })

	// A job waits while the pauses cannot be read.
	e.Open = []*repo.Database{e.As("unpaused")}
	e.Exec("main", `REVOKE ALL ON maintenance.pauses FROM unpaused`)
	s = e.Service("", e.WithQueue)
	check(t, e.Holds(s, job), "a job is worked though nobody knows of a pause")
	e.Exec("main", `GRANT SELECT ON maintenance.pauses TO unpaused`)
	devdb.Eventually(t, "the job to be worked", func() bool { return !e.Holds(s, job) })
	e.Exec("main", `REVOKE ALL ON maintenance.pauses FROM unpaused`)
	devdb.Eventually(t, "the job to be held", func() bool { return e.Holds(s, job) })
}

func TestDestroyGroup_ASliceAtWorkEndsWithAPauseAndTheNextGoesOnAfterIt(t *testing.T) {
	t.Parallel()
	for _, paused := range []string{service.AllWorkers, servicetest.AdjournedGroups} {
		t.Run(paused, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGroups(t)
			g.Owned(10, 15)
			g.Project(1, 10, "p")
			g.Content(1)
			g.Gate("main", "notes")
			g.Shut("main", servicetest.App)
			g.QueueJob(10, 1)
			q := g.Queue()
			servicetest.NoError(t, q.Start(servicetest.OnlyKind{Service: g.Service, Kind: "destroy_group"}))
			defer func() { servicetest.NoError(t, q.Stop(context.Background())) }()
			g.AtGate("main", servicetest.App)
			other := g.Estate.Service("")
			servicetest.Pause(t, other, paused)
			g.Eventually("main", `SELECT state = 'available' AND attempt = 0 AND (metadata ->> 'snoozes')::int > 0 FROM maintenance.river_job`, "true")
			g.WantRows(map[string]int{"projects": 1, "maintenance.group_removals": 1})
			g.Lift("main", servicetest.App)
			servicetest.Resume(t, other, paused)
			g.Eventually("main", `SELECT concat_ws(' ', state, attempt, metadata ->> 'outcome') FROM maintenance.river_job`, "completed 1 succeeded")
			g.WantRows(map[string]int{"projects": 0, "maintenance.group_removals": 0})
		})
	}
}

func TestFault_WorkJob_WaitsWhileMainIsOverALimitOfItsLoad(t *testing.T) {
	t.Parallel()
	e := servicetest.NewLoaded(t, "main", 1)
	s := e.Service("", e.WithQueue, servicetest.LoadLimits(service.LoadConfig{MaxWALRate: 1}))
	job := e.Running(repo.DestroyGroup{GroupID: 4711})
	devdb.Eventually(t, "the job to be held", func() bool {
		e.Exec("main", `SELECT pg_logical_emit_message(true, '', repeat('x', 100000))`)
		return servicetest.WorkHolds(t, s, job)
	})
	devdb.Eventually(t, "the load to be over", func() bool { return !servicetest.WorkHolds(t, s, job) })
}

func TestDestroyGroup_ASliceAtWorkEndsBeforeATableInALockQueue(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t, servicetest.LoadLimits(service.LoadConfig{MaxLockWait: 100 * time.Millisecond}))
	g.Owned(10, 15)
	g.Project(1, 10, "p")
	g.Content(1)
	g.QueueJob(10, 1)
	dissolve := g.LockQueue("notes", "1 s")
	if g.Work(g.Service, "destroy_group") != 1 {
		t.Fatal("no job waits")
	}
	g.Want("main", `SELECT concat_ws(' ', state, attempt, (metadata ->> 'snoozes')::int) FROM maintenance.river_job`, "scheduled 0 1")
	g.WantRows(map[string]int{"projects": 1, "maintenance.group_removals": 1})
	dissolve()
	devdb.Eventually(t, "the group to be removed", func() bool {
		g.Work(g.Service, "destroy_group")
		return g.Value("main", `SELECT state FROM maintenance.river_job`) == "completed"
	})
}

package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
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

// holds says whether a job is held, by working it. The attempt of one that is not held ends as skipped.
func (e *estate) holds(s *service.Service, args repo.JobArgs) bool {
	e.t.Helper()
	request := e.running(args)
	defer e.exec("main", `DELETE FROM maintenance.river_job WHERE id = $1`, request.ID)
	return holds(e.t, s, request)
}

func holds(t *testing.T, s *service.Service, request service.JobRequest) bool {
	t.Helper()
	r, err := s.WorkJob(context.Background(), request)
	if err != nil || (r.Snooze > 0) == (r.Outcome == "skipped") {
		t.Fatalf("%s: %+v, %v", request.Kind, r, err)
	}
	return r.Snooze > 0
}

func TestWorkJob_WaitsWhileTheWorkerOfItsOriginIsPaused(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	s := e.service(oneChild, e.withQueue)
	for paused, held := range map[string][]string{
		service.AllWorkers:         {"group", "placeholder", "continuation", "user for its tokens", "user as a placeholder", "user with its group", "user for other reasons"},
		groupWorker:                {"group", "user with its group"},
		"placeholder_user_cleanup": {"placeholder", "user as a placeholder"},
		tokenWorker:                {"user for its tokens"},
		"ghost_user_migration":     nil,
		cleanupWorker:              nil,
	} {
		pause(t, s, paused)
		want := map[string]bool{}
		for _, name := range held {
			want[name] = true
		}
		for name, args := range heldJobs() {
			if is := e.holds(s, args); is != want[name] {
				t.Errorf("%s paused: job of a %s held: %t", paused, name, is)
			}
		}
		resume(t, s, paused)
	}
	for name, args := range heldJobs() {
		if e.holds(s, args) {
			t.Errorf("job of a %s held without a pause", name)
		}
	}
}

func TestWorkJob_HearsOfAPauseAndOfItsEndFromOtherReplicas(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	s, replica := e.service("", e.withQueue), e.service("", e.withQueue)
	job := repo.DestroyGroup{GroupID: 4711}
	if e.holds(s, job) {
		t.Error("held without a pause")
	}
	pause(t, replica, service.AllWorkers)
	waitFor(t, "the job to be held", func() bool { return e.holds(s, job) })
	resume(t, replica, service.AllWorkers)
	waitFor(t, "the job to be worked", func() bool { return !e.holds(s, job) })
}

func TestWorkJob_WaitsWhileThePausesCannotBeRead(t *testing.T) {
	t.Parallel()
	e := tokenEstate(t)
	e.open = []*repo.Database{e.as("unpaused")}
	e.exec("main", `REVOKE ALL ON maintenance.pauses FROM unpaused`)
	s := e.service("", e.withQueue)
	job := repo.DestroyGroup{GroupID: 4711}
	if !e.holds(s, job) {
		t.Error("a job is worked though nobody knows of a pause")
	}
	e.exec("main", `GRANT SELECT ON maintenance.pauses TO unpaused`)
	waitFor(t, "the job to be worked", func() bool { return !e.holds(s, job) })
	e.exec("main", `REVOKE ALL ON maintenance.pauses FROM unpaused`)
	waitFor(t, "the job to be held", func() bool { return e.holds(s, job) })
}

func TestDestroyGroup_ASliceAtWorkEndsWithAPauseAndTheNextGoesOnAfterIt(t *testing.T) {
	t.Parallel()
	for _, paused := range []string{service.AllWorkers, groupWorker} {
		t.Run(paused, func(t *testing.T) {
			t.Parallel()
			g := newGroups(t)
			g.owned(10, 15)
			g.project(1, 10, "p")
			g.content(1)
			g.gate("main", "notes")
			g.shut("main", caretakerApp)
			g.queueJob(10, 1)
			q := g.queue()
			if err := q.Start(onlyKind{g.service, "destroy_group"}); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := q.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			g.atGate("main", caretakerApp)
			other := g.estate.service("")
			pause(t, other, paused)
			g.eventually("main", `SELECT state = 'available' AND attempt = 0 AND (metadata ->> 'snoozes')::int > 0 FROM maintenance.river_job`, "true")
			g.wantRows(map[string]int{"projects": 1, "maintenance.group_removals": 1})
			g.lift("main", caretakerApp)
			resume(t, other, paused)
			g.eventually("main", `SELECT concat_ws(' ', state, attempt, metadata ->> 'outcome') FROM maintenance.river_job`, "completed 1 succeeded")
			g.wantRows(map[string]int{"projects": 0, "maintenance.group_removals": 0})
		})
	}
}

func TestWorkJob_WaitsWhileMainIsOverALimitOfItsLoad(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 1)
	s := e.service("", e.withQueue, loadLimits(service.LoadConfig{MaxWALRate: 1}))
	job := e.running(repo.DestroyGroup{GroupID: 4711})
	waitFor(t, "the job to be held", func() bool {
		e.exec("main", `SELECT pg_logical_emit_message(true, '', repeat('x', 100000))`)
		return holds(t, s, job)
	})
	waitFor(t, "the load to be over", func() bool { return !holds(t, s, job) })
}

func TestDestroyGroup_ASliceAtWorkEndsBeforeATableInALockQueue(t *testing.T) {
	t.Parallel()
	g := newGroups(t, loadLimits(service.LoadConfig{MaxLockWait: 100 * time.Millisecond}))
	g.owned(10, 15)
	g.project(1, 10, "p")
	g.content(1)
	g.queueJob(10, 1)
	dissolve := g.lockQueue("notes", "1 s")
	if g.work(g.service, "destroy_group") != 1 {
		t.Fatal("no job waits")
	}
	g.want("main", `SELECT concat_ws(' ', state, attempt, (metadata ->> 'snoozes')::int) FROM maintenance.river_job`, "scheduled 0 1")
	g.wantRows(map[string]int{"projects": 1, "maintenance.group_removals": 1})
	dissolve()
	waitFor(t, "the group to be removed", func() bool {
		g.work(g.service, "destroy_group")
		return g.value("main", `SELECT state FROM maintenance.river_job`) == "completed"
	})
}

package job_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// heldJobs are jobs that find nothing to do, by what they are.
func heldJobs() map[string]jobqueue.Args {
	return map[string]jobqueue.Args{
		"group":                  jobqueue.DestroyGroup{GroupID: 4711},
		"placeholder":            jobqueue.DeletePlaceholderUser{PlaceholderUserID: 4711},
		"continuation":           jobqueue.ContinueInactiveTokenDeletion{PassID: "00000000-0000-0000-0000-000000000000"},
		"user for its tokens":    jobqueue.DeleteUser{UserID: 4711, Reason: jobqueue.TokenDeletionReason},
		"user as a placeholder":  jobqueue.DeleteUser{UserID: 4711, Reason: jobqueue.PlaceholderDeletionReason},
		"user with its group":    jobqueue.DeleteUser{UserID: 4711, Reason: "Group was deleted"},
		"user for other reasons": jobqueue.DeleteUser{UserID: 4711, Reason: "because"},
	}
}

func TestWorkJob_WaitsWhileTheWorkerOfItsOriginIsPaused(t *testing.T) {
	e := servicetest.NewTokens(servicetest.Parallel(t))
	s := e.Service(servicetest.OneChild, e.WithQueue)
	held := map[string][]string{
		fault.AllWorkers:             {"group", "placeholder", "continuation", "user for its tokens", "user as a placeholder", "user with its group", "user for other reasons"},
		servicetest.AdjournedGroups:  {"group", "user with its group"},
		servicetest.PlaceholderUsers: {"placeholder", "user as a placeholder"},
		servicetest.InactiveTokens:   {"user for its tokens"},
	}
	for _, paused := range append(servicetest.Workers(), fault.AllWorkers) {
		servicetest.Pause(t, s, paused)
		want := map[string]bool{}
		for _, name := range held[paused] {
			want[name] = true
		}
		for name, args := range heldJobs() {
			is := e.Holds(s, args)
			assert.That(t, is == want[name], "%s paused: job of a %s held: %t", paused, name, is)
		}
		servicetest.Resume(t, s, paused)
	}
	for name, args := range heldJobs() {
		assert.That(t, !e.Holds(s, args), "job of a %s held without a pause", name)
	}
	// It hears of a pause and of its end from other replicas.
	job, replica := jobqueue.DestroyGroup{GroupID: 4711}, e.Service("", e.WithQueue)
	servicetest.Pause(t, replica, fault.AllWorkers)
	devdb.Eventually(t, "the job to be held", func() bool { return e.Holds(s, job) })
	servicetest.Resume(t, replica, fault.AllWorkers)
	devdb.Eventually(t, "the job to be worked", func() bool { return !e.Holds(s, job) })

	// A job waits while the pauses cannot be read.
	e.Open = []*repo.Database{e.As("unpaused")}
	e.Exec("main", `REVOKE ALL ON maintenance.pauses FROM unpaused`)
	s = e.Service("", e.WithQueue)
	assert.That(t, e.Holds(s, job), "a job is worked though nobody knows of a pause")
	e.Exec("main", `GRANT SELECT ON maintenance.pauses TO unpaused`)
	devdb.Eventually(t, "the job to be worked", func() bool { return !e.Holds(s, job) })
	e.Exec("main", `REVOKE ALL ON maintenance.pauses FROM unpaused`)
	devdb.Eventually(t, "the job to be held", func() bool { return e.Holds(s, job) })
}

func TestDestroyGroup_ASliceAtWorkEndsWithAPauseAndTheNextGoesOnAfterIt(t *testing.T) {
	t.Parallel()
	for _, paused := range []string{fault.AllWorkers, servicetest.AdjournedGroups} {
		t.Run(paused, func(t *testing.T) {
			g := servicetest.NewGroups(servicetest.Parallel(t))
			g.Owned(10, 15)
			g.Project(1, 10, "p")
			g.Content(1)
			g.Gate("main", "notes")
			g.Shut("main", servicetest.App)
			g.QueueJob(10, 1)
			q := g.Queue()
			assert.NoError(t, q.Start(servicetest.OnlyKind{Service: g.Service, Kind: "destroy_group"}))
			defer func() { assert.NoError(t, q.Stop(context.Background())) }()
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
	e := servicetest.NewLoaded(servicetest.Parallel(t), "main", 1)
	s := e.Service("", e.WithQueue, servicetest.LoadLimits(load.Config{MaxWALRate: 1}))
	job := e.Running(jobqueue.DestroyGroup{GroupID: 4711})
	devdb.Eventually(t, "the job to be held", func() bool {
		e.Exec("main", `SELECT pg_logical_emit_message(true, '', repeat('x', 100000))`)
		return servicetest.WorkHolds(t, s, job)
	})
	devdb.Eventually(t, "the load to be over", func() bool { return !servicetest.WorkHolds(t, s, job) })
}

func TestDestroyGroup_ASliceAtWorkEndsBeforeATableInALockQueue(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGroups(t, servicetest.LoadLimits(load.Config{MaxLockWait: 100 * time.Millisecond}))
	g.Owned(10, 15)
	g.Project(1, 10, "p")
	g.Content(1)
	g.QueueJob(10, 1)
	dissolve := g.LockQueue("notes", "1 s")
	assert.Require(t, g.Work(g.Service, "destroy_group") == 1, "no job waits")
	g.Want("main", `SELECT concat_ws(' ', state, attempt, (metadata ->> 'snoozes')::int) FROM maintenance.river_job`, "scheduled 0 1")
	g.WantRows(map[string]int{"projects": 1, "maintenance.group_removals": 1})
	dissolve()
	devdb.Eventually(t, "the group to be removed", func() bool {
		g.Work(g.Service, "destroy_group")
		return g.Value("main", `SELECT state FROM maintenance.river_job`) == "completed"
	})
}

// fenced is an estate with a job to be worked: of each kind that destroys something in steps.
var fenced = map[string]func(t *testing.T) (*servicetest.Estate, jobqueue.Args){
	"delete_user": func(t *testing.T) (*servicetest.Estate, jobqueue.Args) {
		t.Helper()
		e := servicetest.NewTokens(t)
		e.User(7, 0, 1)
		e.PersonalProjects(7, 701)
		return e, servicetest.Authorized(7)
	},
	"destroy_group": func(t *testing.T) (*servicetest.Estate, jobqueue.Args) {
		t.Helper()
		g := servicetest.NewGroups(t)
		g.Owned(10, 15)
		g.MarkDetails(10, 15, `{"deletion_scheduled_by_user_id": 1}`)
		g.Project(1, 10, "p")
		g.Content(1)
		return g.Estate, jobqueue.DestroyGroup{GroupID: 10, UserID: new(int64(1))}
	},
}

func TestWorkJob_AttemptThatWasTakenForDeadChangesNothing(t *testing.T) {
	t.Parallel()
	for kind, prepare := range fenced {
		t.Run(kind, func(t *testing.T) {
			e, args := prepare(servicetest.Parallel(t))
			s := e.Service("", e.WithQueue)
			lost := e.Running(args)
			e.Exec("main", `UPDATE maintenance.river_job SET attempted_at = clock_timestamp() WHERE id = $1`, lost.ID)
			before := e.State("main", servicetest.Written...)
			_, err := s.WorkJob(context.Background(), lost)
			assert.That(t, errors.Is(err, dberr.ErrJobLost), "got %v, want ErrJobLost", err)
			e.WantSame("main", before, servicetest.Written...)
		})
	}
}

func TestFault_WorkJob_PausedProcessThatWakesBeyondItsAttemptWritesNothingMore(t *testing.T) {
	t.Parallel()
	// The server commits a statement that was sent with its guard and its checks without the paused
	// process. It rolls back a transaction whose checks are not sent yet. No rescue comes before.
	for table, left := range map[string]string{"project_repositories": "0", "projects": "1"} {
		for kind, prepare := range fenced {
			t.Run(kind+" at "+table, func(t *testing.T) {
				e, args := prepare(servicetest.Parallel(t))
				s := e.Service("", e.WithQueue)
				e.Gate("main", table)
				e.Shut("main", "sleeper")
				e.Insert(jobqueue.Job{Args: args})
				sleeper := e.Start("sleeper", "", func(o *servicetest.Order) { o.Jobs = kind })
				e.AtGate("main", "sleeper")
				sleeper.Signal(syscall.SIGSTOP)
				rescued := make(chan error, 1)
				other := e.Connect("main")
				go func() {
					_, err := other.Exec(context.Background(), servicetest.RescueSQL)
					rescued <- err
				}()
				devdb.Eventually(t, "the rescue to wait", func() bool {
					return e.Value("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
						AND wait_event_type = 'Lock' AND query LIKE '%rescued by JobRescuer%' AND pid <> pg_backend_pid()`) == "1"
				})
				e.Want("main", `SELECT state FROM maintenance.river_job WHERE kind = '`+kind+`'`, "running")
				e.Lift("main", "sleeper")
				assert.NoError(t, <-rescued)
				e.Want("main", `SELECT state FROM maintenance.river_job WHERE kind = '`+kind+`'`, "retryable")
				// Another process has it from now on, and works a queue of its own.
				e.Exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 2, attempted_at = clock_timestamp(),
					queue = 'other_' || queue WHERE kind = $1`, kind)
				e.Want("main", `SELECT count(*) FROM `+table, left)
				const recordedSQL = `SELECT concat_ws(' ', attempt, attempted_at, finalized_at, args,
					metadata - '{outcome,reason,trace_id,worked_ms}'::text[]) FROM maintenance.river_job`
				before, recorded := e.State("main", servicetest.Written...), e.Value("main", recordedSQL)
				sleeper.Signal(syscall.SIGCONT)
				// River puts the job back and adds an error to it: that is all.
				e.Eventually("main", `SELECT state <> 'running' AND errors[2] ->> 'error' LIKE 'job lost: %' FROM maintenance.river_job`, "true")
				e.WantSame("main", before, servicetest.Written...)
				e.Want("main", recordedSQL, recorded)
				sleeper.Kill()
				e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sleeper'`, "0")
				e.Exec("main", `UPDATE maintenance.river_job SET state = 'available', queue = substr(queue, 7) WHERE kind = $1`, kind)
				e.Work(s, kind)
				e.Want("main", `SELECT concat_ws(' ', state, metadata ->> 'outcome') FROM maintenance.river_job WHERE kind = '`+kind+`' ORDER BY id LIMIT 1`, "completed succeeded")
			})
		}
	}
}

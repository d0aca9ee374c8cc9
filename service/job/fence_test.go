package job_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// fenced is an estate with a job to be worked: of each kind that destroys something in steps.
var fenced = map[string]func(t *testing.T) (*servicetest.Estate, repo.JobArgs){
	"delete_user": func(t *testing.T) (*servicetest.Estate, repo.JobArgs) {
		t.Helper()
		e := servicetest.NewTokens(t)
		e.User(7, 0, 1)
		e.PersonalProjects(7, 701)
		return e, servicetest.Authorized(7)
	},
	"destroy_group": func(t *testing.T) (*servicetest.Estate, repo.JobArgs) {
		t.Helper()
		g := servicetest.NewGroups(t)
		g.Owned(10, 15)
		g.MarkDetails(10, 15, `{"deletion_scheduled_by_user_id": 1}`)
		g.Project(1, 10, "p")
		g.Content(1)
		return g.Estate, repo.DestroyGroup{GroupID: 10, UserID: new(int64(1))}
	},
}

func TestWorkJob_AttemptThatWasTakenForDeadChangesNothing(t *testing.T) {
	t.Parallel()
	for kind, prepare := range fenced {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			e, args := prepare(t)
			s := e.Service("", e.WithQueue)
			lost := e.Running(args)
			e.Exec("main", `UPDATE maintenance.river_job SET attempted_at = clock_timestamp() WHERE id = $1`, lost.ID)
			before := e.State("main", servicetest.Written...)
			_, err := s.WorkJob(context.Background(), lost)
			check(t, errors.Is(err, repo.ErrJobLost), "got %v, want ErrJobLost", err)
			e.WantSame("main", before, servicetest.Written...)
		})
	}
}

func TestFault_WorkJob_PausedProcessThatWakesBeyondItsAttemptWritesNothingMore(t *testing.T) {
	t.Parallel()
	for kind, prepare := range fenced {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			e, args := prepare(t)
			s := e.Service("", e.WithQueue)
			e.Gate("main", "project_repositories")
			e.Shut("main", "sleeper")
			e.Insert(repo.Job{Args: args})
			sleeper := e.Start("sleeper", "", func(o *servicetest.Order) { o.Jobs = kind })
			e.AtGate("main", "sleeper")
			sleeper.Signal(syscall.SIGSTOP)
			// The statement in flight ends on the server, and no rescue comes before.
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
			servicetest.NoError(t, <-rescued)
			e.Want("main", `SELECT state FROM maintenance.river_job WHERE kind = '`+kind+`'`, "retryable")
			// Another process has it from now on, and works a queue of its own.
			e.Exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 2, attempted_at = clock_timestamp(),
				queue = 'other_' || queue WHERE kind = $1`, kind)
			e.Want("main", `SELECT count(*) FROM project_repositories`, "0")
			const recordedSQL = `SELECT concat_ws(' ', attempt, attempted_at, finalized_at, args, metadata) FROM maintenance.river_job`
			before, recorded := e.State("main", servicetest.Written...), e.Value("main", recordedSQL)
			sleeper.Signal(syscall.SIGCONT)
			// River puts the job back and adds an error to it: that is all.
			e.Eventually("main", `SELECT state <> 'running' AND errors[2] ->> 'error' LIKE 'job lost: %' FROM maintenance.river_job`, "true")
			check(t, strings.Contains(sleeper.Log.String(), "job lost"),
				"the log does not say that the job is lost: %s", sleeper.Log.String())
			e.WantSame("main", before, servicetest.Written...)
			e.Want("main", recordedSQL, recorded)
			sleeper.Kill()
			e.Exec("main", `UPDATE maintenance.river_job SET state = 'available', queue = substr(queue, 7) WHERE kind = $1`, kind)
			e.Work(s, kind)
			e.Want("main", `SELECT concat_ws(' ', state, metadata ->> 'outcome') FROM maintenance.river_job WHERE kind = '`+kind+`' ORDER BY id LIMIT 1`, "completed succeeded")
		})
	}
}

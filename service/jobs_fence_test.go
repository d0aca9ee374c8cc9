package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// running puts a job that is at work into the queue, and returns its attempt as the queue would hand it over.
func (e *estate) running(args repo.JobArgs) service.JobRequest {
	e.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		e.t.Fatal(err)
	}
	r := service.JobRequest{Kind: args.Kind(), Args: raw, Attempt: 1, MaxAttempts: 25}
	err = e.sql["main"].QueryRow(context.Background(), `
		INSERT INTO maintenance.river_job (kind, args, state, attempt, attempted_at, max_attempts)
		VALUES ($1, $2, 'running', 1, clock_timestamp(), 25) RETURNING id, attempted_at`, r.Kind, string(raw)).Scan(&r.ID, &r.AttemptedAt)
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

// written are the tables that the jobs of these tests change.
var written = []string{
	"users", "members", "project_authorizations", "ghost_user_migrations", "namespaces", "namespace_details", "group_deletion_schedules",
	"projects", "issues", "notes", "project_repositories", "maintenance.group_removals", "maintenance.user_removals",
}

// fenced is an estate with a job to be worked: of each kind that destroys something in steps.
var fenced = map[string]func(t *testing.T) (*estate, repo.JobArgs){
	"delete_user": func(t *testing.T) (*estate, repo.JobArgs) {
		t.Helper()
		e := tokenEstate(t)
		e.user(7, 0, 1)
		e.personalProjects(7, 701)
		return e, authorized(7)
	},
	"destroy_group": func(t *testing.T) (*estate, repo.JobArgs) {
		t.Helper()
		g := newGroups(t)
		g.owned(10, 15)
		g.markDetails(10, 15, `{"deletion_scheduled_by_user_id": 1}`)
		g.project(1, 10, "p")
		g.content(1)
		return g.estate, repo.DestroyGroup{GroupID: 10, UserID: new(int64(1))}
	},
}

func TestWorkJob_AttemptThatWasTakenForDeadChangesNothing(t *testing.T) {
	t.Parallel()
	for kind, prepare := range fenced {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			e, args := prepare(t)
			s := e.service("", e.withQueue)
			lost := e.running(args)
			e.exec("main", `UPDATE maintenance.river_job SET attempted_at = clock_timestamp() WHERE id = $1`, lost.ID)
			before := e.state("main", written...)
			if _, err := s.WorkJob(context.Background(), lost); !errors.Is(err, repo.ErrJobLost) {
				t.Errorf("got %v, want ErrJobLost", err)
			}
			e.wantSame("main", before, written...)
		})
	}
}

func TestWorkJob_PausedProcessThatWakesBeyondItsAttemptWritesNothingMore(t *testing.T) {
	t.Parallel()
	for kind, prepare := range fenced {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			e, args := prepare(t)
			s := e.service("", e.withQueue)
			e.gate("main", "project_repositories")
			e.shut("main", "sleeper")
			e.insert(repo.Job{Args: args})
			sleeper := e.start("sleeper", "", func(o *processOrder) { o.Jobs = kind })
			e.atGate("main", "sleeper")
			sleeper.signal(syscall.SIGSTOP)
			// The statement in flight ends on the server, and no rescue comes before.
			rescued := make(chan error, 1)
			other := e.connect("main")
			go func() {
				_, err := other.Exec(context.Background(), rescueSQL)
				rescued <- err
			}()
			waitFor(t, "the rescue to wait", func() bool {
				return e.value("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event_type = 'Lock' AND query LIKE '%rescued by JobRescuer%' AND pid <> pg_backend_pid()`) == "1"
			})
			e.want("main", `SELECT state FROM maintenance.river_job WHERE kind = '`+kind+`'`, "running")
			e.lift("main", "sleeper")
			if err := <-rescued; err != nil {
				t.Fatal(err)
			}
			e.want("main", `SELECT state FROM maintenance.river_job WHERE kind = '`+kind+`'`, "retryable")
			// Another process has it from now on, and works a queue of its own.
			e.exec("main", `UPDATE maintenance.river_job SET state = 'running', attempt = 2, attempted_at = clock_timestamp(),
				queue = 'other_' || queue WHERE kind = $1`, kind)
			e.want("main", `SELECT count(*) FROM project_repositories`, "0")
			const recordedSQL = `SELECT concat_ws(' ', attempt, attempted_at, finalized_at, args, metadata) FROM maintenance.river_job`
			before, recorded := e.state("main", written...), e.value("main", recordedSQL)
			sleeper.signal(syscall.SIGCONT)
			// River puts the job back and adds an error to it: that is all.
			e.eventually("main", `SELECT state <> 'running' AND errors[2] ->> 'error' LIKE 'job lost: %' FROM maintenance.river_job`, "true")
			if !strings.Contains(sleeper.log.String(), "job lost") {
				t.Errorf("the log does not say that the job is lost: %s", sleeper.log.String())
			}
			e.wantSame("main", before, written...)
			e.want("main", recordedSQL, recorded)
			sleeper.kill()
			e.exec("main", `UPDATE maintenance.river_job SET state = 'available', queue = substr(queue, 7) WHERE kind = $1`, kind)
			e.work(s, kind)
			e.want("main", `SELECT concat_ws(' ', state, metadata ->> 'outcome') FROM maintenance.river_job WHERE kind = '`+kind+`' ORDER BY id LIMIT 1`, "completed succeeded")
		})
	}
}

package scheduler

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/job"
)

func TestQueue_StopCancelsAttemptsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ timeout, callers time.Duration }{
		"after its timeout":        {50 * time.Millisecond, time.Hour},
		"when its caller has none": {time.Hour, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(assert.Parallel(t))
			l.config.StopTimeout = c.timeout
			l.insert(deleteUser(1))
			begun := make(chan struct{})
			l.work(l.Queue, &jobs{do: func(ctx context.Context, _ job.Request) (job.Result, error) {
				close(begun)
				<-ctx.Done()
				return job.Result{}, ctx.Err()
			}})
			<-begun
			ctx, cancel := context.WithTimeout(context.Background(), c.callers) // elapses: the attempt ends with it
			defer cancel()
			assert.NoError(t, l.Stop(ctx))
			l.want(fate, "available 0")
			l.want(`SELECT errors IS NULL FROM maintenance.river_job`, "true")
		})
	}
}

func TestQueue_StopAndStartAgain(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.stop(l.Queue)
	for id := range int64(3) {
		l.insert(deleteUser(id))
		assert.NoError(t, l.Start(&jobs{}))
		assert.That(t, l.Start(&jobs{}) != nil, "started twice at a time")
		l.until(`SELECT count(*) FROM maintenance.river_job WHERE state <> 'completed'`, "0")
		l.stop(l.Queue)
		l.stop(l.Queue)
	}
}

// childVariable makes this program, instead of testing, work the queue of the database it names until it is killed.
const childVariable = "CARETAKER_TEST_QUEUE"

// child prints a line for each attempt, and never ends one.
func child(url string) {
	main, err := repo.Open(context.Background(), "main", url)
	if err != nil {
		panic(err)
	}
	q, err := NewQueue(main, QueueConfig{PollInterval: 10 * time.Millisecond})
	if err == nil {
		err = q.Start(&jobs{do: func(_ context.Context, r job.Request) (job.Result, error) {
			_, _ = fmt.Println(r.ID)
			select {}
		}})
	}
	if err != nil {
		panic(err)
	}
	select {}
}

func TestQueue_JobOfAKilledProcessIsWorkedAgain(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.insert(deleteUser(1))
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), childVariable+"="+l.url+"&application_name=doomed")
	output := assert.Must(process.StdoutPipe())(t)
	assert.NoError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	assert.Must(bufio.NewReader(output).ReadString('\n'))(t)
	l.want(fate, "running 1")
	assert.NoError(t, process.Process.Kill())
	_ = process.Wait()
	// A statement that it had sent before may still take a job.
	l.until(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	// As if its leadership had expired, so that another process searches for dead attempts at once.
	l.exec(`DELETE FROM maintenance.river_leader`)

	w := &jobs{}
	early, _ := l.another()
	l.work(early, w)
	l.insert(deleteUser(2))
	l.until(`SELECT state FROM maintenance.river_job WHERE id = 2`, "completed")
	l.stop(early)
	n := len(w.seen())
	assert.Require(t, n == 1, "%d attempts: a job was taken for dead too early", n)

	// As if the time had passed.
	l.exec(`UPDATE maintenance.river_job SET attempted_at = attempted_at - $1::interval WHERE id = 1`, rescueAfter)
	l.work(l.Queue, w)
	l.until(`SELECT concat_ws(' ', state, attempt, metadata ->> 'outcome') FROM maintenance.river_job WHERE id = 1`,
		"completed 2 succeeded")
}

// An attempt must be over, cancelled and its last statement done, before another process may take
// it for dead. And a dead one must be worked again within a few minutes.
func TestQueue_TimesFitTogether(t *testing.T) {
	t.Parallel()
	assert.That(t, rescueAfter >= attemptTimeout+15*time.Second+skewLimit, "a live attempt could be taken for dead")
	assert.That(t, rescueAfter <= 2*time.Minute, "a dead attempt waits too long")
}

// held is an attempt that goes on until the test ends it.
type held struct {
	begun chan struct{}
	end   chan error
}

func newHeld() *held { return &held{make(chan struct{}, 1), make(chan error)} }

// do is deaf, as a process that was stopped.
func (h *held) do(context.Context, job.Request) (job.Result, error) {
	h.begun <- struct{}{}
	return job.Result{Outcome: job.Succeeded}, <-h.end
}

// A process that was stopped for longer than an attempt may take comes back while another one works its job. Its success
// means that the work is done. After any other end the job is tried once more, also after the last attempt that it had
// before an operator retried it. The attempt that had the job changes neither.
func TestQueue_AttemptThatComesBackToLifeEndsTheJobOrHasItTriedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcome   string
		end       error
		attempts  int
		fate, err string
	}{
		"with success":         {job.Succeeded, nil, 25, "completed 2 succeeded", ""},
		"with a failure":       {"", errors.New("the statement was cancelled"), 25, "completed 3 skipped", "job lost: "},
		"with a refusal":       {job.Refused, nil, 25, "completed 3 skipped", "job lost: "},
		"with a cancellation":  {job.Cancelled, nil, 25, "completed 3 skipped", "job lost: "},
		"with nothing to do":   {job.Skipped, nil, 25, "completed 3 skipped", "job lost: "},
		"with its last one":    {"", errors.New("the statement was cancelled"), 1, "completed 1 skipped", ""},
		"with a refusal, last": {job.Refused, nil, 1, "completed 1 skipped", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(assert.Parallel(t))
			l.insert(deleteUser(1))
			// With one job running its process takes no other.
			l.config.Workers = 1
			first, second := newHeld(), newHeld()
			l.exec(`UPDATE maintenance.river_job SET max_attempts = $1`, c.attempts)
			var worked atomic.Int32
			w := &jobs{do: func(ctx context.Context, r job.Request) (job.Result, error) {
				switch worked.Add(1) {
				case 1:
					_, err := first.do(ctx, r)
					return job.Result{Outcome: c.outcome}, err
				case 2:
					return second.do(ctx, r)
				}
				return job.Result{Outcome: job.Skipped}, nil
			}}
			l.work(l.Queue, w)
			<-first.begun
			l.exec(`UPDATE maintenance.river_job SET state = 'available', max_attempts = 25,
				attempted_at = attempted_at - $1::interval`, rescueAfter)
			other, _ := l.another()
			l.work(other, w)
			<-second.begun
			l.want(fate, "running 2")
			first.end <- c.end
			l.until(fate, c.fate)
			second.end <- nil
			l.stop(other)
			l.want(fate, c.fate)
			assert.That(t, strings.HasPrefix(l.value(`SELECT coalesce(errors[1] ->> 'error', '') FROM maintenance.river_job`), c.err),
				"errors: %s", l.value(`SELECT errors FROM maintenance.river_job`))
		})
	}
}

// River stores an end again when it could not at first, seconds later: a finished job keeps its outcome.
func TestQueue_LateEndLeavesAFinishedJobAlone(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.insert(deleteUser(1))
	l.exec(`UPDATE maintenance.river_job SET state = 'cancelled', finalized_at = now(), attempt = 1, attempted_at = now(),
		metadata = metadata || '{"outcome": "refused", "reason": "NOT_AUTHORIZED"}'`)
	l.exec(`UPDATE maintenance.river_job SET metadata = metadata || '{"outcome": "failed", "reason": "", "trace_id": "a"}'`)
	l.want(fate, "cancelled 1 refused NOT_AUTHORIZED")
	l.want(`SELECT metadata ->> 'trace_id' FROM maintenance.river_job`, "a")
	// A job that is tried again begins again.
	l.exec(`UPDATE maintenance.river_job SET state = 'available', finalized_at = NULL, metadata = metadata - '{outcome,reason}'::text[]`)
	l.want(fate, "available 1")
}

// lines gets what is logged.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func TestQueue_SaysOnceWhatKeepsItFromItsWorkAndStartsWhenMainIsMigrated(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.insert(deleteUser(1))
	l.exec(`ALTER TABLE maintenance.river_migration RENAME TO away`)
	said := make(chan string, 1000)
	l.config.Logger = slog.New(slog.NewTextHandler(lines(said), nil))
	// It can be stopped before, and is started again.
	for range 2 {
		l.work(l.Queue, &jobs{})
		line := <-said
		assert.That(t, strings.Contains(line, "job queue failed"), "%v", line)
		since, err := l.Problem()
		assert.That(t, err != nil && !since.IsZero(), "%s, %v", since, err)
		l.stop(l.Queue)
	}
	l.want(fate, "available 0")
	l.work(l.Queue, &jobs{})
	<-said
	l.exec(`ALTER TABLE maintenance.away RENAME TO river_migration`)
	l.until(fate, "completed 1 succeeded")
	line := <-said
	assert.That(t, strings.Contains(line, "job queue recovered"), "%v", line)
	since := assert.Must(l.Problem())(t)
	assert.That(t, since.IsZero(), "%s", since)
}

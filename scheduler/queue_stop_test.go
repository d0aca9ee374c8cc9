package scheduler

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

func TestQueue_StopCancelsAttemptsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ patience, callers time.Duration }{
		"after its patience":       {50 * time.Millisecond, time.Hour},
		"when its caller has none": {time.Hour, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.config.StopPatience = c.patience
			l.insert(deleteUser(1))
			begun := make(chan struct{})
			l.work(l.Queue, &jobs{do: func(ctx context.Context, _ service.JobRequest) (service.JobResult, error) {
				close(begun)
				<-ctx.Done()
				return service.JobResult{}, ctx.Err()
			}})
			<-begun
			ctx, cancel := context.WithTimeout(context.Background(), c.callers) // elapses: the attempt ends with it
			defer cancel()
			noError(t, l.Stop(ctx))
			l.want(fate, "available 0")
			l.want(`SELECT errors IS NULL FROM maintenance.river_job`, "true")
		})
	}
}

func TestQueue_StopAndStartAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.stop(l.Queue)
	for id := range int64(3) {
		l.insert(deleteUser(id))
		noError(t, l.Start(&jobs{}))
		if l.Start(&jobs{}) == nil {
			t.Error("started twice at a time")
		}
		l.until(`SELECT count(*) FROM maintenance.river_job WHERE state <> 'completed'`, "0")
		l.stop(l.Queue)
		l.stop(l.Queue)
	}
}

// childVariable makes this program, instead of testing, work the queue of the database it names until it is killed.
const childVariable = "CARETAKER_TEST_QUEUE"

// child prints the name of each attempt, and never ends one.
func child(url string) {
	main, err := repo.Open(context.Background(), "main", url)
	if err != nil {
		panic(err)
	}
	q, err := NewQueue(main, QueueConfig{PollInterval: 10 * time.Millisecond})
	if err == nil {
		err = q.Start(&jobs{do: func(_ context.Context, r service.JobRequest) (service.JobResult, error) {
			_, _ = os.Stdout.WriteString(r.Name + "\n")
			select {}
		}})
	}
	if err != nil {
		panic(err)
	}
	select {}
}

func TestQueue_JobOfAKilledProcessIsWorkedAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.insert(deleteUser(1))
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), childVariable+"="+l.url+"&application_name=doomed")
	output := must(process.StdoutPipe())(t)
	noError(t, process.Start())
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	doomed := must(bufio.NewReader(output).ReadString('\n'))(t)
	doomed = strings.TrimSpace(doomed)
	l.want(fate, "running 1")
	noError(t, process.Process.Kill())
	_ = process.Wait()
	// What it had sent before may still take a job.
	l.until(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'doomed'`, "0")
	// As if its leadership had expired, so that another process looks for dead attempts at once.
	l.exec(`DELETE FROM maintenance.river_leader`)

	w := &jobs{}
	early, _ := l.another()
	l.work(early, w)
	l.insert(deleteUser(2))
	l.until(`SELECT state FROM maintenance.river_job WHERE id = 2`, "completed")
	l.stop(early)
	if n := len(w.seen()); n != 1 {
		t.Fatalf("%d attempts: a job was taken for dead too early", n)
	}

	// As if the time had passed.
	l.exec(`UPDATE maintenance.river_job SET attempted_at = attempted_at - $1::interval WHERE id = 1`, rescueAfter)
	l.work(l.Queue, w)
	l.until(`SELECT concat_ws(' ', state, attempt, metadata ->> 'outcome') FROM maintenance.river_job WHERE id = 1`,
		"completed 2 succeeded")
	seen := w.seen()
	last := seen[len(seen)-1]
	if last.Lost == nil || last.Lost.Name != doomed || last.Name == doomed || last.Lost.RescuedAt.IsZero() {
		t.Errorf("%+v followed %q, and says %+v", last, doomed, last.Lost)
	}
	l.want(`SELECT metadata ->> 'rescues_reported' FROM maintenance.river_job WHERE id = 1`, "1")
}

// An attempt must be over, cancelled and its last statement done, before another process may take it for dead; and a
// dead one must be worked again within a few minutes.
func TestQueue_TimesFitTogether(t *testing.T) {
	t.Parallel()
	if rescueAfter < attemptTimeout+15*time.Second+skewLimit {
		t.Error("a live attempt could be taken for dead")
	}
	if rescueAfter > 2*time.Minute {
		t.Error("a dead attempt waits too long")
	}
}

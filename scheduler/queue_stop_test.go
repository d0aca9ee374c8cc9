package scheduler

import (
	"bufio"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

func TestQueue_StopLetsAttemptsSnooze(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.insert(deleteUser(1))
	begun := make(chan struct{})
	l.work(l.Queue, &jobs{do: func(_ context.Context, r service.JobRequest) (service.JobResult, error) {
		close(begun)
		<-r.Stopping
		return service.JobResult{Snooze: time.Second}, nil
	}})
	<-begun
	l.stop(l.Queue)
	l.want(fate, "available 0")
	next, _ := l.another()
	l.work(next, &jobs{})
	l.until(fate, "completed 1 succeeded")
}

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
			ctx, cancel := context.WithTimeout(context.Background(), c.callers)
			defer cancel()
			if err := l.Stop(ctx); err != nil {
				t.Fatal(err)
			}
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
		if err := l.Start(&jobs{}); err != nil {
			t.Fatal(err)
		}
		if l.Start(&jobs{}) == nil {
			t.Error("started twice at a time")
		}
		l.until(`SELECT count(*) FROM maintenance.river_job WHERE state <> 'completed'`, "0")
		l.stop(l.Queue)
		l.stop(l.Queue)
	}
}

func TestQueue_StartsWhenMainIsMigrated(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.insert(deleteUser(1))
	l.exec(`ALTER TABLE maintenance.river_migration RENAME TO away`)
	said := make(chan string, 100)
	l.config.Logger = slog.New(slog.NewTextHandler(lines(said), nil))
	l.work(l.Queue, &jobs{})
	if line := <-said; !strings.Contains(line, "jobs are not worked at present") {
		t.Error(line)
	}
	l.stop(l.Queue)
	l.want(fate, "available 0")
	l.exec(`ALTER TABLE maintenance.away RENAME TO river_migration`)
	l.work(l.Queue, &jobs{})
	l.until(fate, "completed 1 succeeded")
}

// lines gets what is logged.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// childVariable makes this program, instead of testing, work the queue of the database it names until it is killed.
const childVariable = "CARETAKER_TEST_QUEUE"

// child says "at work" for each attempt, and never ends one.
func child(url string) {
	main, err := repo.Open(context.Background(), "main", url)
	if err != nil {
		panic(err)
	}
	q, err := NewQueue(main, QueueConfig{PollInterval: 10 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	err = q.Start(&jobs{do: func(context.Context, service.JobRequest) (service.JobResult, error) {
		_, _ = os.Stdout.WriteString("at work\n")
		select {}
	}})
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
	process.Env = append(os.Environ(), childVariable+"="+l.url)
	output, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "at work\n" {
		t.Fatal(line, err)
	}
	l.want(fate, "running 1")
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()

	c := service.Config{Databases: []*repo.Database{l.main}, Queue: l.Queue, Logger: slog.New(slog.DiscardHandler)}
	config.Defaults(&c)
	s, err := service.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown(context.Background()) })
	w := &rescuing{&jobs{}, s}
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
}

// rescuing are jobs of a test, rescued as the service does it.
type rescuing struct {
	*jobs
	service *service.Service
}

func (r *rescuing) RescueJobs(ctx context.Context, lasts time.Duration) error {
	return r.service.RescueJobs(ctx, lasts)
}

// An attempt must be over, cancelled and its last statement done, before another process may take it for dead; and a
// dead one must be worked again within two minutes.
func TestQueue_TimesFitTogether(t *testing.T) {
	t.Parallel()
	if rescueAfter < attemptTime+15*time.Second {
		t.Error("a live attempt could be taken for dead")
	}
	if rescueAfter+upkeepInterval+10*time.Second > 2*time.Minute {
		t.Error("a dead attempt waits too long")
	}
}

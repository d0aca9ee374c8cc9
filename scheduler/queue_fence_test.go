package scheduler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river/riverdriver"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// held is an attempt that goes on until the test ends it.
type held struct {
	begun chan struct{}
	end   chan error
}

func newHeld() *held { return &held{make(chan struct{}, 1), make(chan error)} }

// do is deaf, as a process that was stopped.
func (h *held) do(context.Context, service.JobRequest) (service.JobResult, error) {
	h.begun <- struct{}{}
	return service.JobResult{Outcome: service.JobSucceeded}, <-h.end
}

// A process that was stopped for longer than an attempt may take comes back while another one works its job.
func TestQueue_AttemptThatComesBackToLifeLeavesItsSuccessorAlone(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"with success": nil, "with a failure": errors.New("the statement was cancelled")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.insert(deleteUser(1))
			// With one job at work its process takes no other.
			l.config.Workers = 1
			first, second := newHeld(), newHeld()
			l.work(l.Queue, &jobs{do: first.do})
			<-first.begun
			l.exec(`UPDATE maintenance.river_job SET state = 'available', attempted_at = attempted_at - $1::interval`, rescueAfter)
			other, _ := l.another()
			third, _ := l.another()
			l.work(other, &jobs{do: second.do})
			<-second.begun
			l.want(fate, "running 2")
			l.work(third, &jobs{do: func(context.Context, service.JobRequest) (service.JobResult, error) {
				t.Error("a third attempt beside the second")
				return service.JobResult{Outcome: service.JobSucceeded}, nil
			}})
			first.end <- end
			// River writes ends every quarter of a second.
			time.Sleep(time.Second)
			l.want(fate, "running 2")
			l.want(`SELECT errors IS NULL FROM maintenance.river_job`, "true")
			second.end <- nil
			l.until(fate, "completed 2 succeeded")
		})
	}
}

// The answer to a fetch is lost: none of the jobs may be left as running, as nobody works them.
func TestQueue_FetchWhoseAnswerIsLostTakesNothing(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]int64{"of its begin": 0, "of its statement": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			line := newBrokenLine(t, l.url)
			main, err := repo.Open(context.Background(), "main", line.url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(main.Close)
			executor := newFencedDriver(main).GetExecutor()
			fetch := func(patience time.Duration) (int, error) {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				taken, err := executor.JobGetAvailable(ctx, &riverdriver.JobGetAvailableParams{
					ClientID: "test", MaxAttemptedBy: 1, MaxToLock: 10, Queue: "default", Schema: schema,
				})
				if err != nil {
					return 0, err
				}
				return len(taken.Jobs), nil
			}
			// The next fetch finds its statement prepared, and so is answered once for each statement.
			if n, err := fetch(patience); n != 0 || err != nil {
				t.Fatal(n, err)
			}
			l.insert(deleteUser(1))
			line.breakAfter(answers)
			if n, err := fetch(500 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(n, err)
			}
			l.until(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'caretaker' AND state <> 'idle'`, "0")
			l.want(fate, "available 0")
			line.mend()
			if n, err := fetch(patience); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			l.want(fate, "running 1")
		})
	}
}

// brokenLine leads to a server, whose answers it loses from some time on; new connections then fail.
type brokenLine struct {
	url     string
	answers atomic.Int64
}

func newBrokenLine(t *testing.T, to string) *brokenLine {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	target := server.Host
	server.Host = listener.Addr().String()
	b := &brokenLine{url: server.String()}
	b.mend()
	var ways sync.WaitGroup
	ways.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			if b.answers.Load() <= 0 {
				_ = in.Close()
				continue
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			ways.Go(func() {
				_, _ = io.Copy(out, in)
				_ = out.Close()
			})
			ways.Go(func() {
				defer func() { _ = in.Close() }()
				for answer := make([]byte, 1<<16); ; {
					n, err := out.Read(answer)
					if err != nil {
						return
					}
					if b.answers.Add(-1) >= 0 {
						_, _ = in.Write(answer[:n])
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		ways.Wait()
	})
	return b
}

// breakAfter lets so many answers of the server pass.
func (b *brokenLine) breakAfter(answers int64) { b.answers.Store(answers) }

func (b *brokenLine) mend() { b.answers.Store(math.MaxInt64) }

func TestQueue_SaysWhatKeepsItFromItsWorkOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.exec(`ALTER TABLE maintenance.river_migration RENAME TO away`)
	said := make(chan string, 1000)
	l.config.Logger = slog.New(slog.NewTextHandler(lines(said), nil))
	l.work(l.Queue, &jobs{})
	<-said
	if since, err := l.Trouble(); err == nil || since.IsZero() {
		t.Errorf("%s, %v", since, err)
	}
	l.exec(`ALTER TABLE maintenance.away RENAME TO river_migration`)
	l.insert(deleteUser(1))
	l.until(fate, "completed 1 succeeded")
	if line := <-said; !strings.Contains(line, "jobs are worked again") {
		t.Error(line)
	}
	if since, err := l.Trouble(); err != nil || !since.IsZero() {
		t.Errorf("%s, %v", since, err)
	}
}

func TestWarnings_PassOnceAMinute(t *testing.T) {
	t.Parallel()
	said := make(chan string, 100)
	log := slog.New(newWarnings(slog.NewTextHandler(lines(said), nil)))
	for n := range 50 {
		log.With("n", n).Error("down")
		log.WithGroup("g").Warn("also down")
		log.Info("of no importance")
	}
	if len(said) != 2 {
		t.Errorf("%d lines, want 2", len(said))
	}
}

package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// JobWorker works jobs: [service.Service], and in tests parts of it, or what fails.
type JobWorker interface {
	// JobKinds are the kinds that it can work; jobs of others wait.
	JobKinds() []string
	WorkJob(ctx context.Context, r service.JobRequest) (service.JobResult, error)
	// RescueJobs lets jobs be tried again whose attempt began longer ago than any attempt lasts.
	RescueJobs(ctx context.Context, lasts time.Duration) error
}

const (
	// attemptTime is when an attempt is cancelled. It should have snoozed by itself after 45 s.
	attemptTime = time.Minute
	// rescueAfter is the age at which an attempt is taken for dead. The margin is for the last statement's end.
	rescueAfter = 80 * time.Second
	// neverRescue turns River's own rescue off: it goes by the host's clock.
	neverRescue = 100 * 365 * 24 * time.Hour
	// upkeepInterval is how often the clock is compared and dead attempts are looked for.
	upkeepInterval = 10 * time.Second
	// cancelPatience is how long cancelled attempts have to return.
	cancelPatience = 5 * time.Second
	// destroyGroupWorkers is how many groups are removed at a time (adjourned_group_deletion.md section 6).
	destroyGroupWorkers = 2
)

// Start works jobs until Stop, if w knows any kind. While main does not answer it tries again. The error is a mistake of
// ours, not main's.
func (q *Queue) Start(w JobWorker) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.client != nil {
		return errors.New("the queue has been started already")
	}
	kinds := w.JobKinds()
	if len(kinds) == 0 {
		return nil
	}
	stopping := make(chan struct{})
	workers := river.NewWorkers()
	for _, kind := range kinds {
		river.AddWorkerArgs(workers, arguments{kind}, river.Worker[arguments](&worker{service: w, stopping: stopping}))
	}
	client, err := q.newClient(map[string]river.QueueConfig{
		river.QueueDefault:                  {MaxWorkers: q.config.Workers},
		queueOf(repo.DestroyGroup{}.Kind()): {MaxWorkers: destroyGroupWorkers},
	}, workers)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.client, q.stopping, q.cancel = client, stopping, cancel
	q.loop.Go(func() { q.run(ctx, client, w) })
	return nil
}

// run starts River as soon as main answers, and looks after the clock and dead attempts from then on.
func (q *Queue) run(ctx context.Context, client *river.Client[repo.Tx], w JobWorker) {
	tick := time.NewTicker(upkeepInterval)
	defer tick.Stop()
	started, said := false, false
	for {
		err := q.clock.sync(ctx, q.database)
		if err == nil && !started {
			err = q.begin(ctx, client)
			started = err == nil
		}
		if err == nil {
			err = w.RescueJobs(ctx, rescueAfter)
		}
		if err != nil && !said && ctx.Err() == nil {
			q.config.Logger.WarnContext(ctx, "jobs are not worked at present, will be tried again", "error", err.Error())
		}
		said = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (q *Queue) begin(ctx context.Context, client *river.Client[repo.Tx]) error {
	if err := CheckQueueMigrated(ctx, q.database); err != nil {
		return err
	}
	// Stop ends River, not this context.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start to work jobs: %w", err)
	}
	return nil
}

// Stop takes no more jobs. Attempts at work snooze after the statement in flight; after StopPatience, or when ctx ends,
// they are cancelled. They use up no attempt and are worked again as soon as somebody does.
func (q *Queue) Stop(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.client == nil {
		return nil
	}
	close(q.stopping)
	q.cancel()
	q.loop.Wait()
	err := q.client.Stop(ctx)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelPatience)
		defer cancel()
		err = q.client.StopAndCancel(ctx)
	}
	q.client = nil
	if err != nil {
		return fmt.Errorf("stop the queue of jobs: %w", err)
	}
	return nil
}

// arguments stand for those of any kind: package service decodes them.
type arguments struct{ kind string }

// Kind of the job.
func (a arguments) Kind() string { return a.kind }

// worker hands River's jobs to package service.
type worker struct {
	river.WorkerDefaults[arguments]
	service  JobWorker
	stopping <-chan struct{}
}

// Work does one attempt.
func (w *worker) Work(ctx context.Context, job *river.Job[arguments]) error {
	ctx = context.WithValue(ctx, attempt{}, job.JobRow)
	origin := map[string]any{}
	_ = json.Unmarshal(job.Metadata, &origin) // what is missing is empty
	runID, _ := origin[runIDKey].(string)
	parent, _ := origin[traceParentKey].(string)
	result, err := w.service.WorkJob(ctx, service.JobRequest{
		ID: job.ID, Kind: job.Kind, Args: job.EncodedArgs, Attempt: job.Attempt, MaxAttempts: job.MaxAttempts,
		RunID: runID, TraceParent: parent, Stopping: w.stopping,
	})
	switch {
	case err != nil && interrupted(ctx):
		// River puts it back without using up the attempt.
		return context.Cause(ctx)
	case err != nil && job.Attempt >= job.MaxAttempts:
		return errors.Join(service.PublicJobError(err), record(ctx, service.JobDiscarded, ""))
	case err != nil:
		return errors.Join(service.PublicJobError(err), record(ctx, service.JobFailed, ""))
	case result.Snooze > 0:
		return river.JobSnooze(result.Snooze)
	}
	err = record(ctx, result.Outcome, result.Reason)
	if err == nil && result.Outcome == service.JobRefused {
		return &refusedError{result.Reason}
	}
	return err
}

// interrupted says that an attempt ends because it was told to, not because it took too long.
func interrupted(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// record keeps the outcome and its reason with the job.
func record(ctx context.Context, outcome, reason string) error {
	return errors.Join(river.MetadataSet(ctx, outcomeKey, outcome), river.MetadataSet(ctx, reasonKey, reason))
}

// refusedError cancels a job: nothing is tried again.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "refused: " + e.reason }

// Unwrap tells River.
func (e *refusedError) Unwrap() error { return river.JobCancel(nil) }

// retries is how long a failed job waits: n⁴ seconds ± 10 % after attempt n (spec/README.md section 4).
type retries struct{ clock *databaseClock }

// NextRetry is asked by River.
func (r retries) NextRetry(job *rivertype.JobRow) time.Time {
	n := float64(job.Attempt)
	return r.clock.Now().Add(time.Duration(n * n * n * n * (0.9 + 0.2*rand.Float64()) * float64(time.Second)))
}

// databaseClock is the clock of main: its time when it was last compared, and what has passed since.
type databaseClock struct {
	mu     sync.Mutex
	then   time.Time
	passed time.Time
}

// sync compares the clock.
func (c *databaseClock) sync(ctx context.Context, main *repo.Database) error {
	now, err := main.Now(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.then, c.passed = now, time.Now()
	return nil
}

// Now by the clock of main; before the first comparison the host's.
func (c *databaseClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.then.IsZero() {
		return time.Now()
	}
	return c.then.Add(time.Since(c.passed))
}

// NowOrNil lets River ask the database itself wherever it can.
func (*databaseClock) NowOrNil() *time.Time { return nil }

// warnings lets through what River says of importance.
type warnings struct{ slog.Handler }

// Enabled from warnings on.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

// WithAttrs keeps the level.
func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}

// WithGroup keeps the level.
func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }

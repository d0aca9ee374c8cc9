package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
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
	// upkeepInterval is how often the clock is compared and dead attempts are looked for; while that fails it is tried
	// again after firstUpkeepRetry to upkeepInterval.
	upkeepInterval   = 10 * time.Second
	firstUpkeepRetry = 500 * time.Millisecond
	// stopMargin is what River has to stop fetching before attempts at work put their jobs back.
	stopMargin = 20 * time.Millisecond
	// cancelPatience is how long cancelled attempts have to return.
	cancelPatience = 5 * time.Second
	// sliceSnooze is for how long an attempt snoozes at most that could go on at once.
	sliceSnooze = time.Second
	// destroyGroupWorkers is how many groups are removed at a time (adjourned_group_deletion.md section 6).
	destroyGroupWorkers = 2
)

// Start works jobs until Stop, if w knows any kind. While main does not answer it tries again. The error is a mistake of
// ours, not main's.
func (q *Queue) Start(w JobWorker) error {
	q.starting.Lock()
	defer q.starting.Unlock()
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
	pace := service.Backoff{First: firstUpkeepRetry, Most: upkeepInterval}
	for started := false; ; {
		err := q.clock.sync(ctx, q.database)
		if err == nil && !started {
			err = q.begin(ctx, client)
			started = err == nil
		}
		if err == nil {
			err = w.RescueJobs(ctx, rescueAfter)
		}
		if ctx.Err() != nil {
			return
		}
		q.setTrouble(err)
		wait, news := pace.After(err)
		switch {
		case err != nil && news:
			q.config.Logger.WarnContext(ctx, "jobs are not worked at present, will be tried again", "error", err.Error())
		case news:
			q.config.Logger.InfoContext(ctx, "jobs are worked again")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(wait, upkeepInterval)):
		}
	}
}

func (q *Queue) setTrouble(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil {
		q.troubledSince = time.Time{}
	} else if q.trouble == nil {
		q.troubledSince = time.Now()
	}
	q.trouble = err
}

// Trouble is what keeps jobs from being worked here, and since when; nil: nothing does, or they are to be worked
// elsewhere.
func (q *Queue) Trouble() (since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.troubledSince, q.trouble
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
	q.starting.Lock()
	defer q.starting.Unlock()
	if q.client == nil {
		return nil
	}
	q.cancel()
	q.loop.Wait()
	// Nothing is taken any more when the attempts hear of it: they would get what they have just put back.
	stopping := q.stopping
	fetched := time.AfterFunc(stopMargin, func() { close(stopping) })
	err := q.client.Stop(ctx)
	if fetched.Stop() {
		close(stopping)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelPatience)
		defer cancel()
		err = q.client.StopAndCancel(ctx)
	}
	q.client = nil
	q.setTrouble(nil)
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

// Work does one attempt, and lets what River writes about it name the attempt.
func (w *worker) Work(ctx context.Context, job *river.Job[arguments]) error {
	err := w.work(ctx, job)
	if nameErr := nameAttempt(ctx, job.JobRow); err == nil {
		err = nameErr
	}
	return err
}

func (w *worker) work(ctx context.Context, job *river.Job[arguments]) error {
	ctx = context.WithValue(ctx, attempt{}, job.JobRow)
	origin := map[string]any{}
	_ = json.Unmarshal(job.Metadata, &origin) // what is missing is empty
	runID, _ := origin[runIDKey].(string)
	parent, _ := origin[traceParentKey].(string)
	result, err := w.service.WorkJob(ctx, service.JobRequest{
		ID: job.ID, Kind: job.Kind, Args: job.EncodedArgs, Attempt: job.Attempt, MaxAttempts: job.MaxAttempts, AttemptedAt: *job.AttemptedAt,
		RunID: runID, TraceParent: parent, Stopping: w.stopping, QueuedAt: job.CreatedAt,
	})
	if kept := recordTrace(ctx, result.TraceID); err == nil {
		err = kept
	}
	switch {
	case err != nil && interrupted(ctx):
		// River puts it back without using up the attempt.
		return context.Cause(ctx)
	case err != nil && job.Attempt >= job.MaxAttempts:
		return errors.Join(service.PublicJobError(err), record(ctx, service.JobDiscarded, result.Reason))
	case err != nil:
		return errors.Join(service.PublicJobError(err), record(ctx, service.JobFailed, result.Reason))
	case result.Snooze > 0 && result.Snooze <= sliceSnooze && w.isStopping():
		// Somebody else can go on at once.
		return river.JobSnooze(0)
	case result.Snooze > 0:
		return river.JobSnooze(result.Snooze)
	}
	err = errors.Join(record(ctx, result.Outcome, result.Reason), recordSpan(ctx, result.TraceParent))
	if err == nil && result.Outcome == service.JobRefused {
		return &refusedError{strings.TrimSuffix(result.Reason+": "+result.Words, ": ")}
	}
	return err
}

func (w *worker) isStopping() bool {
	select {
	case <-w.stopping:
		return true
	default:
		return false
	}
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

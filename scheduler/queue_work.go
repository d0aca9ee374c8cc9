package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// jobWorker works jobs. It is [service.Service]; tests have others.
type jobWorker interface {
	// JobKinds are the kinds that it can work; jobs of other kinds wait.
	JobKinds() []string
	WorkJob(ctx context.Context, r job.Request) (job.Result, error)
}

const (
	// attemptTimeout is when an attempt is cancelled. It should have snoozed by itself after 45 s.
	attemptTimeout = time.Minute
	// rescueAfter is the age at which an attempt is taken for dead. The margin is for the end of its
	// last statement, and for differing clocks of servers. River checks every 30 s.
	rescueAfter = 2 * time.Minute
	// skewLimit is how far the clock of this server may be off that of main without a warning.
	skewLimit = 30 * time.Second
	// probeInterval is how often main is probed where nothing else is asked of it; while it does not
	// answer it is tried again after firstProbeRetry to checkInterval.
	probeInterval   = 10 * time.Second
	firstProbeRetry = 500 * time.Millisecond
	// stopMargin is the time in which River stops fetching before attempts put their jobs back.
	stopMargin = 20 * time.Millisecond
	// checkTimeout is how long main has to answer whether an attempt still has its job.
	checkTimeout = 5 * time.Second
	// cancelTimeout is how long cancelled attempts have to return.
	cancelTimeout = 5 * time.Second
	// destroyGroupWorkers is how many groups are removed at a time in a process.
	destroyGroupWorkers = 2
)

// Start works jobs until Stop, if w has any kind. While main does not answer it retries. It is an
// error to start a queue twice.
func (q *Queue) Start(w jobWorker) error {
	q.starting.Lock()
	defer q.starting.Unlock()
	if q.workers != nil {
		return errors.New("the queue has been started already")
	}
	kinds := w.JobKinds()
	if len(kinds) == 0 {
		return nil
	}
	q.stopping, q.workers = make(chan struct{}), river.NewWorkers()
	for _, kind := range kinds {
		river.AddWorkerArgs(q.workers, arguments{kind}, river.Worker[arguments](
			&worker{
				service: w, database: q.database, stopping: q.stopping, postponed: q.postponed,
			}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.cancel = cancel
	q.loop.Go(func() { q.run(ctx, kinds) })
	return nil
}

// run starts River as soon as main answers, and from then on looks for jobs that become due, or
// only whether main answers where River has to look for them by itself.
func (q *Queue) run(ctx context.Context, kinds []string) {
	pace := run.Backoff{First: firstProbeRetry, Most: checkInterval}
	listens := false
	for {
		var err error
		next := probeInterval
		switch {
		case q.client == nil:
			// River looks for jobs as it starts.
			next = checkInterval
			listens, err = q.begin(ctx)
		case listens:
			next, err = q.wakeDue(ctx, kinds)
		default:
			_, err = q.database.Now(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		q.setProblem(err)
		wait, changed := pace.After(err)
		switch {
		case err != nil && changed:
			q.config.Logger.WarnContext(ctx, "jobs cannot be worked, retrying", "error", err.Error())
		case changed:
			q.config.Logger.InfoContext(ctx, "jobs are worked again")
		}
		var postponed <-chan struct{}
		if listens && err == nil {
			postponed = q.postponed
		}
		if !sleep(ctx, cmp.Or(wait, next), postponed) {
			return
		}
	}
}

// sleep waits for so long, or until an attempt has postponed its job, which River stores in a moment.
// It reports whether ctx still lasts.
func sleep(ctx context.Context, wait time.Duration, postponed <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	case <-postponed:
		return sleep(ctx, min(wait, storeTime), nil)
	}
}

// checkClock warns of a clock by which jobs would be retried or rescued at the wrong time.
func (q *Queue) checkClock(ctx context.Context, main time.Time) {
	if ahead := time.Since(main); ahead.Abs() > skewLimit {
		q.config.Logger.WarnContext(ctx, "clock differs from the clock of main", "ahead", ahead.Round(time.Second).String())
	}
}

func (q *Queue) setProblem(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil {
		q.failingSince = time.Time{}
	} else if q.problem == nil {
		q.failingSince = time.Now()
	}
	q.problem = err
}

// Problem is what keeps jobs from being worked here, and since when. It is nil if nothing does, or
// if the queue has not been started.
func (q *Queue) Problem() (since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failingSince, q.problem
}

// begin starts River. It listens where connections are the server's own, as far as can be seen;
// that is looked at once: nobody puts a pooler in front of a server that is at work.
func (q *Queue) begin(ctx context.Context) (listens bool, err error) {
	now, err := q.database.Now(ctx)
	if err != nil {
		return false, err
	}
	q.checkClock(ctx, now)
	if err := CheckQueueMigrated(ctx, q.database); err != nil {
		return false, err
	}
	if listens, err = q.database.Direct(ctx); err != nil {
		return false, err
	}
	poll := pooledPollInterval
	if listens {
		poll = listenPollInterval
	}
	poll = cmp.Or(q.config.PollInterval, poll)
	client, err := q.newClient(&river.Config{
		PollOnly: !listens, FetchPollInterval: poll,
		FetchCooldown: min(poll, river.FetchCooldownDefault),
		Workers:       q.workers,
		Queues: map[string]river.QueueConfig{
			river.QueueDefault:                      {MaxWorkers: q.config.Workers},
			queueOf(jobqueue.DestroyGroup{}.Kind()): {MaxWorkers: destroyGroupWorkers},
		},
	})
	if err != nil {
		return false, err
	}
	// Stop ends River, not this context.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return false, fmt.Errorf("start to work jobs: %w", err)
	}
	q.client = client
	return listens, nil
}

// Stop fetches no more jobs. Attempts snooze after the statement in flight; after StopPatience, or
// when ctx ends, they are cancelled. No attempt is used up: any server goes on with the jobs.
func (q *Queue) Stop(ctx context.Context) error {
	q.starting.Lock()
	defer q.starting.Unlock()
	if q.workers == nil {
		return nil
	}
	q.cancel()
	q.loop.Wait()
	client := q.client
	q.workers, q.client = nil, nil
	q.setProblem(nil)
	if client == nil {
		return nil
	}
	// Fetching ends before attempts put their jobs back, which it would else fetch again.
	stopping := q.stopping
	fetched := time.AfterFunc(stopMargin, func() { close(stopping) })
	err := client.Stop(ctx)
	if fetched.Stop() {
		close(stopping)
	}
	lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	if err != nil {
		err = client.StopAndCancel(lasting)
	}
	if err != nil {
		return fmt.Errorf("stop the queue of jobs: %w", err)
	}
	// Other servers take at once what was put back, or soon, should this fail.
	_ = q.wake(lasting, q.names())
	return nil
}

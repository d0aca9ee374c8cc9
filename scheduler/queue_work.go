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

// jobWorker works jobs. It is [service.Service], except in tests.
type jobWorker interface {
	// JobKinds returns the kinds that it can work. Jobs of other kinds wait.
	JobKinds() []string
	WorkJob(ctx context.Context, r job.Request) (job.Result, error)
}

const (
	// attemptTimeout is when an attempt is canceled. It should snooze on its own after 45 s.
	attemptTimeout = time.Minute
	// rescueAfter is the age from which an attempt counts as dead. The margin covers the end of its
	// last statement and clock differences between servers. River checks every 30 s.
	rescueAfter = 2 * time.Minute
	// skewLimit is the tolerated difference between the clocks of this server and main.
	skewLimit = 30 * time.Second
	// probeInterval is the interval of probing main if nothing else queries it. If main does not
	// answer, the retry interval grows from firstProbeRetry to checkInterval.
	probeInterval   = 10 * time.Second
	firstProbeRetry = 500 * time.Millisecond
	// stopMargin is the time in which River stops fetching before attempts return their jobs.
	stopMargin = 20 * time.Millisecond
	// checkTimeout limits the query whether an attempt still has its job.
	checkTimeout = 5 * time.Second
	// cancelTimeout limits how long canceled attempts may take to return.
	cancelTimeout = 5 * time.Second
	// destroyGroupWorkers is the number of groups that a process removes concurrently.
	destroyGroupWorkers = 2
)

// Start works jobs until Stop, if w has any kind. It retries while main does not answer. Starting a
// queue twice is an error.
func (q *Queue) Start(w jobWorker) error {
	q.starting.Lock()
	defer q.starting.Unlock()
	if q.workers != nil {
		return errors.New("the job queue has already been started")
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

// run starts River as soon as main answers. Then it checks for jobs that become due. If River finds
// them by polling, it only checks that main answers.
func (q *Queue) run(ctx context.Context, kinds []string) {
	pace := run.Backoff{First: firstProbeRetry, Most: checkInterval}
	listens := false
	for {
		var err error
		next := probeInterval
		switch {
		case q.client == nil:
			// River checks for jobs when it starts.
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
			q.config.Logger.WarnContext(ctx, "job queue failed, retrying", "error", err.Error())
		case changed:
			q.config.Logger.InfoContext(ctx, "job queue recovered")
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

// sleep waits for that time, or until an attempt has postponed its job, which River stores soon. It
// reports whether ctx is still active.
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

// checkClock warns of a clock that would retry or rescue jobs at the wrong time.
func (q *Queue) checkClock(ctx context.Context, main time.Time) {
	if ahead := time.Since(main); ahead.Abs() > skewLimit {
		q.config.Logger.WarnContext(ctx, "clock differs from the clock of main", "ahead", ahead.Round(time.Second).String())
	}
}

// setProblem records why this server works no jobs, or with nil that it does. failingSince keeps
// the time of the first error in a row.
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

// Problem returns the error that prevents this server from working jobs, and its start time. It
// returns nil without an error, or if the queue has not been started.
func (q *Queue) Problem() (since time.Time, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failingSince, q.problem
}

// begin starts River. River listens if no pooler is detected on the connections. This is checked
// only once, because operators do not add a pooler in front of a running server.
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
	// Stop, not this context, ends River.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return false, fmt.Errorf("cannot start the job queue: %w", err)
	}
	q.client = client
	return listens, nil
}

// Stop stops fetching jobs. Attempts snooze after the current statement. After StopTimeout, or
// when ctx ends, they are canceled. No attempt is used up, and any server resumes the jobs.
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
	// Fetching ends before attempts return their jobs, which it would otherwise fetch again.
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
		return fmt.Errorf("cannot stop the job queue: %w", err)
	}
	// Other servers fetch the returned jobs at once, or soon if this fails.
	_ = q.wake(lasting, q.names())
	return nil
}

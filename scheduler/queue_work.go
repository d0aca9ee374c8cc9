package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// jobWorker works jobs. It is [service.Service]; tests have others.
type jobWorker interface {
	// JobKinds are the kinds that it can work; jobs of other kinds wait.
	JobKinds() []string
	WorkJob(ctx context.Context, r service.JobRequest) (service.JobResult, error)
}

const (
	// attemptTimeout is when an attempt is cancelled. It should have snoozed by itself after 45 s.
	attemptTimeout = time.Minute
	// rescueAfter is the age at which an attempt is taken for dead. The margin is for the end of its
	// last statement, and for differing clocks of servers. River checks every 30 s.
	rescueAfter = 2 * time.Minute
	// skewLimit is how far the clock of this server may be off that of main without a warning.
	skewLimit = 30 * time.Second
	// probeInterval is how often main is probed; while it does not answer it is tried again after
	// firstProbeRetry to probeInterval.
	probeInterval   = 10 * time.Second
	firstProbeRetry = 500 * time.Millisecond
	// stopMargin is the time in which River stops fetching before attempts put their jobs back.
	stopMargin = 20 * time.Millisecond
	// checkTimeout bounds the check whether an attempt that has ended still has its job.
	checkTimeout = 2 * time.Second
	// awaitInterval is how often a lost attempt looks whether its job still runs.
	awaitInterval = 100 * time.Millisecond
	// cancelTimeout is how long cancelled attempts have to return.
	cancelTimeout = 5 * time.Second
	// destroyGroupWorkers is how many groups are removed at a time in a process.
	destroyGroupWorkers = 2
)

// Start works jobs until Stop, if w has any kind. While main does not answer it retries: its error
// is a bug.
func (q *Queue) Start(w jobWorker) error {
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
		river.AddWorkerArgs(workers, arguments{kind}, river.Worker[arguments](
			&worker{service: w, database: q.database, stopping: stopping}))
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
	q.loop.Go(func() { q.run(ctx, client) })
	return nil
}

// run starts River as soon as main answers, and probes main from then on.
func (q *Queue) run(ctx context.Context, client *river.Client[repo.Tx]) {
	pace := service.Backoff{First: firstProbeRetry, Most: probeInterval}
	for started := false; ; {
		now, err := q.database.Now(ctx)
		if err == nil && !started {
			q.checkClock(ctx, now)
			err = q.begin(ctx, client)
			started = err == nil
		}
		if ctx.Err() != nil {
			return
		}
		q.setTrouble(err)
		wait, changed := pace.After(err)
		switch {
		case err != nil && changed:
			q.config.Logger.WarnContext(ctx, "jobs cannot be worked, retrying", "error", err.Error())
		case changed:
			q.config.Logger.InfoContext(ctx, "jobs are worked again")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(wait, probeInterval)):
		}
	}
}

// checkClock warns of a clock by which jobs would be retried or rescued at the wrong time.
func (q *Queue) checkClock(ctx context.Context, main time.Time) {
	if ahead := time.Since(main); ahead.Abs() > skewLimit {
		q.config.Logger.WarnContext(ctx, "the clock of this server differs from that of main, "+
			"correct it: jobs are resumed, retried and rescued by it",
			"ahead", ahead.Round(time.Second).String())
	}
}

func (q *Queue) setTrouble(err error) {
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

// Stop fetches no more jobs. Attempts snooze after the statement in flight; after StopPatience, or
// when ctx ends, they are cancelled. No attempt is used up: any server goes on with the jobs.
func (q *Queue) Stop(ctx context.Context) error {
	q.starting.Lock()
	defer q.starting.Unlock()
	if q.client == nil {
		return nil
	}
	q.cancel()
	q.loop.Wait()
	// Fetching ends before attempts put their jobs back, which it would else fetch again.
	stopping := q.stopping
	fetched := time.AfterFunc(stopMargin, func() { close(stopping) })
	err := q.client.Stop(ctx)
	if fetched.Stop() {
		close(stopping)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
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

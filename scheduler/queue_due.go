package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/riverqueue/river"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// How the queue finds a due job.
//
// On the server's own connections, River listens. The transaction that inserts a due job announces
// it, and every server asks for it at once. Jobs that become due later, or return to the queue, have
// no announcement. Each server therefore queries main, with one cheap statement every
// [checkInterval], for waiting jobs and the next due time. It also checks at that time, and shortly
// after one of its own attempts has postponed its job. If a job waits, it makes River fetch it
// ([Queue.wake]). This also finds jobs whose announcement was lost, and shows whether main answers.
// River's own polling, every [listenPollInterval], is the fallback.
//
// Listening does not work through a pooler, so River then polls each of the two queues.
const (
	checkInterval = 2 * time.Second
	// takeTime is how long a due job may wait before River is woken. It takes announced jobs
	// sooner.
	takeTime = 200 * time.Millisecond
	// checkPause is the shortest time between two checks.
	checkPause = 100 * time.Millisecond
	// storeTime is how long River may take to store an attempt's end: it stores several at once.
	storeTime          = 250 * time.Millisecond
	listenPollInterval = 30 * time.Second
	// pooledPollInterval, to which River adds up to a tenth, starts jobs within 2 s.
	pooledPollInterval = 1800 * time.Millisecond
)

// names returns the names of the queues.
func (q *Queue) names() []string {
	return []string{river.QueueDefault, queueOf(jobqueue.DestroyGroup{}.Kind())}
}

// wakeDue makes River fetch if jobs of these kinds wait, and returns the time until the next check.
func (q *Queue) wakeDue(ctx context.Context, kinds []string) (next time.Duration, err error) {
	due, err := q.database.Jobs.DueJobs(ctx, jobqueue.In{Queues: q.names(), Kinds: kinds, Grace: takeTime})
	if err != nil {
		return 0, err
	}
	next = checkInterval
	var waiting []string
	for _, d := range due {
		if d.Waits {
			waiting = append(waiting, d.Queue)
		}
		if d.Later {
			next = min(next, max(d.In, checkPause))
		}
	}
	return next, q.wake(ctx, waiting)
}

// wakeTimeout limits the transaction that wakes River.
const wakeTimeout = 5 * time.Second

// wake makes every listening server fetch jobs of these queues, as an inserted job does. One
// transaction inserts a job and deletes it again, so that no other transaction sees the job.
func (q *Queue) wake(ctx context.Context, queues []string) error {
	if len(queues) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	if err := q.announce(ctx, queues); err != nil {
		return fmt.Errorf("cannot notify the job queue: %w", err)
	}
	return nil
}

// announce makes River's clients on all servers fetch jobs of these queues. It inserts and deletes
// a job in one transaction, so that River sends its notification and no job remains.
func (q *Queue) announce(ctx context.Context, queues []string) error {
	tx, err := q.database.Jobs.Pool().Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for _, queue := range queues {
		inserted, err := q.inserts.InsertTx(ctx, tx, arguments{"wake"}, &river.InsertOpts{Queue: queue})
		if err != nil {
			return err
		}
		if _, err := q.inserts.JobDeleteTx(ctx, tx, inserted.Job.ID); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

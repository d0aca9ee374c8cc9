package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/riverqueue/river"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// How a due job is found.
//
// Where connections are the server's own, River listens. A job that is inserted and due is announced
// by the transaction that inserts it, and every server asks for it at once. Nobody announces a job
// whose time comes, or one that goes back into the queue. So each server asks main, in one cheap
// statement every [checkInterval], whether a job waits, and when the next is due; it asks again at
// that time, and shortly after one of its own attempts has postponed its job. If a job waits it has
// River fetch it ([Queue.wake]). That finds jobs whose announcement was lost, too, and reports whether main
// answers. River's own polling, every [listenPollInterval], is there in case all this fails.
//
// Behind a pooler nobody can listen, so River polls each of the two queues.
const (
	checkInterval = 2 * time.Second
	// takeTime is for how long a due job may wait before River is woken: what was announced to it, it
	// takes sooner.
	takeTime = 200 * time.Millisecond
	// checkPause is the shortest time between two checks.
	checkPause = 100 * time.Millisecond
	// storeTime is how long River may take to store the end of an attempt: it stores several at once.
	storeTime          = 250 * time.Millisecond
	listenPollInterval = 30 * time.Second
	// pooledPollInterval, to which River adds up to a tenth, lets jobs start within 2 s.
	pooledPollInterval = 1800 * time.Millisecond
)

// names of the queues.
func (q *Queue) names() []string {
	return []string{river.QueueDefault, queueOf(jobqueue.DestroyGroup{}.Kind())}
}

// wakeDue has River fetch where jobs of these kinds wait, and returns in how long to ask again.
func (q *Queue) wakeDue(ctx context.Context, kinds []string) (next time.Duration, err error) {
	due, err := q.database.Jobs.DueJobs(ctx, jobqueue.JobsIn{Queues: q.names(), Kinds: kinds, Grace: takeTime})
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

// wakeTimeout bounds the transaction that wakes River.
const wakeTimeout = 5 * time.Second

// wake has every server that listens fetch jobs of these queues. That is what River does when a job
// is inserted: one is, and is deleted by the same transaction, so that nobody ever sees it.
func (q *Queue) wake(ctx context.Context, queues []string) error {
	if len(queues) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	if err := q.announce(ctx, queues); err != nil {
		return fmt.Errorf("wake the queue of jobs: %w", err)
	}
	return nil
}

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

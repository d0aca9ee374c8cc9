package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/caretaker-go/caretaker/internal/sparse"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/job"
)

// Queue stores the deferred jobs and, once started, works them. It is River, with its tables in the
// schema maintenance of main.
//
// What it guarantees:
//
//   - A job is inserted in the transaction of the change that causes it. It is unique by its
//     arguments.
//   - A job is due by the clock of main. Delays between attempts, and the age at which an attempt
//     is taken for dead, are measured by the clocks of the servers, which must be right to within
//     seconds.
//   - A job starts as soon as it is inserted, by whichever server, and when its time comes: see
//     queue_due.go. Behind a pooler in transaction mode nothing needs a session of its own, and due
//     jobs are looked for every [pooledPollInterval].
//   - No attempt works longer than [attemptTimeout]. One older than [rescueAfter] is taken for
//     dead, and River lets the job be tried again. Should the attempt be alive, it changes nothing
//     more: each transaction in which an attempt writes, and each end of a job that is neither a
//     success nor tried again, checks that the job is still its own. Another end at most ends the
//     attempt that has the job by then, which is tried again.
//   - What River stores of a failure is fit for clients; the driver's text is in the log.
//   - Stop lets attempts end or snooze, then cancels them; that uses up no attempt.
type Queue struct {
	database *repo.Database
	config   QueueConfig
	inserts  *river.Client[jobqueue.Tx]

	// starting is held by Start and Stop.
	starting sync.Mutex
	// workers are nil unless the queue has been started. cancel ends the loop, which sets client once
	// River works.
	workers *river.Workers
	cancel  context.CancelFunc
	loop    sync.WaitGroup
	client  *river.Client[jobqueue.Tx]
	// stopping is closed when attempts should snooze.
	stopping chan struct{}
	// postponed gets word, without blocking, of attempts that put their jobs off.
	postponed chan struct{}

	mu sync.Mutex
	// problem is why jobs are currently not worked.
	problem      error
	failingSince time.Time
}

// QueueConfig of a Queue; the zero value works.
type QueueConfig struct {
	// Logger gets River's warnings and errors; nil: none.
	Logger *slog.Logger
	// Workers is how many jobs are worked at a time, not counting those of destroy_group; 0: 4.
	Workers int
	// PollInterval is how often River looks for due jobs by itself; 0: [listenPollInterval], behind
	// a pooler [pooledPollInterval].
	PollInterval time.Duration
	// StopPatience is how long Stop waits for attempts; 0: 15 s.
	StopPatience time.Duration
}

const (
	// schema is that of River's tables.
	schema = "maintenance"
	// maxAttempts is how often a job is tried.
	maxAttempts = 25
	// insertBatch is how many jobs are inserted with one statement.
	insertBatch = 1000
	// How long jobs that have ended are kept.
	keepCompleted, keepFailed = 3 * 24 * time.Hour, 30 * 24 * time.Hour
)

// NewQueue prepares a queue without connecting. It inserts jobs; Start makes it work them.
func NewQueue(main *repo.Database, c QueueConfig) (*Queue, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Workers = cmp.Or(c.Workers, 4)
	c.StopPatience = cmp.Or(c.StopPatience, 15*time.Second)
	q := &Queue{database: main, config: c, postponed: make(chan struct{}, 1)}
	var err error
	// River announces the jobs of a queue once in a cooldown: those of the next transaction must not
	// be left out.
	q.inserts, err = q.newClient(&river.Config{PollOnly: true, FetchCooldown: river.FetchCooldownMin})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// newClient completes a client's configuration with what all have in common. Without queues and
// workers it only inserts.
func (q *Queue) newClient(c *river.Config) (*river.Client[jobqueue.Tx], error) {
	c.Schema, c.FetchOnlyKnownKinds = schema, true
	c.Logger = slog.New(sparse.New(q.config.Logger.Handler(), nil))
	c.Hooks = []rivertype.Hook{&databaseClock{}}
	c.SoftStopTimeout = q.config.StopPatience
	c.MaxAttempts, c.RetryPolicy = maxAttempts, retries{}
	c.JobTimeout, c.RescueStuckJobsAfter = attemptTimeout, rescueAfter
	c.CompletedJobRetentionPeriod = keepCompleted
	c.CancelledJobRetentionPeriod, c.DiscardedJobRetentionPeriod = keepFailed, keepFailed
	client, err := river.NewClient(riverpgxv5.New(q.database.Jobs.Pool()), c)
	if err != nil {
		return nil, fmt.Errorf("prepare the queue of jobs: %w", err)
	}
	return client, nil
}

// InsertJobs implements [repo.JobQueue].
func (q *Queue) InsertJobs(
	ctx context.Context, tx jobqueue.Tx, jobs []jobqueue.Job,
) (inserted int, err error) {
	ctx, span := q.startSend(ctx, jobs)
	defer span.End()
	params, err := q.prepare(ctx, tx, jobs)
	if err != nil {
		return 0, err
	}
	var inserts []*rivertype.JobInsertResult
	for batch := range slices.Chunk(params, insertBatch) {
		results, err := q.inserts.InsertManyTx(ctx, tx, batch)
		if err != nil {
			return 0, fmt.Errorf("insert %d jobs: %w", len(batch), err)
		}
		inserts = append(inserts, slices.DeleteFunc(results,
			func(r *rivertype.JobInsertResult) bool { return r.UniqueSkippedAsDuplicate })...)
	}
	for _, r := range inserts {
		spans.CountQueued(ctx, r.Job.Kind, 1)
	}
	setInserted(span, inserts, len(jobs)-len(inserts))
	return len(inserts), nil
}

// attempt is the key of an attempt's row in its context.
type attempt struct{}

// CompleteJob implements [repo.JobQueue]. It must be called in the attempt of that job. Its error
// is [repo.ErrJobLost] if another attempt has the job by now.
func (q *Queue) CompleteJob(ctx context.Context, tx jobqueue.Tx, id int64) error {
	row, ok := ctx.Value(attempt{}).(*rivertype.JobRow)
	if !ok || row.ID != id {
		return fmt.Errorf("complete job %d: called outside its attempt", id)
	}
	if err := jobqueue.HoldJob(ctx, tx, id, row.Attempt, *row.AttemptedAt); err != nil {
		return err
	}
	if err := record(ctx, job.Succeeded, ""); err != nil {
		return err
	}
	_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, &river.Job[arguments]{JobRow: row})
	if err != nil {
		return fmt.Errorf("complete job %d: %w", id, err)
	}
	return nil
}

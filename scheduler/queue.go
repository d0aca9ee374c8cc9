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

// Queue stores the deferred jobs and, once started, works them. It uses River, with its tables in
// the schema maintenance of main.
//
// It guarantees:
//
//   - A job is inserted in the transaction of the change that causes it. Its arguments make it
//     unique.
//   - A job is due by the clock of main. Delays between attempts and the age at which an attempt
//     counts as dead use the clocks of the servers. These must be right to within seconds.
//   - A job starts as soon as it is inserted, on any server, or at its due time: see queue_due.go.
//     With a pooler in transaction mode nothing requires its own session, and River polls for due
//     jobs every [pooledPollInterval].
//   - No attempt runs longer than [attemptTimeout]. An attempt older than [rescueAfter] counts as
//     dead, and River retries the job. If the attempt is still alive, it changes nothing more. Each
//     transaction in which an attempt writes checks that the attempt still has the job. So does each
//     end of a job that is neither a success nor a retry. Another end at most ends the current
//     attempt of the job, which is retried.
//   - The failure text that River stores is safe for clients. The driver's text is in the log.
//   - Stop lets attempts end or snooze, and then cancels them. This uses up no attempt.
type Queue struct {
	database *repo.Database
	config   QueueConfig
	// inserts is a client that only inserts jobs. It works without Start.
	inserts *river.Client[jobqueue.Tx]

	// Start and Stop hold starting.
	starting sync.Mutex
	// workers is nil unless the queue has been started. cancel ends the loop, which sets client
	// once River runs.
	workers *river.Workers
	cancel  context.CancelFunc
	loop    sync.WaitGroup
	client  *river.Client[jobqueue.Tx]
	// stopping is closed when attempts should snooze.
	stopping chan struct{}
	// postponed receives a value, without blocking, when an attempt postpones its job.
	postponed chan struct{}

	mu sync.Mutex
	// problem is the error that currently prevents the server from working jobs.
	problem error
	// failingSince is the time of the first problem in a row. Zero means no problem.
	failingSince time.Time
}

// QueueConfig has the settings of a Queue. The zero value works.
type QueueConfig struct {
	// Logger gets River's warnings and errors, nil for none.
	Logger *slog.Logger
	// Workers is the number of concurrent jobs, not counting destroy_group. 0 means 4.
	Workers int
	// PollInterval is how often River itself polls for due jobs. 0 means [listenPollInterval], or
	// [pooledPollInterval] with a pooler.
	PollInterval time.Duration
	// StopTimeout is how long Stop waits for attempts. 0 means 15 s.
	StopTimeout time.Duration
}

const (
	// schema is the schema of River's tables.
	schema = "maintenance"
	// maxAttempts is the maximum number of attempts of a job.
	maxAttempts = 25
	// insertBatch is the number of jobs that one statement inserts.
	insertBatch = 1000
	// Retention times of completed and of failed jobs.
	keepCompleted, keepFailed = 3 * 24 * time.Hour, 30 * 24 * time.Hour
)

// NewQueue prepares a queue without connecting. It can insert jobs. Start makes it work them.
func NewQueue(main *repo.Database, c QueueConfig) (*Queue, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Workers = cmp.Or(c.Workers, 4)
	c.StopTimeout = cmp.Or(c.StopTimeout, 15*time.Second)
	q := &Queue{database: main, config: c, postponed: make(chan struct{}, 1)}
	var err error
	// River announces the jobs of a queue only once per cooldown, which must not skip the jobs of
	// the next transaction.
	q.inserts, err = q.newClient(&river.Config{PollOnly: true, FetchCooldown: river.FetchCooldownMin})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// newClient completes a client's configuration with the common settings. A client without queues
// and workers only inserts.
func (q *Queue) newClient(c *river.Config) (*river.Client[jobqueue.Tx], error) {
	c.Schema, c.FetchOnlyKnownKinds = schema, true
	c.Logger = slog.New(sparse.New(q.config.Logger.Handler(), nil))
	c.Hooks = []rivertype.Hook{&databaseClock{}}
	c.SoftStopTimeout = q.config.StopTimeout
	c.MaxAttempts, c.RetryPolicy = maxAttempts, retries{}
	c.JobTimeout, c.RescueStuckJobsAfter = attemptTimeout, rescueAfter
	c.CompletedJobRetentionPeriod = keepCompleted
	c.CancelledJobRetentionPeriod, c.DiscardedJobRetentionPeriod = keepFailed, keepFailed
	client, err := river.NewClient(riverpgxv5.New(q.database.Jobs.Pool()), c)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare the job queue: %w", err)
	}
	return client, nil
}

// InsertJobs implements [jobqueue.Queue].
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
			return 0, fmt.Errorf("cannot insert jobs: %w", err)
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

// CompleteJob implements [jobqueue.Queue]. It must be called in the attempt of that job. Its error
// is dberr.ErrJobLost if another attempt has the job now.
func (q *Queue) CompleteJob(ctx context.Context, tx jobqueue.Tx, id int64) error {
	row, ok := ctx.Value(attempt{}).(*rivertype.JobRow)
	if !ok || row.ID != id {
		return fmt.Errorf("cannot complete job %d outside an attempt of this job: report this bug", id)
	}
	if err := jobqueue.HoldJob(ctx, tx, id, row.Attempt, *row.AttemptedAt); err != nil {
		return err
	}
	if err := record(ctx, job.Succeeded, ""); err != nil {
		return err
	}
	_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, &river.Job[arguments]{JobRow: row})
	if err != nil {
		return fmt.Errorf("cannot complete job %d: %w", id, err)
	}
	return nil
}

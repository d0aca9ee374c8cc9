package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// Queue keeps the deferred jobs, and works them once it has been started. River does the work, in the schema
// maintenance of main.
//
// What it guarantees:
//
//   - A job is inserted in the transaction of the change that causes it, and is unique as its arguments say.
//   - A job is due by the clock of main. Delays between attempts, and the age at which an attempt is taken for dead, are
//     measured by the clocks of the servers, which must be right to within seconds. Nothing needs a session of its own:
//     there is no LISTEN, and a pooler in transaction mode may be in between.
//   - No attempt works longer than [attemptTime]. One older than [rescueAfter] is taken for dead, and River lets its job
//     be tried again. Should it be alive, it changes nothing more: each transaction in which an attempt writes, and each
//     end that it reports, checks that it still has the job.
//   - What River keeps of a failure is in public words; the driver's are in our log.
//   - Stop lets attempts at work end or snooze, then cancels them; none of it uses up an attempt.
type Queue struct {
	database *repo.Database
	config   QueueConfig
	inserts  *river.Client[repo.Tx]

	// starting is held by Start and Stop.
	starting sync.Mutex
	client   *river.Client[repo.Tx]
	// stopping closes when attempts at work should snooze.
	stopping chan struct{}
	cancel   context.CancelFunc
	loop     sync.WaitGroup

	mu sync.Mutex
	// trouble is why jobs are not worked at present.
	trouble       error
	troubledSince time.Time
}

// QueueConfig of a Queue; the zero value works.
type QueueConfig struct {
	// Logger gets River's warnings and errors; nil: none.
	Logger *slog.Logger
	// Workers is how many jobs are worked at a time, besides those of destroy_group; 0: 4.
	Workers int
	// PollInterval is how often due jobs are looked for; 0: 500 ms, so that what another process has put back is worked
	// within a second.
	PollInterval time.Duration
	// StopPatience is how long Stop lets attempts at work go on; 0: 15 s.
	StopPatience time.Duration
}

const (
	// schema has River's tables.
	schema = "maintenance"
	// maxAttempts of a job.
	maxAttempts = 25
	// insertBatch is how many jobs go into one statement.
	insertBatch = 1000
	// Finished jobs are kept so long.
	keepCompleted, keepFailed = 3 * 24 * time.Hour, 30 * 24 * time.Hour
)

// NewQueue prepares a queue. It does not connect; Start makes it work jobs.
func NewQueue(main *repo.Database, c QueueConfig) (*Queue, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Workers = cmp.Or(c.Workers, 4)
	c.PollInterval = cmp.Or(c.PollInterval, 500*time.Millisecond)
	c.StopPatience = cmp.Or(c.StopPatience, 15*time.Second)
	q := &Queue{database: main, config: c}
	var err error
	if q.inserts, err = q.newClient(nil, nil); err != nil {
		return nil, err
	}
	return q, nil
}

// newClient makes a client that works these kinds of job in these queues, or one that only inserts.
func (q *Queue) newClient(queues map[string]river.QueueConfig, workers *river.Workers) (*river.Client[repo.Tx], error) {
	client, err := river.NewClient(riverpgxv5.New(q.database.Pool()), &river.Config{
		Schema: schema, PollOnly: true, Queues: queues, Workers: workers, FetchOnlyKnownKinds: true,
		Logger: slog.New(newWarnings(q.config.Logger.Handler())),
		Hooks:  []rivertype.Hook{&dueByDatabase{}},

		FetchPollInterval: q.config.PollInterval,
		FetchCooldown:     min(q.config.PollInterval, river.FetchCooldownDefault),
		SoftStopTimeout:   q.config.StopPatience,

		MaxAttempts: maxAttempts, RetryPolicy: retries{},
		JobTimeout: attemptTime, RescueStuckJobsAfter: rescueAfter,

		CompletedJobRetentionPeriod: keepCompleted, CancelledJobRetentionPeriod: keepFailed,
		DiscardedJobRetentionPeriod: keepFailed,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare the queue of jobs: %w", err)
	}
	return client, nil
}

// InsertJobs fulfils [repo.JobQueue].
func (q *Queue) InsertJobs(ctx context.Context, tx repo.Tx, jobs []repo.Job) (inserted int, err error) {
	ctx, span := q.startSend(ctx, jobs)
	defer span.End()
	params, err := q.prepare(ctx, tx, jobs)
	if err != nil {
		return 0, err
	}
	var fresh []*rivertype.JobInsertResult
	for batch := range slices.Chunk(params, insertBatch) {
		results, err := q.inserts.InsertManyTx(ctx, tx, batch)
		if err != nil {
			return 0, fmt.Errorf("insert %d jobs: %w", len(batch), err)
		}
		fresh = append(fresh, slices.DeleteFunc(results, func(r *rivertype.JobInsertResult) bool { return r.UniqueSkippedAsDuplicate })...)
	}
	tellInserted(span, fresh, len(jobs)-len(fresh))
	return len(fresh), nil
}

// attempt is the key under which an attempt's context has its row.
type attempt struct{}

// CompleteJob fulfils [repo.JobQueue]. It must be called in the attempt of that job. Its error is [repo.ErrJobLost] if
// the job has meanwhile been given to another attempt.
func (q *Queue) CompleteJob(ctx context.Context, tx repo.Tx, id int64) error {
	row, ok := ctx.Value(attempt{}).(*rivertype.JobRow)
	if !ok || row.ID != id {
		return fmt.Errorf("complete job %d: called outside its attempt", id)
	}
	if err := repo.HoldJob(ctx, tx, id, row.Attempt, *row.AttemptedAt); err != nil {
		return err
	}
	if err := errors.Join(record(ctx, service.JobSucceeded, "")); err != nil {
		return err
	}
	_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, &river.Job[arguments]{JobRow: row})
	if err != nil {
		return fmt.Errorf("complete job %d: %w", id, err)
	}
	return nil
}

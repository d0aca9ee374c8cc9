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

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
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
//   - Nothing needs a session of its own: there is no LISTEN, and a pooler in transaction mode
//     works.
//   - No attempt works longer than [attemptTimeout]. One older than [rescueAfter] is taken for
//     dead, and River lets the job be tried again. Should the attempt be alive, it changes nothing
//     more: each transaction in which an attempt writes, and each end that it reports, checks that
//     the job is still its own.
//   - What River stores of a failure is fit for clients; the driver's text is in the log.
//   - Stop lets attempts end or snooze, then cancels them; that uses up no attempt.
type Queue struct {
	database *repo.Database
	config   QueueConfig
	inserts  *river.Client[repo.Tx]

	// starting is held by Start and Stop.
	starting sync.Mutex
	client   *river.Client[repo.Tx]
	// stopping is closed when attempts should snooze.
	stopping chan struct{}
	cancel   context.CancelFunc
	loop     sync.WaitGroup

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
	// PollInterval is how often due jobs are looked for; 0: 500 ms, so that a job which another
	// process has postponed is worked within a second.
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
	c.PollInterval = cmp.Or(c.PollInterval, 500*time.Millisecond)
	c.StopPatience = cmp.Or(c.StopPatience, 15*time.Second)
	q := &Queue{database: main, config: c}
	var err error
	if q.inserts, err = q.newClient(nil, nil); err != nil {
		return nil, err
	}
	return q, nil
}

// newClient makes a client that works jobs or, without queues and workers, one that only inserts.
func (q *Queue) newClient(
	queues map[string]river.QueueConfig, workers *river.Workers,
) (*river.Client[repo.Tx], error) {
	client, err := river.NewClient(riverpgxv5.New(q.database.Pool()), &river.Config{
		Schema: schema, PollOnly: true, Queues: queues, Workers: workers,
		FetchOnlyKnownKinds: true,

		Logger: slog.New(newWarnings(q.config.Logger.Handler())),
		Hooks:  []rivertype.Hook{&dueByDatabase{}},

		FetchPollInterval: q.config.PollInterval,
		FetchCooldown:     min(q.config.PollInterval, river.FetchCooldownDefault),
		SoftStopTimeout:   q.config.StopPatience,

		MaxAttempts: maxAttempts, RetryPolicy: retries{},
		JobTimeout: attemptTimeout, RescueStuckJobsAfter: rescueAfter,

		CompletedJobRetentionPeriod: keepCompleted, CancelledJobRetentionPeriod: keepFailed,
		DiscardedJobRetentionPeriod: keepFailed,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare the queue of jobs: %w", err)
	}
	return client, nil
}

// InsertJobs implements [repo.JobQueue].
func (q *Queue) InsertJobs(
	ctx context.Context, tx repo.Tx, jobs []repo.Job,
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
	setInserted(span, inserts, len(jobs)-len(inserts))
	return len(inserts), nil
}

// attempt is the key of an attempt's row in its context.
type attempt struct{}

// CompleteJob implements [repo.JobQueue]. It must be called in the attempt of that job. Its error
// is [repo.ErrJobLost] if another attempt has the job by now.
func (q *Queue) CompleteJob(ctx context.Context, tx repo.Tx, id int64) error {
	row, ok := ctx.Value(attempt{}).(*rivertype.JobRow)
	if !ok || row.ID != id {
		return fmt.Errorf("complete job %d: called outside its attempt", id)
	}
	if err := repo.HoldJob(ctx, tx, id, row.Attempt, *row.AttemptedAt); err != nil {
		return err
	}
	if err := record(ctx, service.JobSucceeded, ""); err != nil {
		return err
	}
	_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, &river.Job[arguments]{JobRow: row})
	if err != nil {
		return fmt.Errorf("complete job %d: %w", id, err)
	}
	return nil
}

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
)

// wantInserted fails the test unless so many of these jobs are inserted.
func (l *lab) wantInserted(n int, jobs ...jobqueue.Job) {
	l.Helper()
	assert.Equal(l, l.insert(jobs...), n, "jobs inserted")
}

func TestQueue_JobIsInsertedOnceWithItsTransaction(t *testing.T) {
	l, ctx := newLab(assert.Parallel(t)), context.Background()
	failed := errors.New("changed its mind")
	err := l.in(ctx, func(tx pgx.Tx) error {
		n, err := l.InsertJobs(ctx, tx, []jobqueue.Job{deleteUser(1)})
		assert.That(t, n == 1 && err == nil, "%d jobs inserted, %v", n, err)
		return failed
	})
	assert.Require(t, errors.Is(err, failed), "%v", err)
	l.want(`SELECT count(*) FROM maintenance.river_job`, "0")

	// A job keeps what it is and who queued it.
	due := time.Date(2040, 1, 2, 3, 4, 5, 678000, time.UTC)
	l.wantInserted(1, jobqueue.Job{
		Args: jobqueue.DestroyGroup{GroupID: 9007199254740993, UserID: new(int64(7))}, ScheduledAt: due,
		RunID: "0192", TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	l.want(`SELECT concat_ws(' ', kind, queue, state, attempt, max_attempts, scheduled_at = '2040-01-02 03:04:05.000678+00',
		args = '{"group_id": 9007199254740993, "user_id": 7}',
		metadata = '{"run_id": "0192", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}') FROM maintenance.river_job`,
		"destroy_group destroy_group scheduled 0 25 t t t")

	// The clock of main decides when a job is due, whatever the host's reports.
	l.exec(`TRUNCATE maintenance.river_job`)
	tx := l.begin()
	assert.Must(l.InsertJobs(ctx, tx, []jobqueue.Job{deleteUser(1)}))(t)
	var same bool
	row := tx.QueryRow(ctx, `SELECT scheduled_at = now() AND created_at = now() FROM maintenance.river_job`)
	if err := row.Scan(&same); err != nil || !same {
		t.Errorf("the job's times are not those of the transaction: %v", err)
	}
	assert.NoError(t, tx.Commit(ctx))

	// The same job is inserted once, also of one call.
	pass := jobqueue.Job{Args: jobqueue.ContinueInactiveTokenDeletion{PassID: "1"}}
	l.wantInserted(2, deleteUser(1), pass, deleteUser(2), deleteUser(1), pass)
	l.wantInserted(1, deleteUser(2), deleteUser(3))
	l.wantInserted(0)
	l.want(`SELECT count(*) FROM maintenance.river_job`, "4")

	// More jobs than one statement takes.
	l.exec(`TRUNCATE maintenance.river_job`)
	l.wantInserted(2*insertBatch+1, users(2*insertBatch+1)...)
	l.wantInserted(insertBatch-1, users(3*insertBatch)...)

	// A duplicate leaves the waiting job as it is.
	l.exec(`TRUNCATE maintenance.river_job`)
	first := deleteUser(1)
	first.ScheduledAt, first.RunID = time.Now().Add(time.Hour), "first"
	l.insert(first)
	before := l.value(`SELECT to_jsonb(j) FROM maintenance.river_job j`)
	l.wantInserted(0, deleteUser(1))
	l.want(`SELECT to_jsonb(j) FROM maintenance.river_job j`, before)
}

// uniqueStates are all states, with whether a job in it keeps another one for the same out.
var uniqueStates = map[string]bool{
	"available": true, "pending": true, "scheduled": true, "retryable": true, "running": true,
	"completed": false, "cancelled": false, "discarded": false,
}

func TestQueue_JobIsUniqueWhileItWaitsOrRuns(t *testing.T) {
	l, actor := newLab(assert.Parallel(t)), new(int64(3))
	for _, c := range []struct{ first, same, other jobqueue.Args }{
		{
			jobqueue.DeletePlaceholderUser{PlaceholderUserID: 1},
			jobqueue.DeletePlaceholderUser{PlaceholderUserID: 1},
			jobqueue.DeletePlaceholderUser{PlaceholderUserID: 2},
		},
		{
			jobqueue.DeleteUser{UserID: 1, Reason: "a"},
			jobqueue.DeleteUser{UserID: 1, Reason: "a", DeletedByID: actor, SkipAuthorization: true},
			jobqueue.DeleteUser{UserID: 1, Reason: "b"},
		},
		{jobqueue.DestroyGroup{GroupID: 1}, jobqueue.DestroyGroup{GroupID: 1, UserID: actor}, jobqueue.DestroyGroup{GroupID: 2}},
		{
			jobqueue.ContinueInactiveTokenDeletion{PassID: "1"},
			jobqueue.ContinueInactiveTokenDeletion{PassID: "1"},
			jobqueue.ContinueInactiveTokenDeletion{PassID: "2"},
		},
	} {
		for state, unique := range uniqueStates {
			want, kind := 1, c.first.Kind()
			// A continuation queues the next one while it runs.
			if unique && (state != "running" || kind != "continue_inactive_token_deletion") {
				want = 0
			}
			t.Log(kind, state)
			l.exec(`TRUNCATE maintenance.river_job`)
			l.insert(jobqueue.Job{Args: c.first})
			l.exec(`UPDATE maintenance.river_job SET state = $1::text::maintenance.river_job_state,
				finalized_at = CASE WHEN $1 IN ('completed', 'cancelled', 'discarded') THEN now() END`, state)
			l.wantInserted(want, jobqueue.Job{Args: c.same})
			l.wantInserted(1, jobqueue.Job{Args: c.other})
		}
	}
	// Of two transactions that want the continuation of a pass at the same time, one gets it.
	l.exec(`TRUNCATE maintenance.river_job`)
	job := []jobqueue.Job{{Args: jobqueue.ContinueInactiveTokenDeletion{PassID: "1"}}}
	first := l.begin()
	n, err := l.InsertJobs(context.Background(), first, job)
	assert.Require(t, n == 1 && err == nil, "%v, %v", n, err)
	second := make(chan int, 1)
	go func() { second <- l.insert(job...) }()
	l.until(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`, "1")
	assert.NoError(t, first.Commit(context.Background()))
	assert.Equal(t, <-second, 0, "inserted by the second")
}

// Two transactions that insert the same jobs in different orders wait for each other, and none fails.
func TestQueue_TransactionsThatInsertTheSameJobsDoNotDeadlock(t *testing.T) {
	l := newLab(assert.Parallel(t))
	inserted := make(chan int, 2)
	failed := make(chan error, 2)
	var orders [2][]jobqueue.Job
	for id := range int64(500) {
		orders[0] = append(orders[0], deleteUser(id))
		orders[1] = append([]jobqueue.Job{deleteUser(id)}, orders[1]...)
	}
	for _, jobs := range orders {
		go func() {
			n := 0
			failed <- l.in(context.Background(), func(tx pgx.Tx) (err error) {
				n, err = l.InsertJobs(context.Background(), tx, jobs)
				return err
			})
			inserted <- n
		}()
	}
	assert.NoError(t, errors.Join(<-failed, <-failed))
	assert.Equal(t, <-inserted+<-inserted, 500, "jobs inserted")
}

// keepAttempt is what the guard of an attempt does.
const keepAttempt = `SELECT FROM maintenance.river_job WHERE state = 'running' FOR SHARE`

// An insert of a running job waits for none of its transactions. Each keeps the job's row, may take
// longer than an insert can wait, and may itself wait for a row of the inserting transaction.
func TestQueue_DuplicateOfARunningJobIsDroppedWithoutWaitingForIt(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.insert(deleteUser(1), deleteUser(2))
	l.exec(`UPDATE maintenance.river_job SET state = 'running', attempted_at = now() WHERE args ->> 'user_id' = '1'`)
	l.exec(`CREATE TABLE shared AS SELECT 1 AS id`)
	inserting := l.begin()
	assert.Must(inserting.Exec(context.Background(), `DELETE FROM shared`))(t)
	worked := make(chan error, 1)
	go func() {
		worked <- l.in(context.Background(), func(tx pgx.Tx) error {
			if _, err := tx.Exec(context.Background(), keepAttempt); err != nil {
				return err
			}
			_, err := tx.Exec(context.Background(), `DELETE FROM shared`)
			return err
		})
	}()
	l.until(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`, "1")
	jobs := []jobqueue.Job{deleteUser(1), deleteUser(2), deleteUser(3)}
	n, err := l.InsertJobs(context.Background(), inserting, jobs)
	assert.That(t, n == 1 && err == nil, "%d inserted, %v, want 1", n, err)
	assert.NoError(t, errors.Join(inserting.Commit(context.Background()), <-worked))
}

func users(n int) (jobs []jobqueue.Job) {
	for id := range n {
		jobs = append(jobs, deleteUser(int64(id)))
	}
	return jobs
}

func BenchmarkQueue_Insert(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := newLab(b)
			jobs := users(n)
			for b.Loop() {
				l.exec(`TRUNCATE maintenance.river_job`)
				l.insert(jobs...)
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}

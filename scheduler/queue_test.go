package scheduler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo"
)

func TestQueue_JobIsInsertedWithTheTransactionOrNotAtAll(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	failed := errors.New("changed its mind")
	err := l.in(context.Background(), func(tx pgx.Tx) error {
		if n, err := l.InsertJobs(context.Background(), tx, []repo.Job{deleteUser(1)}); n != 1 || err != nil {
			t.Errorf("%d jobs inserted, %v", n, err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	l.want(`SELECT count(*) FROM maintenance.river_job`, "0")
	l.insert(deleteUser(1))
	l.want(`SELECT count(*) FROM maintenance.river_job`, "1")
}

func TestQueue_JobKeepsWhatItIsAndWhoQueuedIt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	due := time.Date(2040, 1, 2, 3, 4, 5, 678000, time.UTC)
	actor := int64(7)
	l.insert(repo.Job{
		Args: repo.DestroyGroup{GroupID: 9007199254740993, UserID: &actor}, ScheduledAt: due,
		RunID: "0192", TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	l.want(`SELECT args = '{"group_id": 9007199254740993, "user_id": 7}' FROM maintenance.river_job`, "true")
	l.want(`SELECT kind || ' ' || queue || ' ' || state || ' ' || attempt || ' ' || max_attempts FROM maintenance.river_job`,
		"destroy_group destroy_group scheduled 0 25")
	l.want(`SELECT scheduled_at = '2040-01-02 03:04:05.000678+00' FROM maintenance.river_job`, "true")
	l.want(`SELECT metadata = '{"run_id": "0192", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
		FROM maintenance.river_job`, "true")
}

// The clock of main decides when a job is due, whatever the host's says.
func TestQueue_JobIsDueByTheClockOfMain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tx := l.begin()
	must(l.InsertJobs(context.Background(), tx, []repo.Job{deleteUser(1)}))(t)
	var same bool
	err := tx.QueryRow(context.Background(), `SELECT scheduled_at = now() AND created_at = now() FROM maintenance.river_job`).Scan(&same)
	if err != nil || !same {
		t.Errorf("the job's times are not those of the transaction: %v", err)
	}
	noError(t, tx.Commit(context.Background()))
}

// uniqueStates are all states, with whether a job in it keeps another one for the same out.
var uniqueStates = map[string]bool{
	"available": true, "pending": true, "scheduled": true, "retryable": true, "running": true,
	"completed": false, "cancelled": false, "discarded": false,
}

func TestQueue_JobIsUniqueWhileItWaitsOrRuns(t *testing.T) {
	t.Parallel()
	l, actor := newLab(t), int64(3)
	for name, c := range map[string]struct {
		first, same, other repo.JobArgs
		// running says whether it is unique while it runs.
		running bool
	}{
		"delete_placeholder_user": {
			repo.DeletePlaceholderUser{PlaceholderUserID: 1},
			repo.DeletePlaceholderUser{PlaceholderUserID: 1},
			repo.DeletePlaceholderUser{PlaceholderUserID: 2},
			true,
		},
		"delete_user": {
			repo.DeleteUser{UserID: 1, Reason: "a"},
			repo.DeleteUser{UserID: 1, Reason: "a", DeletedByID: &actor, SkipAuthorization: true},
			repo.DeleteUser{UserID: 1, Reason: "b"},
			true,
		},
		"destroy_group": {
			repo.DestroyGroup{GroupID: 1}, repo.DestroyGroup{GroupID: 1, UserID: &actor}, repo.DestroyGroup{GroupID: 2}, true,
		},
		"continue_inactive_token_deletion": {
			repo.ContinueInactiveTokenDeletion{PassID: "1"},
			repo.ContinueInactiveTokenDeletion{PassID: "1"},
			repo.ContinueInactiveTokenDeletion{PassID: "2"},
			false,
		},
	} {
		for state, unique := range uniqueStates {
			want := 1
			if unique && (state != "running" || c.running) {
				want = 0
			}
			l.exec(`TRUNCATE maintenance.river_job`)
			l.insert(repo.Job{Args: c.first})
			l.exec(`UPDATE maintenance.river_job SET state = $1::text::maintenance.river_job_state,
				finalized_at = CASE WHEN $1 IN ('completed', 'cancelled', 'discarded') THEN now() END`, state)
			if n := l.insert(repo.Job{Args: c.same}); n != want {
				t.Errorf("%s, %s: %d inserted for the same, want %d", name, state, n, want)
			}
			if n := l.insert(repo.Job{Args: c.other}); n != 1 {
				t.Errorf("%s, %s: %d inserted for another, want 1", name, state, n)
			}
		}
	}
}

func TestQueue_SameJobTwiceInOneCallIsOne(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	pass := repo.Job{Args: repo.ContinueInactiveTokenDeletion{PassID: "1"}}
	if n := l.insert(deleteUser(1), pass, deleteUser(2), deleteUser(1), pass); n != 3 {
		t.Errorf("%d inserted, want 3", n)
	}
	if n := l.insert(deleteUser(2), deleteUser(3)); n != 1 {
		t.Errorf("%d inserted, want 1", n)
	}
	if n := l.insert(); n != 0 {
		t.Errorf("%d inserted of none", n)
	}
	l.want(`SELECT count(*) FROM maintenance.river_job`, "4")
}

func TestQueue_DroppedJobLeavesTheWaitingOneAsItIs(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first := deleteUser(1)
	first.ScheduledAt, first.RunID = time.Now().Add(time.Hour), "first"
	l.insert(first)
	before := l.value(`SELECT to_jsonb(j) FROM maintenance.river_job j`)
	l.insert(deleteUser(1))
	l.want(`SELECT to_jsonb(j) FROM maintenance.river_job j`, before)
}

// Two transactions that insert the same jobs in different orders wait for each other, and none fails.
func TestQueue_TransactionsThatInsertTheSameJobsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	inserted := make(chan int, 2)
	failed := make(chan error, 2)
	var orders [2][]repo.Job
	for id := range int64(500) {
		orders[0] = append(orders[0], deleteUser(id))
		orders[1] = append([]repo.Job{deleteUser(id)}, orders[1]...)
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
	for range 2 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if n := <-inserted + <-inserted; n != 500 {
		t.Errorf("%d inserted, want 500", n)
	}
}

// keepAttempt is what the guard of an attempt does.
const keepAttempt = `SELECT FROM maintenance.river_job WHERE state = 'running' FOR SHARE`

// Whoever inserts the job that is at work waits for none of its transactions: each keeps the job's row, may take longer
// than an insert can wait, and may itself wait for a row of the inserting transaction.
func TestQueue_DuplicateOfARunningJobIsDroppedWithoutWaitingForIt(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.insert(deleteUser(1), deleteUser(2))
	l.exec(`UPDATE maintenance.river_job SET state = 'running', attempted_at = now() WHERE args ->> 'user_id' = '1'`)
	l.exec(`CREATE TABLE shared AS SELECT 1 AS id`)
	inserting := l.begin()
	must(inserting.Exec(context.Background(), `DELETE FROM shared`))(t)
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
	jobs := []repo.Job{deleteUser(1), deleteUser(2), deleteUser(3)}
	n, err := l.InsertJobs(context.Background(), inserting, jobs)
	if n != 1 || err != nil {
		t.Errorf("%d inserted, %v, want 1", n, err)
	}
	if err := inserting.Commit(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-worked; err != nil {
		t.Error(err)
	}
}

// Of two transactions that want the continuation of a pass at the same time, one gets it.
func TestQueue_ContinuationIsUniqueAmongTransactionsInFlight(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	job := []repo.Job{{Args: repo.ContinueInactiveTokenDeletion{PassID: "1"}}}
	first := l.begin()
	if n, err := l.InsertJobs(context.Background(), first, job); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	second := make(chan int, 1)
	go func() { second <- l.insert(job...) }()
	l.until(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`, "1")
	noError(t, first.Commit(context.Background()))
	if n := <-second; n != 0 {
		t.Errorf("%d inserted by the second, want 0", n)
	}
}

func TestQueue_MoreJobsThanOneStatementTakes(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	if n := l.insert(users(2*insertBatch + 1)...); n != 2*insertBatch+1 {
		t.Errorf("%d inserted", n)
	}
	if n := l.insert(users(3 * insertBatch)...); n != insertBatch-1 {
		t.Errorf("%d inserted", n)
	}
}

func users(n int) (jobs []repo.Job) {
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

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/job"
)

// fate is a job's state, attempt, outcome and reason in one text.
const fate = `SELECT concat_ws(' ', state, attempt, metadata ->> 'outcome', nullif(metadata ->> 'reason', '')) FROM maintenance.river_job`

// TestQueue_JobEndsAsItsAttemptSays works a job once. The trace of the attempt is kept however it ends.
func TestQueue_JobEndsAsItsAttemptSays(t *testing.T) {
	t.Parallel()
	const said, trace = `SELECT errors[1] ->> 'error' FROM maintenance.river_job`, "0af7651916cd43dd8448eb211c80319c"
	result := func(r job.Result) func(context.Context, *lab) (job.Result, error) {
		return func(context.Context, *lab) (job.Result, error) { return r, nil }
	}
	fails := func(context.Context, *lab) (job.Result, error) { return job.Result{}, errors.New("no") }
	for _, c := range []struct {
		attempts int
		do       func(context.Context, *lab) (job.Result, error)
		fate     string
		also     [2]string
	}{
		{do: result(job.Result{Outcome: job.Succeeded}), fate: "completed 1 succeeded"},
		{do: result(job.Result{Outcome: job.Skipped, Reason: "TARGET_GONE"}), fate: "completed 1 skipped TARGET_GONE"},
		{do: result(job.Result{Outcome: job.Restored, Reason: "RIGHTS_MISSING"}), fate: "completed 1 restored RIGHTS_MISSING"},
		{
			do:   result(job.Result{Outcome: job.Refused, Reason: "INTERNAL_USER", Message: "of a type that stays"}),
			fate: "cancelled 1 refused INTERNAL_USER", also: [2]string{said, "refused: INTERNAL_USER: of a type that stays"},
		},
		{do: result(job.Result{Snooze: time.Hour}), fate: "scheduled 0"},
		{do: fails, attempts: 24, fate: "discarded 25 discarded"},
		// A failed job waits the fourth power of its attempt.
		{do: fails, attempts: 9, fate: "retryable 10 failed", also: [2]string{
			`SELECT scheduled_at - attempted_at BETWEEN interval '9000 s' AND interval '11060 s' FROM maintenance.river_job`, "true",
		}},
		{attempts: 9, do: func(ctx context.Context, l *lab) (job.Result, error) {
			err := l.main.Jobs.Pool().QueryRow(ctx, `SELECT secret FROM missing`).Scan()
			return job.Result{}, fmt.Errorf("delete the user: %w", err)
		}, fate: "retryable 10 failed", also: [2]string{said, "internal error: see the log of this job"}},
	} {
		t.Run(c.fate+" "+c.also[1], func(t *testing.T) {
			l := newLab(assert.Parallel(t))
			l.insert(deleteUser(1))
			l.exec(`UPDATE maintenance.river_job SET attempt = $1`, c.attempts)
			w := &jobs{do: func(ctx context.Context, _ job.Request) (job.Result, error) {
				r, err := c.do(ctx, l)
				r.TraceID = trace
				return r, err
			}}
			l.work(l.Queue, w)
			l.until(fate, c.fate)
			if c.also[0] != "" {
				l.want(c.also[0], c.also[1])
			}
			listed := assert.Must(l.main.Jobs.ListJobs(context.Background(), jobqueue.List{Limit: 10}))(t)
			assert.That(t, len(listed) == 1 && listed[0].TraceID == trace, "%+v", listed)
			l.stop(l.Queue)
			assert.Equal(t, len(w.seen()), 1, "times it was worked")
		})
	}
}

func TestRetries_AreWithinTenPercentOfTheFourthPower(t *testing.T) {
	t.Parallel()
	for n := 1; n <= maxAttempts; n++ {
		want := math.Pow(float64(n), 4)
		smallest, largest := math.Inf(1), 0.0
		for range 1000 {
			// By the clock of main, whatever that of the host reports.
			began := time.Now().Add(time.Hour)
			row := &rivertype.JobRow{Attempt: n, AttemptedAt: &began, Errors: make([]rivertype.AttemptError, 3)}
			delay := retries{}.NextRetry(row).Sub(began).Seconds()
			smallest, largest = min(smallest, delay), max(largest, delay)
		}
		assert.That(t, smallest >= 0.9*want && largest <= 1.1*want && largest-smallest >= 0.1*want,
			"attempt %d: from %g to %g s, want %g ± 10 %%", n, smallest, largest, want)
	}
	// After an attempt that lasted longer the next one is due at once: River takes no time that is over.
	before := time.Now()
	began := before.Add(-rescueAfter)
	due := (retries{}).NextRetry(&rivertype.JobRow{Attempt: 3, AttemptedAt: &began})
	assert.That(t, !due.Before(before) && !due.After(time.Now()), "%s before now", time.Since(due))
}

func TestQueue_WorkerGetsWhatWasInsertedOfAKindThatItKnows(t *testing.T) {
	l := newLab(assert.Parallel(t))
	job := deleteUser(42)
	job.RunID, job.TraceParent = "run", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	l.insert(jobqueue.Job{Args: laterArgs{}}, job)
	w := &jobs{}
	l.work(l.Queue, w)
	l.until(`SELECT string_agg(state::text, ',' ORDER BY kind) FROM maintenance.river_job`, "completed,available")
	r := w.seen()[0]
	assert.That(t, userOf(t, r) == 42 && r.Kind == "delete_user" && r.RunID == "run" &&
		r.TraceParent == job.TraceParent && r.Stopping != nil && r.MaxAttempts == 25, "got %+v", r)
}

// laterArgs are of a kind that a newer version has.
type laterArgs struct{}

func (laterArgs) Kind() string { return "later" }

func TestQueue_JobCompletesWithTheTransactionOfItsChangeInItsOwnAttemptOnly(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.exec(`CREATE TABLE changes (id bigint)`)
	l.insert(deleteUser(1))
	complete := func(ctx context.Context, id int64) error {
		return l.in(ctx, func(tx pgx.Tx) error { return l.CompleteJob(ctx, tx, id) })
	}
	assert.That(t, complete(context.Background(), 1) != nil, "completed outside an attempt")
	failed, lost := errors.New("no"), make(chan error, 1)
	l.work(l.Queue, &jobs{do: func(ctx context.Context, r job.Request) (job.Result, error) {
		if userOf(t, r) == 2 {
			// Another process has taken this attempt for dead and started a new one.
			const again = `UPDATE maintenance.river_job SET attempt = 2, attempted_at = clock_timestamp() WHERE id = $1`
			l.exec(again, r.ID) //nolint:contextcheck // not this attempt's doing
			err := complete(ctx, r.ID)
			lost <- err
			return job.Result{}, err
		}
		err := l.in(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO changes VALUES ($1)`, r.Attempt)
			if err := errors.Join(err, l.CompleteJob(ctx, tx, r.ID)); err != nil {
				return err
			}
			var state string
			if err := tx.QueryRow(ctx, `SELECT state FROM maintenance.river_job`).Scan(&state); err != nil || state != "completed" {
				t.Errorf("%s in the transaction, %v", state, err)
			}
			if r.Attempt == 1 {
				return failed
			}
			return nil
		})
		return job.Result{Outcome: job.Succeeded}, err
	}})
	l.until(fate, "completed 2 succeeded")
	l.want(`SELECT string_agg(id::text, ',') FROM changes`, "2")
	l.insert(deleteUser(2))
	wantIs(t, "another attempt's job", <-lost, dberr.ErrJobLost)
}

// meter counts how many are running at a time.
type meter struct {
	mu        sync.Mutex
	now, most int
	times     map[int64]int
}

func (m *meter) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now += n
	m.most = max(m.most, m.now)
}

func (m *meter) begun(job int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.times[job]++
}

func TestQueue_TwoGroupsAtMostAreDestroyedAtATimeAndReplicasNeverWorkOneJobTogether(t *testing.T) {
	l := newLab(assert.Parallel(t))
	var groups []jobqueue.Job
	for id := range int64(12) {
		groups = append(groups, jobqueue.Job{Args: jobqueue.DestroyGroup{GroupID: id}})
	}
	l.insert(append(groups, deleteUser(1000))...)
	m := &meter{times: map[int64]int{}}
	w := &jobs{do: func(ctx context.Context, r job.Request) (job.Result, error) {
		m.begun(r.ID)
		var err error
		if r.Kind == "destroy_group" {
			m.add(1)
			// Long enough for others to begin meanwhile.
			_, err = l.main.Jobs.Pool().Exec(ctx, `SELECT pg_sleep(0.02)`)
			m.add(-1)
		}
		return job.Result{Outcome: job.Succeeded}, err
	}}
	l.work(l.Queue, w)
	const completed = `SELECT count(*) FROM maintenance.river_job WHERE state = 'completed'`
	l.until(completed, "13")
	assert.Equal(t, m.most, 2, "groups at a time")
	for range 2 {
		replica, _ := l.another()
		l.work(replica, w)
	}
	l.insert(users(300)...)
	l.until(completed, "313")
	for id, times := range m.times {
		assert.Equal(t, times, 1, fmt.Sprintf("times job %d was worked", id))
	}
}

// A pooler in transaction mode has no session: nothing listens, no lock outlives a transaction, and
// no statement is prepared. The URL reports it, and all works without.
func TestQueue_NeedsNoSession(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.url += "&default_query_exec_mode=exec"
	l.Queue, l.main = l.another()
	pass := jobqueue.Job{Args: jobqueue.ContinueInactiveTokenDeletion{PassID: "1"}}
	l.wantInserted(2, deleteUser(1), pass, pass)
	l.work(l.Queue, &jobs{do: func(ctx context.Context, r job.Request) (job.Result, error) {
		err := l.in(ctx, func(tx pgx.Tx) error { return l.CompleteJob(ctx, tx, r.ID) })
		return job.Result{Outcome: job.Succeeded}, err
	}})
	l.until(`SELECT string_agg(concat_ws(' ', state, metadata ->> 'outcome'), ', ') FROM maintenance.river_job`,
		"completed succeeded, completed succeeded")
	l.want(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE '%listen%' AND pid <> pg_backend_pid()`, "0")
	l.want(`SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
		WHERE locktype = 'advisory'`, "0")
}

// never is an interval at which River does not look by itself while a test lasts.
const never = time.Hour

// polling is a queue of another process, whose River searches for jobs by itself so often.
func (l *lab) polling(interval time.Duration) *Queue {
	l.Helper()
	q, _ := l.another()
	q.config.PollInterval = interval
	return q
}

// announced inserts a job of which River hears through its announcement alone: what searches for
// due jobs skips its priority.
func (l *lab) announced(user int64) {
	l.Helper()
	ctx := context.Background()
	tx := l.begin()
	options := &river.InsertOpts{Priority: 2}
	assert.Must(l.inserts.InsertTx(ctx, tx, deleteUser(user).Args, options))(l)
	assert.NoError(l, tx.Commit(ctx))
}

const (
	// Connections on which River waits for announcements, and asks now and then whether they are alive.
	listenersSQL = `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'idle' AND query ILIKE ANY ('{listen%,-- ping}')`
	notCompletedSQL = `SELECT count(*) FROM maintenance.river_job WHERE state <> 'completed'`
)

func TestFault_Queue_ListensAgainWhenItsConnectionIsCut(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.work(l.polling(never), &jobs{})
	for user := range int64(2) {
		l.until(listenersSQL, "1")
		l.announced(user)
		l.until(notCompletedSQL, "0")
		l.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'idle' AND query ILIKE ANY ('{listen%,-- ping}')`)
		// No process listens: the search for due jobs finds it.
		l.insert(deleteUser(100 + user))
		l.until(notCompletedSQL, "0")
	}
}

func TestQueue_JobOfAnotherProcessIsAnnouncedAndOneWhoseTimeComesIsFound(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.work(l.polling(never), &jobs{})
	l.until(listenersSQL, "1")
	for user := range int64(3) {
		l.announced(user)
		l.until(notCompletedSQL, "0")
	}
	job := deleteUser(10)
	job.ScheduledAt = time.Now().Add(3 * time.Second)
	l.insert(job)
	// So are those without an announcement, in each queue.
	l.exec(`INSERT INTO maintenance.river_job (kind, queue, args, max_attempts, scheduled_at, state)
		SELECT 'destroy_group', 'destroy_group', jsonb_build_object('group_id', n), 25, now() + n * interval '1 second', 'available'
		FROM generate_series(0, 2) n`)
	l.until(notCompletedSQL, "0")
	l.want(`SELECT count(*) FROM maintenance.river_job WHERE attempted_at < scheduled_at`, "0")
	l.want(`SELECT count(*) FROM maintenance.river_job`, "7")
}

func TestQueue_JobThatWasPutOffIsFound(t *testing.T) {
	l := newLab(assert.Parallel(t))
	l.insert(deleteUser(1))
	w := &jobs{}
	w.do = func(context.Context, job.Request) (job.Result, error) {
		switch len(w.seen()) {
		case 1:
			return job.Result{Snooze: job.SliceSnooze}, nil
		case 2:
			return job.Result{}, context.DeadlineExceeded
		}
		return job.Result{Outcome: job.Succeeded}, nil
	}
	l.work(l.polling(never), w)
	l.until(fate, "completed 2 succeeded")
}

// A server that stops gives its jobs to those that go on.
func TestQueue_JobsOfAServerThatStopsAreTakenByOthers(t *testing.T) {
	l := newLab(assert.Parallel(t))
	begun := make(chan struct{})
	leaving := l.polling(never)
	assert.NoError(t, leaving.Start(&jobs{do: func(_ context.Context, r job.Request) (job.Result, error) {
		close(begun)
		<-r.Stopping
		return job.Result{Snooze: job.SliceSnooze}, nil
	}}))
	l.insert(deleteUser(1))
	<-begun
	l.work(l.polling(never), &jobs{})
	l.until(listenersSQL, "2")
	l.stop(leaving)
	// The attempt that was put off does not count.
	l.until(fate, "completed 1 succeeded")
}

// Behind a pooler no process listens, and River polls.
func TestFault_Queue_BehindAPoolerRiverLooksForJobs(t *testing.T) {
	l := newLab(assert.Parallel(t))
	pooler := assert.Must(databases.Cluster(t).Pooler(t.Context(), 2))(t)
	t.Cleanup(func() {
		assert.NoError(t, pooler.Stop())
	})
	l.url = pooler.URL(l.value(`SELECT current_database()`))
	for _, mode := range []string{"", "&default_query_exec_mode=exec"} {
		l.url += mode
		q, main := l.another()
		q.config.PollInterval = 0
		direct := assert.Must(main.Direct(t.Context()))(t)
		assert.That(t, !direct, "%q: direct: %t", mode, direct)
		if mode == "" {
			continue
		}
		l.work(q, &jobs{})
		for user := range int64(3) {
			l.announced(user)
			l.until(notCompletedSQL, "0")
		}
	}
	// A pool pings its connections, too, but for a moment only: a listener always counts.
	l.until(listenersSQL, "0")
	direct := assert.Must(l.main.Direct(t.Context()))(t)
	assert.That(t, direct, "without it: direct: %t", direct)
}

func TestDatabase_DueJobsTellsWhatWaitsFromWhatComes(t *testing.T) {
	l := newLab(assert.Parallel(t))
	in := jobqueue.In{Queues: l.names(), Kinds: []string{"delete_user"}, Grace: time.Minute}
	add := `INSERT INTO maintenance.river_job (kind, args, max_attempts, scheduled_at, state)
		VALUES ($1, '{}', 25, now() + $2::interval, $3::text::maintenance.river_job_state)`
	want := func(what string, waits, later bool, within time.Duration) {
		t.Helper()
		due := assert.Must(l.main.Jobs.DueJobs(t.Context(), in))(t)
		for _, d := range due {
			empty := d.Queue != river.QueueDefault
			assert.That(t, d.Waits == (waits && !empty) && d.Later == (later && !empty) && d.In <= within, "%s: %+v", what, d)
		}
		assert.Equal(t, len(due), 2, what+": queues")
	}
	want("no jobs", false, false, 0)
	l.exec(add, "delete_user", time.Hour, "retryable")
	want("one in an hour", false, true, 61*time.Minute)
	l.exec(add, "unknown", -time.Hour, "available")
	want("one of an unknown kind", false, true, 61*time.Minute)
	l.exec(add, "delete_user", -time.Second, "available")
	want("one due a second ago", false, true, time.Minute)
	l.exec(add, "delete_user", -time.Hour, "available")
	want("one due an hour ago", true, true, time.Minute)
}

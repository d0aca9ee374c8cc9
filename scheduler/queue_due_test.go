package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// never is an interval at which River does not look by itself while a test lasts.
const never = time.Hour

// polling is a queue of another process, whose River looks for jobs by itself so often.
func (l *lab) polling(interval time.Duration) *Queue {
	l.Helper()
	q, _ := l.another()
	q.config.PollInterval = interval
	return q
}

// announced inserts a job of which River hears through its announcement alone: what looks for due jobs passes over its
// priority.
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
	t.Parallel()
	l := newLab(t)
	l.work(l.polling(never), &jobs{})
	for user := range int64(2) {
		l.until(listenersSQL, "1")
		l.announced(user)
		l.until(notCompletedSQL, "0")
		l.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'idle' AND query ILIKE ANY ('{listen%,-- ping}')`)
		// Nobody listens: the look for due jobs finds it.
		l.insert(deleteUser(100 + user))
		l.until(notCompletedSQL, "0")
	}
}

func TestQueue_JobOfAnotherProcessIsAnnouncedAndOneWhoseTimeComesIsFound(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.work(l.polling(never), &jobs{})
	l.until(listenersSQL, "1")
	for user := range int64(3) {
		l.announced(user)
		l.until(notCompletedSQL, "0")
	}
	job := deleteUser(10)
	job.ScheduledAt = time.Now().Add(3 * time.Second)
	l.insert(job)
	// So are those that nobody has announced, in each queue.
	l.exec(`INSERT INTO maintenance.river_job (kind, queue, args, max_attempts, scheduled_at, state)
		SELECT 'destroy_group', 'destroy_group', jsonb_build_object('group_id', n), 25, now() + n * interval '1 second', 'available'
		FROM generate_series(0, 2) n`)
	l.until(notCompletedSQL, "0")
	l.want(`SELECT count(*) FROM maintenance.river_job WHERE attempted_at < scheduled_at`, "0")
	l.want(`SELECT count(*) FROM maintenance.river_job`, "7")
}

func TestQueue_JobThatWasPutOffIsFound(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.insert(deleteUser(1))
	w := &jobs{}
	w.do = func(context.Context, service.JobRequest) (service.JobResult, error) {
		switch len(w.seen()) {
		case 1:
			return service.JobResult{Snooze: service.SliceSnooze}, nil
		case 2:
			return service.JobResult{}, context.DeadlineExceeded
		}
		return service.JobResult{Outcome: service.JobSucceeded}, nil
	}
	l.work(l.polling(never), w)
	l.until(fate, "completed 2 succeeded")
}

// A server that stops gives its jobs to those that go on.
func TestQueue_JobsOfAServerThatStopsAreTakenByOthers(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	begun := make(chan struct{})
	leaving := l.polling(never)
	assert.NoError(t, leaving.Start(&jobs{do: func(_ context.Context, r service.JobRequest) (service.JobResult, error) {
		close(begun)
		<-r.Stopping
		return service.JobResult{Snooze: service.SliceSnooze}, nil
	}}))
	l.insert(deleteUser(1))
	<-begun
	l.work(l.polling(never), &jobs{})
	l.until(listenersSQL, "2")
	l.stop(leaving)
	// The attempt that was put off does not count.
	l.until(fate, "completed 1 succeeded")
}

// Behind a pooler nobody listens, and River looks by itself.
func TestFault_Queue_BehindAPoolerRiverLooksForJobs(t *testing.T) {
	t.Parallel()
	l := newLab(t)
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
	t.Parallel()
	l := newLab(t)
	in := repo.JobsIn{Queues: l.names(), Kinds: []string{"delete_user"}, Grace: time.Minute}
	add := `INSERT INTO maintenance.river_job (kind, args, max_attempts, scheduled_at, state)
		VALUES ($1, '{}', 25, now() + $2::interval, $3::text::maintenance.river_job_state)`
	want := func(what string, waits, later bool, within time.Duration) {
		t.Helper()
		due := assert.Must(l.main.DueJobs(t.Context(), in))(t)
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

package scheduler

import (
	"context"
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/job"
)

var databases devdb.Tests

func TestMain(m *testing.M) {
	if url := os.Getenv(childVariable); url != "" {
		child(url)
	}
	// State machines are short, unless -rapid.checks reports otherwise.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(onDatabases{m})
}

type onDatabases struct{ tests *testing.M }

func (d onDatabases) Run() int { return databases.Run(d.tests) }

// migrated is an empty database with the schema maintenance and River's tables.
var migrated = devdb.Template{Name: "migrated", Prepare: func(ctx context.Context, url string) error {
	d, err := repo.Open(ctx, "main", url)
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = Migrate(ctx, d)
	return err
}}

// lab is a queue on a database of its own, with a plain connection beside it.
type lab struct {
	testing.TB
	*Queue
	url  string
	main *repo.Database
	sql  *pgx.Conn
}

func newLab(tb testing.TB) *lab {
	tb.Helper()
	url := databases.Clone(tb, migrated)
	conn := assert.Must(pgx.Connect(context.Background(), url))(tb)
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	l := &lab{TB: tb, url: url, sql: conn}
	l.Queue, l.main = l.another()
	return l
}

// another queue on the same database, as a second process has it.
func (l *lab) another() (*Queue, *repo.Database) {
	l.Helper()
	main := assert.Must(repo.Open(context.Background(), "main", l.url))(l)
	l.Cleanup(main.Close)
	config := QueueConfig{PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	if flag.Lookup("test.v").Value.String() == "true" { // not with -json
		config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return assert.Must(NewQueue(main, config))(l), main
}

// in runs do in a transaction, and commits it unless do returns an error.
func (l *lab) in(ctx context.Context, do func(tx pgx.Tx) error) error {
	l.Helper()
	return pgx.BeginFunc(ctx, l.main.Jobs.Pool(), do)
}

// begin begins a transaction, which is rolled back at the test's end unless it has ended before.
func (l *lab) begin() pgx.Tx {
	l.Helper()
	tx := assert.Must(l.main.Jobs.Pool().Begin(context.Background()))(l)
	l.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// insert inserts jobs and returns how many were inserted.
func (l *lab) insert(jobs ...jobqueue.Job) (inserted int) {
	l.Helper()
	err := l.in(context.Background(), func(tx pgx.Tx) (err error) {
		inserted, err = l.InsertJobs(context.Background(), tx, jobs)
		return err
	})
	assert.NoError(l, err)
	return inserted
}

func (l *lab) exec(sql string, args ...any) {
	l.Helper()
	_, err := l.sql.Exec(context.Background(), sql, args...)
	assert.Require(l, err == nil, "%s: %v", sql, err)
}

func (l *lab) value(sql string, args ...any) string {
	l.Helper()
	var v *string
	err := l.sql.QueryRow(context.Background(), "SELECT ("+sql+")::text", args...).Scan(&v)
	assert.Require(l, err == nil, "%s: %v", sql, err)
	if v == nil {
		return "NULL"
	}
	return *v
}

func (l *lab) want(sql, want string) {
	l.Helper()
	assert.Equal(l, l.value(sql), want, sql)
}

// until waits for a query's value.
func (l *lab) until(sql, want string) {
	l.Helper()
	got := want
	defer func() {
		if got != want {
			l.Logf("it is %s", got)
		}
	}()
	devdb.Eventually(l, sql+" to be "+want, func() bool {
		got = l.value(sql)
		return got == want
	})
}

// work starts a queue and stops it at the test's end.
func (l *lab) work(q *Queue, w jobWorker) {
	l.Helper()
	assert.NoError(l, q.Start(w))
	l.Cleanup(func() { l.stop(q) })
}

func (l *lab) stop(q *Queue) {
	l.Helper()
	assert.NoError(l, q.Stop(context.Background()))
}

// jobs is a service whose jobs do what the test reports.
type jobs struct {
	do func(ctx context.Context, r job.Request) (job.Result, error)

	mu     sync.Mutex
	worked []job.Request
}

func (j *jobs) JobKinds() []string {
	return []string{"continue_inactive_token_deletion", "delete_placeholder_user", "delete_user", "destroy_group"}
}

func (j *jobs) WorkJob(ctx context.Context, r job.Request) (job.Result, error) {
	j.mu.Lock()
	j.worked = append(j.worked, r)
	j.mu.Unlock()
	if j.do == nil {
		return job.Result{Outcome: job.Succeeded}, nil
	}
	return j.do(ctx, r)
}

// seen are the attempts so far.
func (j *jobs) seen() []job.Request {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.worked)
}

func deleteUser(id int64) jobqueue.Job {
	return jobqueue.Job{Args: jobqueue.DeleteUser{UserID: id, SkipAuthorization: true, Reason: "test"}}
}

func userOf(t *testing.T, r job.Request) int64 {
	t.Helper()
	var args jobqueue.DeleteUser
	assert.NoError(t, json.Unmarshal(r.Args, &args))
	return args.UserID
}

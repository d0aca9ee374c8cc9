package service_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

// server is a PostgreSQL of a test's own, which it may stop and kill.
type server struct {
	t       *testing.T
	cluster *devdb.Cluster
	dir     string
	// settings of the server besides devdb's.
	settings map[string]string
}

// newServer starts it with a database, migrated, with the reference schema's queue.
func newServer(t *testing.T, database string, settings ...map[string]string) *server {
	t.Helper()
	s := &server{t: t, dir: filepath.Join(t.TempDir(), "server"), settings: map[string]string{}}
	for _, more := range settings {
		maps.Copy(s.settings, more)
	}
	s.start()
	t.Cleanup(s.stop)
	ctx := context.Background()
	if err := s.cluster.CreateDatabase(ctx, database); err != nil {
		t.Fatal(err)
	}
	url := s.cluster.URL(database)
	if err := devdb.LoadSchema(ctx, url, "main"); err != nil {
		t.Fatal(err)
	}
	if err := migrated("").Prepare(ctx, url); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) start() {
	s.t.Helper()
	waitFor(s.t, "the processes of the server that was killed to be gone", func() bool {
		cluster, err := devdb.Start(context.Background(), devdb.Config{Dir: s.dir, Settings: s.settings})
		if err != nil && strings.Contains(err.Error(), "shared memory block") {
			return false
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.cluster = cluster
		return true
	})
}

func (s *server) stop() {
	s.t.Helper()
	if err := s.cluster.Stop(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// newOutage is an estate whose queue database is on a server of its own, with a run that stands in the middle. Its
// client waits for what comes through the channel.
func newOutage(t *testing.T, queue string) (*estate, *server, *service.Service, <-chan service.Run) {
	t.Helper()
	e := newEstate(t, "main")
	if queue != "main" {
		e = newEstate(t, "main", "main")
	}
	own := newServer(t, queue)
	e.add(queue, own.cluster.URL(queue))
	e.exec(queue, `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) SELECT i FROM generate_series(1, 20) i`)
	e.gate(queue, "c", "OLD.p_id > 10")
	e.shut(queue, caretakerApp)
	e.deleted(queue, "p", 1, 20)
	s := e.service(oneChild, batches(5, 0))
	result := make(chan service.Run, 1)
	go func() {
		r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: queue})
		if err != nil {
			t.Error(err)
		}
		result <- r
	}()
	e.eventually(queue, `SELECT count(*) FROM c`, "10")
	e.atGate(queue, caretakerApp)
	return e, own, s, result
}

// wantOutage fails the test unless the run says in fit words that its database has gone.
func wantOutage(t *testing.T, r service.Run, database string) {
	t.Helper()
	wantState(t, r, repo.RunFailed)
	if !strings.Contains(r.Error, "on "+database+": unreachable") || strings.Contains(r.Error, "SQLSTATE") || strings.Contains(r.Error, "127.0.0.1") {
		t.Errorf("error %q", r.Error)
	}
	wantCounts(t, r, "processed_records=10 deleted_rows=10")
}

func status(t *testing.T, s *service.Service) service.WorkerStatus {
	t.Helper()
	all, err := s.Status(context.Background(), cleanupWorker)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return all[0]
}

func TestLooseForeignKeysCleanup_QueueDatabaseDiesInTheMiddle(t *testing.T) {
	t.Parallel()
	e, own, s, result := newOutage(t, "main")
	own.stop()
	r := <-result
	wantOutage(t, r, "main")
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker})
	if !errors.Is(err, service.ErrUnreachable) {
		t.Errorf("error %v, want that the database is unreachable", err)
	}
	st := status(t, s)
	if st.Condition != service.ConditionFailing {
		t.Errorf("condition %s: %s", st.Condition, st.ConditionDetail)
	}

	own.start()
	e.sql["main"] = e.connect("main")
	e.lift("main", caretakerApp)
	next := runBatch(t, s, "main")
	wantState(t, next, repo.RunSucceeded)
	wantCounts(t, next, "processed_records=10 deleted_rows=10")
	if next.LeaseEpoch != 2 {
		t.Errorf("epoch %d, want 2", next.LeaseEpoch)
	}
	e.wantQueue("main", "")
	// The end of the first one is recorded once main is there again.
	e.eventually("main", `SELECT state FROM maintenance.runs WHERE id = '`+r.ID+`'`, "failed")
	wantOutage(t, ended(t, s, r.ID), "main")
}

func TestLooseForeignKeysCleanup_QueueDatabaseBesideMainDiesInTheMiddle(t *testing.T) {
	t.Parallel()
	e, own, s, result := newOutage(t, "ci")
	own.stop()
	r := <-result
	wantOutage(t, r, "ci")
	st := status(t, s)
	if st.Condition != service.ConditionFailing || !strings.Contains(st.ConditionDetail, "ci") {
		t.Errorf("condition %s: %s", st.Condition, st.ConditionDetail)
	}
	if st.LastRun == nil || st.LastRun.ID != r.ID || len(st.Leases) != 0 {
		t.Errorf("last run %v, leases %v", st.LastRun, st.Leases)
	}
	if _, err := s.Leases(context.Background(), ""); !errors.Is(err, service.ErrUnreachable) {
		t.Errorf("error %v, want that ci is unreachable", err)
	}
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: cleanupWorker, Database: "ci"})
	if !errors.Is(err, service.ErrUnreachable) {
		t.Errorf("error %v, want that ci is unreachable", err)
	}
	e.want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	// The other database has its turn all the same, and every tick that fails is on record.
	wantState(t, runBatch(t, s, "main"), repo.RunSucceeded)
	fire := time.Unix(25772283*60, 0)
	failed, ours, err := s.RunScheduled(context.Background(), cleanupWorker, fire)
	if err != nil || !ours {
		t.Fatal(ours, err)
	}
	wantState(t, failed, repo.RunFailed)
	if failed.Database != "ci" || failed.Trigger != repo.TriggerSchedule || !strings.Contains(failed.Error, "unreachable") {
		t.Errorf("%+v", failed)
	}

	own.start()
	waitFor(t, "the condition to say that ci answers", func() bool {
		st := status(t, s)
		return st.Condition == service.ConditionIdle && strings.Contains(st.ConditionDetail, "last run on ci failed")
	})
	e.sql["ci"] = e.connect("ci")
	e.lift("ci", caretakerApp)
	next := runBatch(t, s, "ci")
	wantState(t, next, repo.RunSucceeded)
	wantCounts(t, next, "processed_records=10 deleted_rows=10")
	if st = status(t, s); st.Condition != service.ConditionIdle || len(st.Leases) != 2 {
		t.Errorf("condition %s: %s, leases %v", st.Condition, st.ConditionDetail, st.Leases)
	}
}

func TestLooseForeignKeysCleanup_QueueDatabaseCrashesAndRecovers(t *testing.T) {
	t.Parallel()
	e, _, s, result := newOutage(t, "ci")
	// The death of one backend makes the server break all connections and recover.
	pid, err := strconv.Atoi(e.value("ci", `SELECT min(pid) FROM pg_stat_activity WHERE application_name = 'caretaker' AND wait_event = 'PgSleep'`))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantOutage(t, <-result, "ci")
	waitFor(t, "ci to recover", func() bool { return e.open[1].Ping(context.Background()) == nil })
	e.sql["ci"] = e.connect("ci")
	e.lift("ci", caretakerApp)
	next := runBatch(t, s, "ci")
	wantState(t, next, repo.RunSucceeded)
	wantCounts(t, next, "processed_records=10 deleted_rows=10")
	e.wantQueue("ci", "")
}

func TestService_AnswersWhileADatabaseIsSilent(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	e := newEstate(t, "main", "main")
	d, err := repo.Open(context.Background(), "ci", "postgres://nobody@"+silent.Addr().String()+"/x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	e.open = append(e.open, d)
	e.exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.service(oneChild)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	all, err := s.Status(ctx, "")
	if err != nil || ctx.Err() != nil {
		t.Fatal(err, ctx.Err())
	}
	if st := all[0]; st.Condition != service.ConditionFailing || !strings.Contains(st.ConditionDetail, "ci: unreachable") {
		t.Errorf("condition %s: %s", st.Condition, st.ConditionDetail)
	}
	_, err = s.RunBatch(ctx, service.RunRequest{Worker: cleanupWorker, Database: "ci"})
	if !errors.Is(err, service.ErrUnreachable) {
		t.Errorf("error %v, want that ci is unreachable", err)
	}
}

package service_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// newOutage is an estate whose queue database is on a server of its own, with a run that stands in the middle. Its
// client waits for what comes through the channel.
func newOutage(t *testing.T, queue string) (*servicetest.Estate, *servicetest.Server, *service.Service, <-chan service.Run) {
	t.Helper()
	e := servicetest.New(t, "main")
	if queue != "main" {
		e = servicetest.New(t, "main", "main")
	}
	own := servicetest.NewServer(t, queue)
	e.Add(queue, own.Cluster.URL(queue))
	e.Exec(queue, `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) SELECT i FROM generate_series(1, 20) i`)
	e.Gate(queue, "c", "OLD.p_id > 10")
	e.Shut(queue, servicetest.App)
	e.Deleted(queue, "p", 1, 20)
	s := e.Service(servicetest.OneChild, servicetest.Batches(5, 0))
	result := make(chan service.Run, 1)
	go func() {
		r, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: queue})
		if err != nil {
			t.Error(err)
		}
		result <- r
	}()
	e.Eventually(queue, `SELECT count(*) FROM c`, "10")
	e.AtGate(queue, servicetest.App)
	return e, own, s, result
}

// wantOutage fails the test unless the run says in fit words that its database has gone.
func wantOutage(t *testing.T, r service.Run, database string) {
	t.Helper()
	servicetest.WantState(t, r, repo.RunFailed)
	if !strings.Contains(r.Error, "on "+database+": unreachable") || strings.Contains(r.Error, "SQLSTATE") || strings.Contains(r.Error, "127.0.0.1") {
		t.Errorf("error %q", r.Error)
	}
	servicetest.WantCounts(t, r, "processed_records=10 deleted_rows=10")
}

func TestFault_LooseForeignKeysCleanup_QueueDatabaseDiesInTheMiddle(t *testing.T) {
	t.Parallel()
	e, own, s, result := newOutage(t, "main")
	own.Stop()
	r := <-result
	wantOutage(t, r, "main")
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys})
	isError(t, "the database is down", err, service.ErrUnreachable)
	servicetest.WantCondition(t, s, service.ConditionFailing)

	own.Start()
	e.SQL["main"] = e.Connect("main")
	e.Lift("main", servicetest.App)
	next := servicetest.RunBatch(t, s, "main")
	servicetest.WantState(t, next, repo.RunSucceeded)
	servicetest.WantCounts(t, next, "processed_records=10 deleted_rows=10")
	equal(t, "epoch", next.LeaseEpoch, 2)
	e.WantQueue("main", "")
	// The end of the first one is recorded once main is there again.
	e.Eventually("main", `SELECT state FROM maintenance.runs WHERE id = '`+r.ID+`'`, "failed")
	wantOutage(t, servicetest.Ended(t, s, r.ID), "main")
}

func TestFault_LooseForeignKeysCleanup_QueueDatabaseBesideMainDiesInTheMiddle(t *testing.T) {
	t.Parallel()
	e, own, s, result := newOutage(t, "ci")
	own.Stop()
	r := <-result
	wantOutage(t, r, "ci")
	st := servicetest.Status(t, s)
	if st.Condition != service.ConditionFailing || !strings.Contains(st.ConditionDetail, "ci") {
		t.Errorf("condition %s: %s", st.Condition, st.ConditionDetail)
	}
	if st.LastRun == nil || st.LastRun.ID != r.ID || len(st.Leases) != 0 {
		t.Errorf("last run %v, leases %v", st.LastRun, st.Leases)
	}
	if _, err := s.Leases(context.Background(), ""); !errors.Is(err, service.ErrUnreachable) {
		t.Errorf("error %v, want that ci is unreachable", err)
	}
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "ci"})
	isError(t, "the database is down", err, service.ErrUnreachable)
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	// The other database has its turn all the same, and every tick that fails is on record.
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), repo.RunSucceeded)
	fire := time.Unix(25772283*60, 0)
	failed, ours, err := s.RunScheduled(context.Background(), servicetest.LooseForeignKeys, fire)
	if err != nil || !ours {
		t.Fatal(ours, err)
	}
	servicetest.WantState(t, failed, repo.RunFailed)
	if failed.Database != "ci" || failed.Trigger != repo.TriggerSchedule || !strings.Contains(failed.Error, "unreachable") {
		t.Errorf("%+v", failed)
	}

	own.Start()
	devdb.Eventually(t, "the condition to say that ci answers", func() bool {
		st := servicetest.Status(t, s)
		return st.Condition == service.ConditionIdle && strings.Contains(st.ConditionDetail, "last run on ci failed")
	})
	e.SQL["ci"] = e.Connect("ci")
	e.Lift("ci", servicetest.App)
	next := servicetest.RunBatch(t, s, "ci")
	servicetest.WantState(t, next, repo.RunSucceeded)
	servicetest.WantCounts(t, next, "processed_records=10 deleted_rows=10")
	if st = servicetest.Status(t, s); st.Condition != service.ConditionIdle || len(st.Leases) != 2 {
		t.Errorf("condition %s: %s, leases %v", st.Condition, st.ConditionDetail, st.Leases)
	}
}

func TestFault_LooseForeignKeysCleanup_QueueDatabaseCrashesAndRecovers(t *testing.T) {
	t.Parallel()
	e, _, s, result := newOutage(t, "ci")
	// The death of one backend makes the server break all connections and recover.
	pid := servicetest.Must(strconv.Atoi(e.Value("ci", `SELECT min(pid) FROM pg_stat_activity WHERE application_name = 'caretaker' AND wait_event = 'PgSleep'`)))(t)
	servicetest.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	wantOutage(t, <-result, "ci")
	devdb.Eventually(t, "ci to recover", func() bool { return e.Open[1].Ping(context.Background()) == nil })
	e.SQL["ci"] = e.Connect("ci")
	e.Lift("ci", servicetest.App)
	next := servicetest.RunBatch(t, s, "ci")
	servicetest.WantState(t, next, repo.RunSucceeded)
	servicetest.WantCounts(t, next, "processed_records=10 deleted_rows=10")
	e.WantQueue("ci", "")
}

func TestService_AnswersWhileADatabaseIsSilent(t *testing.T) {
	t.Parallel()
	silent := servicetest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = silent.Close() }()
	e := servicetest.New(t, "main", "main")
	d := servicetest.Must(repo.Open(context.Background(), "ci", "postgres://nobody@"+silent.Addr().String()+"/x"))(t)
	t.Cleanup(d.Close)
	e.Open = append(e.Open, d)
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	all, err := s.Status(ctx, "")
	if err != nil || ctx.Err() != nil {
		t.Fatal(err, ctx.Err())
	}
	if st := all[0]; st.Condition != service.ConditionFailing || !strings.Contains(st.ConditionDetail, "ci: unreachable") {
		t.Errorf("condition %s: %s", st.Condition, st.ConditionDetail)
	}
	_, err = s.RunBatch(ctx, service.RunRequest{Worker: servicetest.LooseForeignKeys, Database: "ci"})
	isError(t, "the database is down", err, service.ErrUnreachable)
}

package service_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// newOutage is an estate whose queue database is on a server of its own, with a run that stands in the middle. Its
// client waits for what comes through the channel.
func newOutage(t *testing.T, queue string) (*servicetest.Estate, *servicetest.Server, *service.Service, <-chan run.Run) {
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
	result := make(chan run.Run, 1)
	go func() {
		r, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: queue})
		assert.That(t, err == nil, "%v", err)
		result <- r
	}()
	e.Eventually(queue, `SELECT count(*) FROM c`, "10")
	e.AtGate(queue, servicetest.App)
	return e, own, s, result
}

// wantOutage fails the test unless the run reports in fit words that its database has gone.
func wantOutage(t *testing.T, r run.Run, database string) {
	t.Helper()
	servicetest.WantState(t, r, control.RunFailed)
	if !strings.Contains(r.Error, "on "+database+": unreachable") || strings.Contains(r.Error, "SQLSTATE") || strings.Contains(r.Error, "127.0.0.1") {
		t.Errorf("error %q", r.Error)
	}
	servicetest.WantCounts(t, r, "processed_records=10 deleted_rows=10")
}

func TestFault_LooseForeignKeysCleanup_QueueDatabaseDiesInTheMiddle(t *testing.T) {
	e, own, s, result := newOutage(servicetest.Parallel(t), "main")
	own.Stop()
	r := <-result
	wantOutage(t, r, "main")
	_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys})
	isError(t, "the database is down", err, fault.ErrUnreachable)
	servicetest.WantCondition(t, s, status.ConditionFailing)

	own.Start()
	wantResumed(e, s, "main")
	// The end of the first one is recorded once main is there again.
	e.Eventually("main", `SELECT state FROM maintenance.runs WHERE id = '`+r.ID+`'`, "failed")
	wantOutage(t, servicetest.Ended(t, s, r.ID), "main")
}

func TestFault_LooseForeignKeysCleanup_QueueDatabaseBesideMainDiesInTheMiddle(t *testing.T) {
	e, own, s, result := newOutage(servicetest.Parallel(t), "ci")
	own.Stop()
	r := <-result
	wantOutage(t, r, "ci")
	st := servicetest.WantCondition(t, s, status.ConditionFailing, "ci")
	assert.That(t, st.LastRun != nil && st.LastRun.ID == r.ID && len(st.Leases) == 0, "last run %v, leases %v", st.LastRun, st.Leases)
	_, err := s.Leases(context.Background(), "")
	isError(t, "the leases", err, fault.ErrUnreachable)
	_, err = s.RunBatch(context.Background(), run.Request{Worker: servicetest.LooseForeignKeys, Database: "ci"})
	isError(t, "the database is down", err, fault.ErrUnreachable)
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	// The other database has its turn all the same, and every tick that fails is on record.
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	failed := fired(t, s, servicetest.LooseForeignKeys, minute(25772283))
	servicetest.WantState(t, failed, control.RunFailed)
	assert.That(t, failed.Database == "ci" && failed.Trigger == control.TriggerSchedule && strings.Contains(failed.Error, "unreachable"),
		"%+v", failed)

	own.Start()
	devdb.Eventually(t, "the condition to say that ci answers", func() bool {
		st := servicetest.Status(t, s)
		return st.Condition == status.ConditionIdle && strings.Contains(st.ConditionDetail, "last run on ci failed")
	})
	wantResumed(e, s, "ci")
	st = servicetest.WantCondition(t, s, status.ConditionIdle)
	assert.That(t, len(st.Leases) == 2, "leases %v", st.Leases)
}

func TestFault_Service_AnswersWhileADatabaseIsSilent(t *testing.T) {
	t.Parallel()
	silent := assert.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = silent.Close() }()
	e := servicetest.New(t, "main", "main")
	d := assert.Must(repo.Open(context.Background(), "ci", "postgres://nobody@"+silent.Addr().String()+"/x"))(t)
	t.Cleanup(d.Close)
	e.Open = append(e.Open, d)
	e.Exec("main", `CREATE TABLE c (p_id bigint)`)
	s := e.Service(servicetest.OneChild)
	ctx, cancel := context.WithTimeout(context.Background(), devdb.WaitTimeout)
	defer cancel()
	all, err := s.Status(ctx, "")
	assert.Require(t, err == nil && ctx.Err() == nil, "%v, %v", err, ctx.Err())
	st := all[0]
	assert.That(t, st.Condition == status.ConditionFailing && strings.Contains(st.ConditionDetail, "ci: unreachable"),
		"condition %s: %s", st.Condition, st.ConditionDetail)
	_, err = s.RunBatch(ctx, run.Request{Worker: servicetest.LooseForeignKeys, Database: "ci"})
	isError(t, "the database is down", err, fault.ErrUnreachable)
}

// The address of main is that of a proxy, as a virtual one or a name would be. It leads to the
// primary, by mistake to its standby, and to the primary again. After the primary's death it leads
// to the standby, which then is promoted.
func TestFault_Outage_FailOverToAStandby(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := servicetest.New(t, "main")
	own := servicetest.NewServer(t, "main")
	e.Add("main", own.Cluster.URL("main"))
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) SELECT i FROM generate_series(1, 40) i`)
	e.Deleted("main", "p", 1, 10)
	standby := assert.Must(own.Cluster.Standby(ctx, nil))(t)
	t.Cleanup(func() { _ = standby.Stop(context.Background()) })

	address := newProxy(t)
	r := newReplica(e, "one", address.url(t, e.URLs["main"]), servicetest.OneChild)
	wantRun := func(counts string) {
		t.Helper()
		done := assert.Must(r.RunBatch(ctx, run.Request{Worker: servicetest.LooseForeignKeys}))(t)
		servicetest.WantRun(t, done, control.RunSucceeded, counts)
	}
	wantRun("processed_records=10 deleted_rows=10")
	e.Insert(servicetest.Placeholders(1)...)
	e.Eventually("main", `SELECT state FROM maintenance.river_job`, "completed")

	// Connections that lead to a standby must not stay there.
	before := time.Now()
	address.url(t, standby.URL("main"))
	address.cut()
	r.wantUnreachable(t, before, "read-only")
	e.Deleted("main", "p", 11, 20)
	e.Insert(servicetest.Placeholders(2)...)
	back := time.Now()
	address.url(t, e.URLs["main"])
	r.wantBack(t, back)
	wantRun("processed_records=10 deleted_rows=10")
	e.Eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")

	e.Deleted("main", "p", 21, 30)
	e.Insert(servicetest.Placeholders(3)...)
	e.Eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
	e.Eventually("main", `SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication`, "true")
	r.wantBack(t, time.Now())
	before = time.Now()
	own.Kill()
	r.wantUnreachable(t, before, "database main: unreachable")
	address.url(t, standby.URL("main"))
	r.wantUnreachable(t, before, "read-only")
	promoted := time.Now()
	e.URLs["main"] = standby.URL("main")
	e.SQL["main"] = e.Connect("main")
	e.Exec("main", `SELECT pg_promote()`)
	r.wantBack(t, promoted)
	wantRun("processed_records=10 deleted_rows=10")
	e.Want("main", `SELECT count(*) || ' ' || min(p_id) FROM c`, "10 31")
	e.WantQueue("main", "")
	e.Insert(servicetest.Placeholders(4)...)
	e.Eventually("main", `SELECT string_agg(DISTINCT state::text, ' ') FROM maintenance.river_job`, "completed")
}

// wantExplained waits until a replica reports that main is unreachable, and why.
func (r *replica) wantExplained(t *testing.T, words string) {
	t.Helper()
	message := ""
	devdb.Eventually(t, "the status to say "+words, func() bool {
		all := assert.Must(r.Status(context.Background(), servicetest.LooseForeignKeys))(t)
		if f := all[0].Failing; f != nil && f.Class == status.FailureUnreachable {
			message = f.Message
		}
		return message == "database main: unreachable"+words
	})
}

func TestFault_Outage_NoConnectionIsLeftOnTheServer(t *testing.T) {
	t.Parallel()
	const connections = 20
	ctx := context.Background()
	e := servicetest.New(t, "main")
	own := servicetest.NewServer(t, "main", map[string]string{"max_connections": strconv.Itoa(connections), "superuser_reserved_connections": "0"})
	e.Add("main", own.Cluster.URL("main"))
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
	r := newReplica(e, "one", e.URLs["main"], servicetest.OneChild, servicetest.LooseForeignKeys)
	r.wantBack(t, time.Now())
	// All but the test's own connection.
	var hogs []*pgx.Conn
	devdb.Eventually(t, "all connections to be taken", func() bool {
		e.Exec("main", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'caretaker'`) //nolint:contextcheck // exec has its own
		for {
			hog, err := pgx.Connect(ctx, e.URLs["main"]+"&application_name=hog")
			if err != nil {
				return len(hogs) == connections-1
			}
			hogs = append(hogs, hog)
		}
	})
	r.wantExplained(t, " (53300 too_many_connections): no connection is free: check max_connections, and the CONNECTION LIMIT of the role and database")
	released := time.Now()
	for _, hog := range hogs {
		_ = hog.Close(ctx)
	}
	r.wantBack(t, released)
	wantIdle(e, r)
}

func TestFault_Outage_PoolIsFull(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := servicetest.New(t, "main", "main")
	e.Exec("main", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint)`)
	r := newReplica(e, "one", e.URLs["main"], servicetest.OneChild, servicetest.LooseForeignKeys)
	r.wantBack(t, time.Now())
	var taken []interface{ Release() }
	for range r.main.Jobs.Pool().Config().MaxConns {
		conn := assert.Must(r.main.Jobs.Pool().Acquire(ctx))(t)
		taken = append(taken, conn)
	}
	r.wantExplained(t, ": all connections of the pool are in use: retry, or raise pool_max_conns in the URL")
	e.Insert(servicetest.Placeholders(1)...)
	released := time.Now()
	for _, conn := range taken {
		conn.Release()
	}
	r.wantBack(t, released)
	e.Eventually("main", `SELECT state FROM maintenance.river_job`, "completed")
	wantIdle(e, r)
	e.Eventually("main", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`, "0")
}

// wantResumed fails the test unless a run on a database that is there again does what the first one has left.
func wantResumed(e *servicetest.Estate, s *service.Service, database string) {
	e.T.Helper()
	e.SQL[database] = e.Connect(database)
	e.Lift(database, servicetest.App)
	next := servicetest.RunBatch(e.T, s, database)
	servicetest.WantRun(e.T, next, control.RunSucceeded, "processed_records=10 deleted_rows=10")
	assert.Equal(e.T, next.LeaseEpoch, 2, "epoch")
	e.WantQueue(database, "")
}

func TestFault_Outage_RunOnAnotherDatabaseGoesOnWithoutMainAndIsRecordedLater(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main")
	own := servicetest.NewServer(t, "main")
	e.Add("main", own.Cluster.URL("main"))
	e.Add("ci", servicetest.Databases.Clone(t, servicetest.Migrated("main")))
	e.Exec("ci", `CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint); INSERT INTO c (p_id) SELECT i FROM generate_series(1, 20) i`)
	e.Gate("ci", "c", "OLD.p_id > 10")
	e.Shut("ci", servicetest.App)
	e.Deleted("ci", "p", 1, 20)
	s := e.Service(servicetest.OneChild, servicetest.Batches(5, 0))
	r := servicetest.Begin(t, s, "ci")
	e.Eventually("ci", `SELECT count(*) FROM c`, "10")
	// The first query when main is back takes the run for dead.
	e.Exec("main", `UPDATE maintenance.runs SET heartbeat_ttl = '0'`)
	own.Stop()
	st := servicetest.Status(t, s)
	assert.That(t, st.Condition == status.ConditionRunning && st.CurrentRun != nil && st.CurrentRun.ID == r.ID && st.Failing == nil,
		"condition %s: %s", st.Condition, st.ConditionDetail)
	e.Lift("ci", servicetest.App)
	e.Eventually("ci", `SELECT count(*) FROM c`, "0")
	devdb.Eventually(t, "the run to end", func() bool { return servicetest.Status(t, s).Condition != status.ConditionRunning })
	wantFailing(t, servicetest.Status(t, s), status.FailureUnreachable, "main", "database main: unreachable")
	own.Start()
	e.SQL["main"] = e.Connect("main")
	other := e.Service(servicetest.OneChild)
	seen := assert.Must(other.Run(context.Background(), r.ID))(t)
	assert.That(t, !seen.FinishedAt.IsZero(), "%+v", seen)
	e.Eventually("main", `SELECT concat_ws(' ', state, reason, error, counts ->> 'deleted_rows') FROM maintenance.runs`, "succeeded   20")
	devdb.Eventually(t, "the worker to be idle", func() bool { return servicetest.Status(t, s).Condition == status.ConditionIdle })
}

// wantIdle waits until every worker of the replicas reports that it has nothing to complain of,
// with a run running or not.
func wantIdle(e *servicetest.Estate, replicas ...*replica) {
	e.T.Helper()
	for _, r := range replicas {
		var failing []string
		e.T.Cleanup(func() {
			if len(failing) > 0 {
				e.T.Logf("failing: %q", failing)
			}
		})
		devdb.Eventually(e.T, "no worker to be failing", func() bool {
			all := assert.Must(r.Status(context.Background(), ""))(e.T)
			failing = nil
			for _, st := range all {
				if st.Failing != nil {
					failing = append(failing, fmt.Sprintf("%s: %+v", st.Worker, *st.Failing))
				}
			}
			return len(failing) == 0
		})
	}
}

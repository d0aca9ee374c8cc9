package run_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

func TestFault_Load_LateReplicaEndsTheRunEarlyAndTheNextGoesOn(t *testing.T) {
	replica := standby(servicetest.Parallel(t))
	e := servicetest.NewLoaded(t, "main", 100)
	lag := load.Config{MaxReplicaLag: 700 * time.Millisecond, Timeout: short}
	s := e.Service(servicetest.OneChild, servicetest.LoadLimits(lag))
	lag.IgnoredReplicas = []string{"standby"}
	careless := e.Service(servicetest.OneChild, servicetest.LoadLimits(lag))
	assert.Must(replica.Exec(context.Background(), `SELECT pg_wal_replay_pause()`))(t)
	e.Exec("main", `CREATE TABLE something ()`)
	servicetest.WaitThrottled(t, s, "lag of replica standby of main: ")
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantEarly(t, r, "THROTTLED: lag of replica standby of main: ")
	assert.That(t, strings.Contains(r.Reason, "over load.max_replica_lag = 700ms"), "reason %q", r.Reason)
	servicetest.WantCondition(t, s, status.ConditionThrottled, "load.max_replica_lag")
	// The other does the remaining work: it may be as late as it likes.
	servicetest.WantCondition(t, careless, status.ConditionIdle, "the last run ended early (THROTTLED: ")
	wantEverything(t, servicetest.RunBatch(t, careless, "main"))
	servicetest.WantCondition(t, careless, status.ConditionIdle)

	e.Deleted("main", "p", 1, 10)
	assert.Must(replica.Exec(context.Background(), `SELECT pg_wal_replay_resume()`))(t)
	spared(t, s)
	wantEverything(t, servicetest.RunBatch(t, s, "main"))
}

func TestFault_Load_LockQueueThatLastsEndsTheRunWithoutAStepInFrontOfIt(t *testing.T) {
	e := servicetest.NewLoaded(servicetest.Parallel(t), "main", 10)
	const onC = "THROTTLED: lock wait on public.c in main: "
	s := e.Service(servicetest.OneChild, servicetest.LoadLimits(load.Config{MaxLockWait: 100 * time.Millisecond, Timeout: short}))
	dissolve := e.LockQueue("c", "1 s")
	r := servicetest.RunBatch(t, s, "main")
	servicetest.WantEarly(t, r, onC)
	servicetest.WantCounts(t, r, "")
	e.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE consume_after <= now() AND cleanup_attempts = 0`, "10")
	// A pause far over a limit ends with the run's time, for any setting.
	servicetest.WantEarly(t, servicetest.RunBatch(t, e.Service(servicetest.OneChild,
		servicetest.With(func(c *lfk.Config) { c.MaxRuntime = 3 * time.Second }),
		servicetest.LoadLimits(load.Config{MaxLockWait: 10 * time.Millisecond, Timeout: time.Hour})), "main"), onC)
	dissolve()
	e.Want("main", `SELECT count(*) FROM c`, "30")

	// The queue of another table slows no run down.
	e.Exec("main", `CREATE TABLE d ()`)
	dissolve = e.LockQueue("d", "100 ms")
	wantEverything(t, servicetest.RunBatch(t, e.Service(servicetest.OneChild,
		servicetest.LoadLimits(load.Config{MaxLockWait: 10 * time.Millisecond, Timeout: 1})), "main"))
	dissolve()

	// That of a partition counts for its table.
	e.Exec("main", `DROP TABLE c; CREATE TABLE c (id bigserial, p_id bigint) PARTITION BY RANGE (p_id);
		CREATE TABLE c_1 PARTITION OF c FOR VALUES FROM (0) TO (1000); INSERT INTO c (p_id) SELECT generate_series(1, 10)`)
	e.Deleted("main", "p", 1, 10)
	defer e.LockQueue("c_1", "1 s")()
	servicetest.WantEarly(t, servicetest.RunBatch(t, s, "main"), "THROTTLED: lock wait on public.c_1 in main: ")
}

func TestFault_Load_RestIsInterrupted(t *testing.T) {
	for name, stop := range map[string]func(*service.Service, run.Run) error{
		"CANCELLED": func(s *service.Service, r run.Run) error {
			_, err := s.CancelRun(context.Background(), r.ID, "")
			return err
		},
		"PAUSED": func(s *service.Service, _ run.Run) error {
			_, err := s.PauseWorker(context.Background(), fault.AllWorkers, "r", "alice", 0)
			return err
		},
		"SHUTDOWN": func(s *service.Service, _ run.Run) error { return s.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			e := servicetest.NewLoaded(servicetest.Parallel(t), "main", 10)
			s := e.Service(servicetest.OneChild, servicetest.LoadLimits(load.Config{MaxLockWait: 10 * time.Millisecond, Timeout: time.Hour}))
			dissolve := e.LockQueue("c", "1 s")
			r := servicetest.Begin(t, s, "main")
			servicetest.WaitThrottled(t, s, "public.c")
			assert.NoError(t, stop(s, r))
			r = servicetest.Ended(t, s, r.ID)
			servicetest.WantState(t, r, control.RunCancelled)
			assert.That(t, r.Reason == name, "reason %q", r.Reason)
			dissolve()
			e.Want("main", `SELECT count(*) FROM c`, "30")
		})
	}
}

func TestFault_Load_RunOfAMainThatIsTooBusyToBeLookedAtSlowsDown(t *testing.T) {
	e := servicetest.NewLoaded(servicetest.Parallel(t), "main", 10)
	e.Exec("main", `CREATE FUNCTION public.pg_current_wal_flush_lsn() RETURNS pg_lsn LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.pg_current_wal_flush_lsn() FROM pg_sleep(3) $$`)
	e.Exec("main", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$`)
	e.Open = []*repo.Database{e.As("limited")}
	s := e.Service(servicetest.OneChild, servicetest.LoadLimits(load.Config{MaxWALRate: 1 << 50, Timeout: short}))
	servicetest.WaitThrottled(t, s, "main is too busy to report its load")
	wantEverything(t, servicetest.RunBatch(t, s, "main"))
}

func TestFault_Load_RunOnAMainThatDoesNotTakeItsHeartbeatsEnds(t *testing.T) {
	e := servicetest.NewLoaded(servicetest.Parallel(t), "main", 10)
	e.Exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE query_canceled; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON maintenance.runs FOR EACH ROW WHEN (NEW.state = 'running') EXECUTE FUNCTION refuse()`)
	s := e.Service(servicetest.OneChild, servicetest.LoadLimits(load.Config{MaxLockWait: 10 * time.Millisecond, Timeout: time.Hour}))
	defer e.LockQueue("c", "1 s")()
	servicetest.WantEarly(t, servicetest.RunBatch(t, s, "main"), "THROTTLED: main has not accepted the run's "+
		"heartbeats for ")
}

// A limit that cannot be measured slows no run down, and is logged once.
func TestFault_Load_WhatCannotBeSeenStopsNobody(t *testing.T) {
	e := servicetest.NewLoaded(servicetest.Parallel(t), "main", 10)
	e.Exec("main", `REVOKE EXECUTE ON FUNCTION pg_current_wal_flush_lsn() FROM PUBLIC`)
	e.Open = []*repo.Database{e.As("limited")}
	book := &servicetest.Buffer{}
	s := e.Service(servicetest.OneChild, servicetest.LoadLimits(load.Config{MaxReplicaLag: 1, MaxWALRate: 1, MaxLockWait: 1}), book.Keep)
	wantEverything(t, servicetest.RunBatch(t, s, "main"))
	e.Deleted("main", "p", 1, 10)
	// The load is read once a second.
	e.Eventually("main", `SELECT clock_timestamp() > '`+e.Value("main", `SELECT clock_timestamp()`)+`'::timestamptz + interval '1100 ms'`, "true")
	wantEverything(t, servicetest.RunBatch(t, s, "main"))
	said := book.Lines("load partly unavailable")
	assert.That(t, len(said) == 1 && strings.Contains(said[0], "42501"), "logged %v", said)
}

func TestFault_Load_RoleWithoutPrivilegesIsToldWhatItMisses(t *testing.T) {
	standby(servicetest.Parallel(t))
	e := servicetest.NewLoaded(t, "main", 10)
	e.Open = []*repo.Database{e.As("limited")}
	book := &servicetest.Buffer{}
	s := e.Service(servicetest.OneChild, servicetest.LoadLimits(load.Config{MaxReplicaLag: 1, MaxLockWait: 100 * time.Millisecond, Timeout: short}), book.Keep)
	wantEverything(t, servicetest.RunBatch(t, s, "main"))
	said := book.Lines("grant pg_monitor to the role of caretaker")
	assert.That(t, len(said) == 1, "logged %v", said)
	// Locks it sees all the same.
	e.Deleted("main", "p", 1, 10)
	e.Exec("main", `INSERT INTO c (p_id) VALUES (1)`)
	defer e.LockQueue("c", "1 s")()
	servicetest.WantEarly(t, servicetest.RunBatch(t, s, "main"), "THROTTLED: lock wait on public.c in main: ")
}

func TestFault_Load_AllRunsAndJobsOfAProcessShareOneLookASecond(t *testing.T) {
	e := servicetest.NewLoaded(servicetest.Parallel(t), "main", 400)
	e.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	e.Exec("main", `SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)`)
	s := e.Service(servicetest.OneChild, e.WithQueue, servicetest.LoadLimits(load.Config{MaxReplicaLag: time.Hour, MaxWALRate: 1 << 50, MaxLockWait: time.Hour}))
	began := time.Now()
	wantEverything(t, servicetest.RunBatch(t, s, "main"))
	for range 100 {
		e.Holds(s, jobqueue.DestroyGroup{GroupID: 4711})
	}
	looks := e.Value("main", `SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database() WHERE query LIKE '%pg_stat_replication r%' AND query NOT LIKE '%pg_stat_statements%'`)
	most := int(time.Since(began)/time.Second) + 1
	n, err := strconv.Atoi(looks)
	assert.That(t, err == nil && n >= 1 && n <= most, "%s looks, want 1 to %d", looks, most)
	t.Log(looks, "looks of", e.Value("main", `SELECT round(max(mean_exec_time)::numeric, 2) || ' ms, planned in ' || round(max(mean_plan_time)::numeric, 2) FROM pg_stat_statements WHERE query LIKE '%pg_stat_replication r%'`))
}

func TestFault_Load_LockQueueOnAWorkersOwnTableEndsItsRunEarlyAndStatusSaysSoAsLongAsItLasts(t *testing.T) {
	e := servicetest.NewPlaceholders(servicetest.Parallel(t))
	e.Detail(1, 0, "NULL")
	limits := servicetest.LoadLimits(load.Config{MaxLockWait: 100 * time.Millisecond, Timeout: short})
	s, other := e.Service(servicetest.OneChild, e.WithQueue, limits), e.Service(servicetest.OneChild, e.WithQueue, limits)
	dissolve := e.LockQueue("import_placeholder_user_details", "1 s")
	r := servicetest.RunPlaceholders(t, s, false)
	servicetest.WantEarly(t, r, "THROTTLED: lock wait on public.import_placeholder_user_details in main: ")
	servicetest.WantCounts(t, r, "")
	for _, replica := range []*service.Service{s, other} {
		st := servicetest.StatusOf(t, replica, servicetest.PlaceholderUsers)
		assert.That(t, st.Condition == status.ConditionThrottled, "%+v", st)
	}
	// A run that went on now would meet the same queue.
	assert.NoError(t, other.ResumeRuns(t.Context()))
	e.Want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	dissolve()
	devdb.Eventually(t, "the run to be gone on with", func() bool {
		assert.NoError(t, other.ResumeRuns(t.Context()))
		return e.Value("main", `SELECT deletion_attempts FROM import_placeholder_user_details`) == "1"
	})
}

// standby is a standby of that cluster, with a connection to it.
func standby(t *testing.T) *pgx.Conn {
	t.Helper()
	s := assert.Must(servicetest.Loaded.Cluster(t).Standby(context.Background(), nil))(t)
	t.Cleanup(func() {
		assert.NoError(t, s.Stop(context.Background()))
	})
	conn := servicetest.Connect(t, s.URL("postgres"))
	return conn
}

// spared waits until no load limit is exceeded.
func spared(t *testing.T, s *service.Service) {
	t.Helper()
	devdb.Eventually(t, "the load to be below its limits", func() bool { return servicetest.Status(t, s).Condition == status.ConditionIdle })
}

// wantEverything fails the test unless the run did everything.
func wantEverything(t *testing.T, r run.Run) {
	t.Helper()
	servicetest.WantState(t, r, control.RunSucceeded)
	assert.That(t, !r.OverLimit && r.Reason == "", "over_limit %t, reason %q", r.OverLimit, r.Reason)
}

const short = 2 * time.Second

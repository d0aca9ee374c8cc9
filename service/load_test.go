package service_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

func TestLoad_LateReplicaEndsTheRunEarlyAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	replica := standby(t)
	e := loadedEstate(t, "main", 100)
	lag := service.LoadConfig{MaxReplicaLag: 700 * time.Millisecond, Patience: short}
	s := e.service(oneChild, loadLimits(lag))
	lag.IgnoredReplicas = []string{"standby"}
	careless := e.service(oneChild, loadLimits(lag))
	if _, err := replica.Exec(context.Background(), `SELECT pg_wal_replay_pause()`); err != nil {
		t.Fatal(err)
	}
	e.exec("main", `CREATE TABLE something ()`)
	throttled(t, s, "replica standby of main is late: ")
	r := runBatch(t, s, "main")
	wantEarly(t, r, "THROTTLED: replica standby of main is late: ")
	if !strings.Contains(r.Reason, "over load.max_replica_lag = 700ms") {
		t.Errorf("reason %q", r.Reason)
	}
	wantCondition(t, s, service.ConditionThrottled, "load.max_replica_lag")
	// What the one has left, the other does: it may be as late as it likes.
	wantCondition(t, careless, service.ConditionIdle, "the last run ended early, the next one goes on: THROTTLED: ")
	wantEverything(t, runBatch(t, careless, "main"))
	wantCondition(t, careless, service.ConditionIdle)

	e.deleted("main", "p", 1, 10)
	if _, err := replica.Exec(context.Background(), `SELECT pg_wal_replay_resume()`); err != nil {
		t.Fatal(err)
	}
	spared(t, s)
	wantEverything(t, runBatch(t, s, "main"))
}

func TestLoad_RunRestsWhileALockQueueLastsAndThenGoesOn(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 40)
	book := &logBook{}
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxLockWait: 300 * time.Millisecond, Patience: patience}), book.keepAll)
	dissolve := e.lockQueue("c", "2 s")
	r := begin(t, s, "main")
	throttled(t, s, "somebody waits for a lock on public.c of main: ")
	throttled(t, e.service(oneChild), "somebody waits for a lock on public.c of main: ")
	dissolve()
	r = ended(t, s, r.ID)
	wantEverything(t, r)
	wantCounts(t, r, "processed_records=40 deleted_rows=120")
	if finished := book.lines("run finished"); len(finished) != 1 || !strings.Contains(finished[0], "rested_seconds=") {
		t.Errorf("logged %v", finished)
	}
}

func TestLoad_LockQueueOfAnotherTableSlowsNobodyDown(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	e.exec("main", `CREATE TABLE d ()`)
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxLockWait: 10 * time.Millisecond, Patience: 1}))
	defer e.lockQueue("d", "100 ms")()
	wantEverything(t, runBatch(t, s, "main"))
}

func TestLoad_LockQueueThatLastsEndsTheRunWithoutAStepInFrontOfIt(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxLockWait: 100 * time.Millisecond, Patience: short}))
	defer e.lockQueue("c", "1 s")()
	r := runBatch(t, s, "main")
	wantEarly(t, r, "THROTTLED: somebody waits for a lock on public.c of main: ")
	wantCounts(t, r, "")
	e.want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE consume_after <= now() AND cleanup_attempts = 0`, "10")
}

func TestLoad_PartitionInALockQueueCountsForItsTable(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	e.exec("main", `DROP TABLE c; CREATE TABLE c (id bigserial, p_id bigint) PARTITION BY RANGE (p_id);
		CREATE TABLE c_1 PARTITION OF c FOR VALUES FROM (0) TO (1000); INSERT INTO c (p_id) SELECT generate_series(1, 10)`)
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxLockWait: 100 * time.Millisecond, Patience: short}))
	defer e.lockQueue("c_1", "1 s")()
	wantEarly(t, runBatch(t, s, "main"), "THROTTLED: somebody waits for a lock on public.c_1 of main: ")
}

func TestLoad_ArchiveThatFallsBehind(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxArchiveBacklog: 1 << 20, Patience: short}))
	wantEverything(t, runBatch(t, s, "main"))
	full := filepath.Join(loaded.Cluster(t).Dir(), "data", archiveFull)
	if err := os.WriteFile(full, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(full) }()
	e.deleted("main", "p", 1, 10)
	for i := range 3 {
		e.exec("main", `CREATE TABLE w`+string(rune('a'+i))+` ()`)
		e.exec("main", `SELECT pg_switch_wal()`)
	}
	throttled(t, s, "write-ahead log of main that waits to be archived: ")
	wantEarly(t, runBatch(t, s, "main"), "THROTTLED: write-ahead log of main that waits to be archived: ")
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the archive", func() bool {
		e.exec("main", `SELECT pg_switch_wal()`) // wakes the archiver
		return runBatch(t, s, "main").Reason == ""
	})
	e.wantQueue("main", "")
}

func TestLoad_WriteAheadLogThatGrowsFast(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxWALRate: 64 << 10, Patience: short}))
	stop := make(chan struct{})
	var writer sync.WaitGroup
	conn := e.connect("main")
	writer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := conn.Exec(context.Background(), `SELECT pg_logical_emit_message(false, '', repeat('x', 100000)), pg_sleep(0.05)`); err != nil {
				t.Error(err)
				return
			}
		}
	})
	throttled(t, s, "write-ahead log of main a second: ")
	wantEarly(t, runBatch(t, s, "main"), "THROTTLED: write-ahead log of main a second: ")
	close(stop)
	writer.Wait()
}

func TestLoad_AutovacuumThatLasts(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	e.exec("main", `CREATE TABLE d (p_id bigint)`)
	s := e.service(oneChild+"d:\n  - {table: q, column: p_id, on_delete: async_delete}\n", loadLimits(service.LoadConfig{MaxAutovacuum: 300 * time.Millisecond, Patience: short}))
	e.exec("main", `ALTER TABLE c SET (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_threshold = 1000)`)
	e.exec("main", `INSERT INTO c (p_id) SELECT 100 + i FROM generate_series(1, 50000) i`)
	e.exec("main", `DELETE FROM c WHERE p_id > 5000`)
	e.eventually("main", `SELECT clock_timestamp() - a.xact_start > interval '1300 ms' FROM pg_stat_progress_vacuum p JOIN pg_stat_activity a USING (pid) WHERE p.relid = 'c'::regclass
		UNION ALL SELECT false LIMIT 1`, "true")
	r := runBatch(t, s, "main")
	wantEarly(t, r, "THROTTLED: autovacuum of public.c of main: ")
	wantCounts(t, r, "")
}

func TestLoad_RestIsInterrupted(t *testing.T) {
	for name, stop := range map[string]func(*service.Service, service.Run) error{
		"CANCELLED": func(s *service.Service, r service.Run) error {
			_, err := s.CancelRun(context.Background(), r.ID, "")
			return err
		},
		"PAUSED": func(s *service.Service, _ service.Run) error {
			_, err := s.PauseWorker(context.Background(), service.AllWorkers, "r", "alice", 0)
			return err
		},
		"SHUTDOWN": func(s *service.Service, _ service.Run) error { return s.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := loadedEstate(t, "main", 10)
			s := e.service(oneChild, loadLimits(service.LoadConfig{MaxLockWait: 10 * time.Millisecond, Patience: time.Hour}))
			dissolve := e.lockQueue("c", "1 s")
			r := begin(t, s, "main")
			throttled(t, s, "public.c")
			if err := stop(s, r); err != nil {
				t.Fatal(err)
			}
			r = ended(t, s, r.ID)
			wantState(t, r, repo.RunCancelled)
			if r.Reason != name {
				t.Errorf("reason %q", r.Reason)
			}
			dissolve()
			e.want("main", `SELECT count(*) FROM c`, "30")
		})
	}
}

func TestLoad_RestFarOverALimitEndsWithTheRunsTimeAndChangesNothing(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	s := e.service(oneChild, with(func(c *loosefk.Config) { c.MaxRuntime = 3 * time.Second }),
		loadLimits(service.LoadConfig{MaxLockWait: 10 * time.Millisecond, Patience: time.Hour}))
	dissolve := e.lockQueue("c", "1 s")
	wantEarly(t, runBatch(t, s, "main"), "THROTTLED: somebody waits for a lock on public.c of main: ")
	dissolve()
	e.want("main", `SELECT count(*) FROM c`, "30")
}

func TestLoad_RunOfAMainThatIsTooBusyToBeLookedAtSlowsDown(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	e.exec("main", `CREATE FUNCTION public.pg_current_wal_flush_lsn() RETURNS pg_lsn LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.pg_current_wal_flush_lsn() FROM pg_sleep(3) $$`)
	e.exec("main", `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$`)
	e.open = []*repo.Database{e.as("limited")}
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxWALRate: 1 << 50, Patience: short}))
	throttled(t, s, "main is too busy for its load to be looked at")
	wantEverything(t, runBatch(t, s, "main"))
}

func TestLoad_RunOnAMainThatDoesNotTakeItsHeartbeatsEnds(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	e.exec("main", `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE query_canceled; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON maintenance.runs FOR EACH ROW WHEN (NEW.state = 'running') EXECUTE FUNCTION refuse()`)
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxLockWait: 10 * time.Millisecond, Patience: time.Hour}))
	defer e.lockQueue("c", "1 s")()
	wantEarly(t, runBatch(t, s, "main"), "THROTTLED: main has not taken the run's heartbeats for ")
}

// What cannot be seen slows nobody down, and is said once.
func TestLoad_WhatCannotBeSeenStopsNobody(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 10)
	e.exec("main", `REVOKE EXECUTE ON FUNCTION pg_current_wal_flush_lsn() FROM PUBLIC`)
	e.open = []*repo.Database{e.as("limited")}
	book := &logBook{}
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxReplicaLag: 1, MaxWALRate: 1, MaxArchiveBacklog: 1, MaxLockWait: 1, MaxAutovacuum: 1}), book.keep)
	wantEverything(t, runBatch(t, s, "main"))
	e.deleted("main", "p", 1, 10)
	time.Sleep(1100 * time.Millisecond) // the next look
	wantEverything(t, runBatch(t, s, "main"))
	if said := book.lines("load not seen in full"); len(said) != 1 || !strings.Contains(said[0], "42501") {
		t.Errorf("logged %v", said)
	}
}

func TestLoad_RoleWithoutPrivilegesIsToldWhatItMisses(t *testing.T) {
	t.Parallel()
	standby(t)
	e := loadedEstate(t, "main", 10)
	e.open = []*repo.Database{e.as("limited")}
	book := &logBook{}
	s := e.service(oneChild, loadLimits(service.LoadConfig{MaxReplicaLag: 1, MaxLockWait: 100 * time.Millisecond, Patience: short}), book.keep)
	wantEverything(t, runBatch(t, s, "main"))
	if said := book.lines("grant pg_monitor to the role of caretaker"); len(said) != 1 {
		t.Errorf("logged %v", said)
	}
	// Locks it sees all the same.
	e.deleted("main", "p", 1, 10)
	e.exec("main", `INSERT INTO c (p_id) VALUES (1)`)
	defer e.lockQueue("c", "1 s")()
	wantEarly(t, runBatch(t, s, "main"), "THROTTLED: somebody waits for a lock on public.c of main: ")
}

func TestLoad_AllRunsAndJobsOfAProcessShareOneLookASecond(t *testing.T) {
	t.Parallel()
	e := loadedEstate(t, "main", 400)
	e.exec("main", `CREATE EXTENSION pg_stat_statements`)
	e.exec("main", `SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)`)
	s := e.service(oneChild, e.withQueue, loadLimits(service.LoadConfig{MaxReplicaLag: time.Hour, MaxWALRate: 1 << 50, MaxArchiveBacklog: 1 << 50, MaxLockWait: time.Hour, MaxAutovacuum: time.Hour}))
	began := time.Now()
	wantEverything(t, runBatch(t, s, "main"))
	for range 100 {
		e.holds(s, repo.DestroyGroup{GroupID: 4711})
	}
	looks := e.value("main", `SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database() WHERE query LIKE '%pg_stat_archiver%' AND query NOT LIKE '%pg_stat_statements%'`)
	most := int(time.Since(began)/time.Second) + 1
	if n, err := strconv.Atoi(looks); err != nil || n < 1 || n > most {
		t.Errorf("%s looks, want 1 to %d", looks, most)
	}
	t.Log(looks, "looks of", e.value("main", `SELECT round(max(mean_exec_time)::numeric, 2) || ' ms, planned in ' || round(max(mean_plan_time)::numeric, 2) FROM pg_stat_statements WHERE query LIKE '%pg_stat_archiver%'`))
}

func TestLoad_LockQueueOnAWorkersOwnTableEndsItsRunEarlyAndStatusSaysSoAsLongAsItLasts(t *testing.T) {
	t.Parallel()
	e := placeholderEstate(t)
	e.detail(1, 0, "NULL")
	limits := loadLimits(service.LoadConfig{MaxLockWait: 100 * time.Millisecond, Patience: short})
	s, other := e.service(oneChild, e.withQueue, limits), e.service(oneChild, e.withQueue, limits)
	dissolve := e.lockQueue("import_placeholder_user_details", "1 s")
	r := runPlaceholders(t, s, false)
	wantEarly(t, r, "THROTTLED: somebody waits for a lock on public.import_placeholder_user_details of main: ")
	wantCounts(t, r, "")
	for _, replica := range []*service.Service{s, other} {
		st, err := replica.Status(t.Context(), placeholderWorker)
		if err != nil || st[0].Condition != service.ConditionThrottled {
			t.Errorf("%+v, %v", st, err)
		}
	}
	// A run that went on now would meet the same queue.
	if err := other.ResumeRuns(t.Context()); err != nil {
		t.Error(err)
	}
	e.want("main", `SELECT count(*) FROM maintenance.runs`, "1")
	dissolve()
	waitFor(t, "the run to be gone on with", func() bool {
		if err := other.ResumeRuns(t.Context()); err != nil {
			t.Error(err)
		}
		return e.value("main", `SELECT deletion_attempts FROM import_placeholder_user_details`) == "1"
	})
}

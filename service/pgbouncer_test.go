package service_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/devdb/oracle"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// storm ends connections to main, but for the test's own, until it is stopped. It abates, so that a machine which needs
// longer than that for a run gets through as well.
func storm(e *servicetest.Estate) (stop func()) {
	e.T.Helper()
	conn := e.Connect("main")
	ctx, cancel := context.WithCancel(e.T.Context())
	done, every := make(chan struct{}), 30*time.Millisecond
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, _ = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = 'caretaker' ORDER BY random() LIMIT 1`)
			select {
			case <-ctx.Done():
			case <-time.After(every):
				every += every / 50
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func TestFault_PgBouncer_PipelineRunsToItsEnd(t *testing.T) {
	t.Parallel()
	e, _ := servicetest.Pooled(t, 1, map[string]string{"main": servicetest.Databases.Clone(t, servicetest.Migrated("all"))})
	p := &pipelineRun{Estate: e, oracle: oracle.Generate(3, 1)}
	p.load()
	p.Gate("main", "notes")
	p.replace()
	p.killed(func(o *servicetest.Order) { o.Worker, o.Database = servicetest.GhostUsers, "" })
	p.toTheEnd()
	p.compare()
}

func TestFault_PgBouncer_MigrationsAndLooseForeignKeysAreInstalledThroughIt(t *testing.T) {
	t.Parallel()
	// One connection has the lock, the other one does the work.
	e, _ := servicetest.Pooled(t, 2, map[string]string{"main": servicetest.Databases.Clone(t, devdb.Template{Name: "bare"})})
	installAndClean(e)
}

func TestFault_PgBouncer_EveryWorkerAndItsJobsRunThroughIt(t *testing.T) {
	// With one connection nothing works that needs a second one while it holds a first.
	e, _ := servicetest.Pooled(servicetest.Parallel(t), 1, map[string]string{
		"main": servicetest.Databases.Clone(t, servicetest.Migrated("main")), "ci": servicetest.Databases.Clone(t, servicetest.Migrated("ci")), "sec": servicetest.Databases.Clone(t, servicetest.Migrated("sec")),
	})
	everyWork(&servicetest.Mirrored{Estate: e, Log: &servicetest.Buffer{}})
}

func TestFault_PgBouncer_APausedProcessThatWakesBeyondItsLeaseWritesNothing(t *testing.T) {
	t.Parallel()
	e, _ := servicetest.Pooled(t, 4, map[string]string{"main": servicetest.Databases.Clone(t, servicetest.Migrated("main")), "ci": servicetest.Databases.Clone(t, servicetest.Migrated("ci"))})
	e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 20)`)
	e.Exec("ci", `CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(1, 20)`)
	e.Deleted("main", "p", 1, 20)
	e.Gate("main", "c")
	e.Shut("main", "sleeper")
	definitions := "d: [{table: p, column: p_id, on_delete: async_delete}]\n" + servicetest.OneChild
	sleeper := e.Start("sleeper", definitions, servicetest.ShortRun)
	e.AtGate("main", "sleeper")
	sleeper.Signal(syscall.SIGSTOP)
	s := e.Service(definitions)
	r := e.AfterExpiry(s, "sleeper")
	servicetest.WantRun(t, r, control.RunSucceeded, "processed_records=20 deleted_rows=20")
	before := e.State("main", "c")
	e.Lift("main", "sleeper")
	sleeper.Signal(syscall.SIGCONT)
	result := sleeper.Result()
	assert.Require(t, result.Error == "", "%v", result.Error)
	servicetest.WantLost(t, result.Run)
	e.WantSame("main", before, "c")
	e.WantLease("main", 2, false)
}

func TestFault_PgBouncer_RunsArePausedAndCancelledThroughIt(t *testing.T) {
	t.Parallel()
	e, _ := servicetest.Pooled(t, 3, map[string]string{"main": servicetest.Databases.Clone(t, servicetest.Migrated("main"))})
	e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 20)`)
	e.Deleted("main", "p", 1, 20)
	e.Gate("main", "c")
	s := e.Service(servicetest.OneChild, servicetest.With(func(c *lfk.Config) { c.BatchSize = 1 }))
	for reason, stop := range map[string]func(id string) error{
		"CANCELLED": func(id string) error { _, err := s.CancelRun(t.Context(), id, ""); return err },
		"PAUSED": func(string) error {
			_, err := s.PauseWorker(t.Context(), servicetest.LooseForeignKeys, "test", "us", time.Minute)
			return err
		},
	} {
		e.Shut("main", servicetest.App)
		r := servicetest.Begin(t, s, "main")
		e.AtGate("main", servicetest.App)
		assert.NoError(t, stop(r.ID))
		if reason == "PAUSED" {
			// The next heartbeat sees it.
			paused := e.Value("main", `SELECT clock_timestamp()::text`)
			e.Eventually("main", `SELECT heartbeat_at > '`+paused+`' FROM maintenance.runs WHERE id = '`+r.ID+`'`, "true")
		}
		e.Lift("main", servicetest.App)
		r = servicetest.Ended(t, s, r.ID)
		servicetest.WantState(t, r, control.RunCancelled)
		assert.Equal(t, r.Reason, reason, "reason")
		assert.Must(s.ResumeWorker(t.Context(), servicetest.LooseForeignKeys, ""))(t)
	}
	servicetest.WantState(t, servicetest.RunBatch(t, s, "main"), control.RunSucceeded)
	e.Want("main", `SELECT count(*) FROM c`, "0")
}

func TestFault_PgBouncer_JobsAreCancelledAndPathsMarkedThroughIt(t *testing.T) {
	t.Parallel()
	e, _ := servicetest.Pooled(t, 3, map[string]string{"main": servicetest.Databases.Clone(t, servicetest.Migrated("main"))})
	s := e.Service("", e.WithQueue)
	e.Insert(jobqueue.Job{Args: jobqueue.DestroyGroup{GroupID: 10}}, jobqueue.Job{Args: jobqueue.DeleteUser{UserID: 7, Reason: "r"}})
	e.Exec("main", `INSERT INTO maintenance.outside_paths (job_id, kind, path) SELECT 1, 'project_repository', '@hashed/' || i FROM generate_series(1, 3) i`)
	for id := int64(1); id <= 2; id++ {
		j := assert.Must(s.CancelJob(t.Context(), id, "not these", "ann"))(t)
		assert.That(t, j.State == jobqueue.JobCancelled && j.Cancellation != nil && j.Cancellation.By == "ann", "%+v", j)
	}
	for range 2 {
		done := assert.Must(s.AckOutside(t.Context(), []int64{3, 1}, "ann"))(t)
		assert.That(t, len(done) == 2 && !done[1].DoneAt.IsZero(), "%+v", done)
	}
	_, err := s.AckOutside(t.Context(), []int64{2, 9}, "ann")
	assert.That(t, errors.Is(err, service.ErrUnknownPath), "%v", err)
	j := assert.Must(s.Job(t.Context(), 1))(t)
	assert.That(t, j.Outside == (jobqueue.OutsideCount{All: 3, Pending: 1}), "%+v", j)
	for _, kind := range s.JobKinds() {
		e.Work(s, kind)
	}
	e.Want("main", `SELECT string_agg(DISTINCT state::text || attempt, ' ') FROM maintenance.river_job`, "cancelled0")
	assert.Must(s.RetryJob(t.Context(), 2))(t)
	e.Want("main", `SELECT string_agg(concat_ws(' ', state, metadata ->> 'reason'), ', ' ORDER BY id) FROM maintenance.river_job`, "cancelled CANCELLED, available")
	e.Work(s, jobqueue.DestroyGroup{}.Kind())
	e.Want("main", `SELECT string_agg(concat_ws(' ', kind, state, metadata ->> 'reason'), ', ' ORDER BY id) FROM maintenance.river_job`,
		"delete_user cancelled CANCELLED, destroy_group completed TARGET_GONE")
}

func TestFault_PgBouncer_EndedServerConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	e, _ := servicetest.Pooled(t, 3, map[string]string{"main": servicetest.Databases.Clone(t, servicetest.Migrated("main"))})
	m := &servicetest.Mirrored{Estate: e, Log: &servicetest.Buffer{}}
	m.Candidates()
	s := m.Service()
	stop := storm(e)
	defer stop()
	for _, worker := range []string{servicetest.InactiveTokens, servicetest.PlaceholderUsers, servicetest.AdjournedGroups} {
		devdb.Eventually(t, worker+" to get through", func() bool {
			r, err := s.RunBatch(t.Context(), run.Request{Worker: worker})
			return err == nil && r.State == control.RunSucceeded
		})
	}
	stop()
	e.Want("main", servicetest.QueuedUsers, "201 202 203")
	// A page that is tried again may come after the next one.
	e.Want("main", `SELECT string_agg(args ->> 'placeholder_user_id', ' ' ORDER BY args ->> 'placeholder_user_id') FROM maintenance.river_job
		WHERE kind = 'delete_placeholder_user'`, "301 302 303")
	e.Want("main", `SELECT string_agg(deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "1 1 1")
	e.Want("main", `SELECT string_agg(args ->> 'group_id', ' ' ORDER BY args ->> 'group_id') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "401 402 403")
}

func TestFault_PgBouncer_AForgottenSettingIsNamed(t *testing.T) {
	_, p := servicetest.Pooled(servicetest.Parallel(t), 3, nil)
	url := p.PlainURL(servicetest.DatabaseOf(servicetest.Databases.Clone(t, servicetest.Migrated("main"))))
	d := servicetest.Open(t, url)
	advice := "add default_query_exec_mode=exec to databases.main.url"
	err := d.CheckPooler(t.Context())
	assert.That(t, err != nil && strings.Contains(err.Error(), advice), "at the start: %v", err)
	// Of several connections some are prepared on one of the server and used on another.
	failures := make(chan error, 64)
	devdb.Eventually(t, "a statement to fail", func() bool {
		for range cap(failures) {
			go func() {
				_, err := d.Runs.RunSummary(context.Background(), servicetest.AdjournedGroups)
				failures <- err
			}()
		}
		var failed error
		for range cap(failures) {
			failed = errors.Join(failed, <-failures)
		}
		var refused *dberr.Error
		if !errors.As(failed, &refused) {
			return false
		}
		if refused.Class() != dberr.ClassUnreachable || !errors.Is(failed, dberr.ErrUnreachable) || !strings.Contains(refused.Condition(), advice) {
			t.Fatalf("%s: %v", fmt.Sprint(refused.Class()), refused)
		}
		return true
	})
}

func TestFault_PgBouncer_TheSettingMayHaveAnyValueThatNeedsNoSession(t *testing.T) {
	t.Parallel()
	for mode, fits := range map[string]bool{"simple_protocol": true, "cache_describe": true, "exec": true, "describe_exec": false, "cache_statement": false} {
		t.Run(mode, func(t *testing.T) {
			e, p := servicetest.Pooled(servicetest.Parallel(t), 2, nil)
			url := servicetest.Databases.Clone(t, servicetest.Migrated("main"))
			e.AddThrough("main", url, p.PlainURL(servicetest.DatabaseOf(url))+"&default_query_exec_mode="+mode)
			err := e.Open[0].CheckPooler(t.Context())
			assert.Require(t, err != nil != fits, "at the start: %v", err)
			if !fits {
				return
			}
			m := &servicetest.Mirrored{Estate: e, Log: &servicetest.Buffer{}}
			m.Candidates()
			s := m.Service()
			for _, worker := range []string{servicetest.InactiveTokens, servicetest.PlaceholderUsers, servicetest.AdjournedGroups, servicetest.GhostUsers} {
				r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: worker}))(t)
				servicetest.WantState(t, r, control.RunSucceeded)
			}
			for _, kind := range []string{"delete_placeholder_user", "destroy_group", "delete_user"} {
				e.Work(s, kind)
			}
			e.Want("main", `SELECT count(*) FROM maintenance.river_job WHERE state <> 'completed'`, "0")
		})
	}
}

func TestFault_PgBouncer_SettingsOfTheSessionAreRefusedByName(t *testing.T) {
	e, p := servicetest.Pooled(servicetest.Parallel(t), 2, nil)
	url := servicetest.Databases.Clone(t, servicetest.Migrated("main"))
	e.AddThrough("main", url, p.URL(servicetest.DatabaseOf(url)))
	e.Exec("main", `CREATE SCHEMA elsewhere; ALTER DATABASE `+servicetest.DatabaseOf(url)+` SET search_path = elsewhere, public`)
	for parameter, refused := range map[string]bool{"search_path=public": true, "statement_timeout=5s": true, "application_name=x": false, "timezone=UTC": false} {
		d := assert.Must(repo.Open(t.Context(), "main", p.URL(servicetest.DatabaseOf(url))+"&"+parameter))(t)
		err := d.Ping(t.Context())
		d.Close()
		name, _, _ := strings.Cut(parameter, "=")
		assert.That(t, refused == (err != nil && strings.Contains(err.Error(), name)), "%s: %v", parameter, err)
		if refusal, ok := errors.AsType[*dberr.Error](err); ok {
			said := refusal.Condition() + ": " + refusal.Why()
			assert.That(t, said == "unreachable (08P01 protocol_violation): the pooler refuses connections: check the pooler's limits and log", "%s", said)
		}
	}
	// Settings of the database or the role apply on every connection.
	other := servicetest.Open(t, p.URL(servicetest.DatabaseOf(url)))
	assert.Equal(t, assert.Must(other.ApplicationSchema(t.Context()))(t), "elsewhere", "schema")
}

// TestFault_PgBouncer_SettingsBoundOneTransaction: limits and what they bound are one transaction
// on one connection, and leave no setting on it.
func TestFault_PgBouncer_SettingsBoundOneTransaction(t *testing.T) {
	t.Parallel()
	e, _ := servicetest.Pooled(t, 2, map[string]string{"main": servicetest.Databases.Clone(t, servicetest.Migrated("main"))})
	e.Exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 6)`)
	e.Exec("main", `CREATE TABLE seen (tx bigint, pid int, statement_timeout text, seqscan text)`)
	e.Exec("main", `CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO seen VALUES (txid_current(), pg_backend_pid(), current_setting('statement_timeout'), current_setting('enable_seqscan')); RETURN OLD; END $$`)
	e.Exec("main", `CREATE TRIGGER see BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION see()`)
	e.Deleted("main", "p", 1, 6)
	servicetest.WantState(t, servicetest.RunBatch(t, e.Service(servicetest.OneChild), "main"), control.RunSucceeded)
	e.Want("main", `SELECT count(*) FROM c`, "0")
	e.Want("main", `SELECT count(*) FROM seen WHERE statement_timeout = '0' OR seqscan = 'on'`, "0")
	for range 4 {
		var timeout, scan string
		conn := assert.Must(pgx.Connect(t.Context(), e.Through["main"]))(t)
		err := conn.QueryRow(t.Context(), `SELECT current_setting('statement_timeout'), current_setting('enable_seqscan')`).Scan(&timeout, &scan)
		if err := errors.Join(err, conn.Close(t.Context())); err != nil || timeout != "0" || scan != "on" {
			t.Errorf("left behind: statement_timeout %s, enable_seqscan %s, %v", timeout, scan, err)
		}
	}
}

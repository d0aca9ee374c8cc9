package service_test

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
)

// pooled puts PgBouncer, with so many connections to each database, between the services and the databases of an estate.
// The test's own connections are direct.
func pooled(t *testing.T, size int, clones map[string]string) (*estate, *devdb.Pooler) {
	t.Helper()
	p, err := databases.Cluster(t).Pooler(t.Context(), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	e := &estate{t: t, urls: map[string]string{}, through: map[string]string{}, sql: map[string]*pgx.Conn{}}
	for _, name := range []string{"main", "ci", "sec"} {
		if url := clones[name]; url != "" {
			e.addThrough(name, url, p.URL(databaseOf(url)))
		}
	}
	return e, p
}

func databaseOf(url string) string {
	name, _, _ := strings.Cut(path.Base(url), "?")
	return name
}

// storm ends connections to main, but for the test's own, until it is stopped. It abates, so that a machine which needs
// longer than that for a run gets through as well.
func (e *estate) storm(every time.Duration) (stop func()) {
	e.t.Helper()
	conn := e.connect("main")
	ctx, cancel := context.WithCancel(e.t.Context())
	done := make(chan struct{})
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

func TestPgBouncer_PipelineRunsToItsEnd(t *testing.T) {
	t.Parallel()
	e, _ := pooled(t, 1, map[string]string{"main": databases.Clone(t, migrated("all"))})
	p := &pipelineRun{estate: e, pipelineEstate: generatePipeline(3)}
	p.load(p.estate)
	p.gate("main", "notes")
	p.replace()
	p.killed(func(o *processOrder) { o.Worker, o.Database = ghostWorker, "" })
	p.toTheEnd()
	p.compare()
}

func TestPgBouncer_MigrationsAndLooseForeignKeysAreInstalledThroughIt(t *testing.T) {
	t.Parallel()
	// One connection has the lock, the other one does the work.
	e, _ := pooled(t, 2, map[string]string{"main": databases.Clone(t, devdb.Template{Name: "bare"})})
	e.installAndClean()
}

func TestPgBouncer_EveryWorkerAndItsJobsRunThroughIt(t *testing.T) {
	t.Parallel()
	// With one connection nothing works that needs a second one while it holds a first.
	e, _ := pooled(t, 1, map[string]string{
		"main": databases.Clone(t, migrated("main")), "ci": databases.Clone(t, migrated("ci")), "sec": databases.Clone(t, migrated("sec")),
	})
	everyWork(&mirrored{estate: e, log: &lockedBuffer{}})
}

func TestPgBouncer_APausedProcessThatWakesBeyondItsLeaseWritesNothing(t *testing.T) {
	t.Parallel()
	e, _ := pooled(t, 4, map[string]string{"main": databases.Clone(t, migrated("main")), "ci": databases.Clone(t, migrated("ci"))})
	e.exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 20)`)
	e.exec("ci", `CREATE TABLE d (p_id bigint); INSERT INTO d SELECT generate_series(1, 20)`)
	e.deleted("main", "p", 1, 20)
	e.gate("main", "c")
	e.shut("main", "sleeper")
	definitions := "d: [{table: p, column: p_id, on_delete: async_delete}]\n" + oneChild
	sleeper := e.start("sleeper", definitions, shortRun)
	e.atGate("main", "sleeper")
	sleeper.signal(syscall.SIGSTOP)
	s := e.service(definitions)
	r := e.afterExpiry(s, "sleeper")
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "processed_records=20 deleted_rows=20")
	before := e.state("main", "c")
	e.lift("main", "sleeper")
	sleeper.signal(syscall.SIGCONT)
	result := sleeper.result()
	if result.Error != "" {
		t.Fatal(result.Error)
	}
	wantLost(t, result.Run)
	e.wantSame("main", before, "c")
	e.wantLease("main", 2, false)
}

func TestPgBouncer_RunsArePausedAndCancelledThroughIt(t *testing.T) {
	t.Parallel()
	e, _ := pooled(t, 3, map[string]string{"main": databases.Clone(t, migrated("main"))})
	e.exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 20)`)
	e.deleted("main", "p", 1, 20)
	e.gate("main", "c")
	s := e.service(oneChild, with(func(c *loosefk.Config) { c.BatchSize = 1 }))
	for reason, stop := range map[string]func(id string) error{
		"CANCELLED": func(id string) error { _, err := s.CancelRun(t.Context(), id, ""); return err },
		"PAUSED": func(string) error {
			_, err := s.PauseWorker(t.Context(), cleanupWorker, "test", "us", time.Minute)
			return err
		},
	} {
		e.shut("main", caretakerApp)
		r := begin(t, s, "main")
		e.atGate("main", caretakerApp)
		if err := stop(r.ID); err != nil {
			t.Fatal(err)
		}
		if reason == "PAUSED" {
			time.Sleep(2 * time.Second) // the next heartbeat sees it
		}
		e.lift("main", caretakerApp)
		r = ended(t, s, r.ID)
		wantState(t, r, repo.RunCancelled)
		if r.Reason != reason {
			t.Errorf("reason %s, want %s", r.Reason, reason)
		}
		if _, err := s.ResumeWorker(t.Context(), cleanupWorker, ""); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, runBatch(t, s, "main"), repo.RunSucceeded)
	e.want("main", `SELECT count(*) FROM c`, "0")
}

func TestPgBouncer_EndedServerConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	e, _ := pooled(t, 3, map[string]string{"main": databases.Clone(t, migrated("main"))})
	m := &mirrored{estate: e, log: &lockedBuffer{}}
	m.candidates()
	s := m.service()
	stop := e.storm(30 * time.Millisecond)
	defer stop()
	for _, worker := range []string{tokenWorker, placeholderWorker, groupWorker} {
		waitFor(t, worker+" to get through", func() bool {
			r, err := s.RunBatch(t.Context(), service.RunRequest{Worker: worker})
			return err == nil && r.State == repo.RunSucceeded
		})
	}
	stop()
	e.want("main", queuedUsers, "201 202 203")
	e.want("main", jobsOfPlaceholders, "301 302 303")
	e.want("main", `SELECT string_agg(deletion_attempts::text, ' ') FROM import_placeholder_user_details`, "1 1 1")
	e.want("main", `SELECT string_agg(args ->> 'group_id', ' ' ORDER BY args ->> 'group_id') FROM maintenance.river_job WHERE kind = 'destroy_group'`, "401 402 403")
}

func TestPgBouncer_AForgottenSettingIsNamed(t *testing.T) {
	t.Parallel()
	_, p := pooled(t, 3, nil)
	url := p.PlainURL(databaseOf(databases.Clone(t, migrated("main"))))
	d, err := repo.Open(t.Context(), "main", url)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	advice := "add default_query_exec_mode=exec to databases.main.url"
	if err := d.CheckPooler(t.Context()); err == nil || !strings.Contains(err.Error(), advice) {
		t.Errorf("at the start: %v", err)
	}
	// Of several connections some are prepared on one of the server and used on another.
	failures := make(chan error, 64)
	waitFor(t, "a statement to fail", func() bool {
		for range cap(failures) {
			go func() {
				_, err := d.RunSummary(context.Background(), groupWorker)
				failures <- err
			}()
		}
		var failed error
		for range cap(failures) {
			failed = errors.Join(failed, <-failures)
		}
		var refused *repo.Error
		if !errors.As(failed, &refused) {
			return false
		}
		if refused.Class() != repo.ClassUnreachable || !errors.Is(failed, repo.ErrUnreachable) || !strings.Contains(refused.Condition(), advice) {
			t.Fatalf("%s: %v", fmt.Sprint(refused.Class()), refused)
		}
		return true
	})
}

func TestPgBouncer_TheSettingMayHaveAnyValueThatNeedsNoSession(t *testing.T) {
	t.Parallel()
	for mode, fits := range map[string]bool{"simple_protocol": true, "cache_describe": true, "exec": true, "describe_exec": false, "cache_statement": false} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e, p := pooled(t, 2, nil)
			url := databases.Clone(t, migrated("main"))
			e.addThrough("main", url, p.PlainURL(databaseOf(url))+"&default_query_exec_mode="+mode)
			if err := e.open[0].CheckPooler(t.Context()); err != nil == fits {
				t.Fatalf("at the start: %v", err)
			}
			if !fits {
				return
			}
			m := &mirrored{estate: e, log: &lockedBuffer{}}
			m.candidates()
			s := m.service()
			for _, worker := range []string{tokenWorker, placeholderWorker, groupWorker, ghostWorker} {
				r, err := s.RunBatch(t.Context(), service.RunRequest{Worker: worker})
				if err != nil {
					t.Fatal(err)
				}
				wantState(t, r, repo.RunSucceeded)
			}
			for _, kind := range []string{"delete_placeholder_user", "destroy_group", "delete_user"} {
				e.work(s, kind)
			}
			e.want("main", `SELECT count(*) FROM maintenance.river_job WHERE state <> 'completed'`, "0")
		})
	}
}

func TestPgBouncer_SettingsOfTheSessionAreRefusedByName(t *testing.T) {
	t.Parallel()
	e, p := pooled(t, 2, nil)
	url := databases.Clone(t, migrated("main"))
	e.addThrough("main", url, p.URL(databaseOf(url)))
	e.exec("main", `CREATE SCHEMA elsewhere; ALTER DATABASE `+databaseOf(url)+` SET search_path = elsewhere, public`)
	for parameter, refused := range map[string]bool{"search_path=public": true, "statement_timeout=5s": true, "application_name=x": false, "timezone=UTC": false} {
		d, err := repo.Open(t.Context(), "main", p.URL(databaseOf(url))+"&"+parameter)
		if err != nil {
			t.Fatal(err)
		}
		err = d.Ping(t.Context())
		d.Close()
		name, _, _ := strings.Cut(parameter, "=")
		if refused != (err != nil && strings.Contains(err.Error(), name)) {
			t.Errorf("%s: %v", parameter, err)
		}
	}
	// What the database or the role has is there, on whichever connection.
	other, err := repo.Open(t.Context(), "main", p.URL(databaseOf(url)))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if q, err := other.Queue(t.Context()); err != nil || q.Schema != "elsewhere" {
		t.Errorf("schema %q, %v", q.Schema, err)
	}
}

// TestPgBouncer_SettingsBoundOneTransaction: limits and what they bound are one transaction on one connection, and leave
// nothing behind on it.
func TestPgBouncer_SettingsBoundOneTransaction(t *testing.T) {
	t.Parallel()
	e, _ := pooled(t, 2, map[string]string{"main": databases.Clone(t, migrated("main"))})
	e.exec("main", `CREATE TABLE c (p_id bigint); INSERT INTO c SELECT generate_series(1, 6)`)
	e.exec("main", `CREATE TABLE seen (tx bigint, pid int, statement_timeout text, seqscan text)`)
	e.exec("main", `CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO seen VALUES (txid_current(), pg_backend_pid(), current_setting('statement_timeout'), current_setting('enable_seqscan')); RETURN OLD; END $$`)
	e.exec("main", `CREATE TRIGGER see BEFORE DELETE ON c FOR EACH ROW EXECUTE FUNCTION see()`)
	e.deleted("main", "p", 1, 6)
	wantState(t, runBatch(t, e.service(oneChild), "main"), repo.RunSucceeded)
	e.want("main", `SELECT count(*) FROM c`, "0")
	e.want("main", `SELECT count(*) FROM seen WHERE statement_timeout = '0' OR seqscan = 'on'`, "0")
	for range 4 {
		var timeout, scan string
		conn, err := pgx.Connect(t.Context(), e.through["main"])
		if err != nil {
			t.Fatal(err)
		}
		err = conn.QueryRow(t.Context(), `SELECT current_setting('statement_timeout'), current_setting('enable_seqscan')`).Scan(&timeout, &scan)
		if err := errors.Join(err, conn.Close(t.Context())); err != nil || timeout != "0" || scan != "on" {
			t.Errorf("left behind: statement_timeout %s, enable_seqscan %s, %v", timeout, scan, err)
		}
	}
}

package repo_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/caretaker-go/caretaker/config"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/lfk"
	lfkadmin "github.com/caretaker-go/caretaker/service/lfk/admin"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// aged is a service on a main database with a long history, with every statement that it sends.
type aged struct {
	*service.Service
	t     *testing.T
	main  *repo.Database
	sql   *pgx.Conn
	heard *listener
	// run is the newest.
	run string
}

// heard is a statement, and how it may be planned.
type heard struct {
	sent
	modes []string
}

// examples are one of each statement, and of each choice of filters.
func examples(statements []sent) map[string]heard {
	all := map[string]heard{}
	for _, s := range statements {
		h := heard{s, []string{"force_custom_plan", "force_generic_plan"}}
		if len(s.args) > 0 && s.args[0] == pgx.QueryExecModeExec {
			h = heard{sent{s.sql, s.args[1:]}, []string{"force_custom_plan"}}
		}
		key := h.sql
		for _, arg := range h.args {
			key += fmt.Sprint(arg == nil || reflect.ValueOf(arg).IsZero())
		}
		all[key] = h
	}
	return all
}

// wantHeard fails the test unless there are statements with these parts.
func wantHeard(t *testing.T, statements []sent, parts ...string) {
	t.Helper()
	for _, part := range parts {
		says := func(s sent) bool { return strings.Contains(s.sql, part) }
		assert.That(t, slices.ContainsFunc(statements, says), "no statement says %s", part)
	}
}

func newAged(t *testing.T) *aged {
	t.Helper()
	url := databases.Clone(t, loaded("repo_history", "main", longHistory))
	a := &aged{t: t, sql: servicetest.Connect(t, url)}
	a.main, a.heard = listening(t, url)
	queue, err := scheduler.NewQueue(a.main, scheduler.QueueConfig{})
	assert.NoError(t, err)
	path := filepath.Join(t.TempDir(), "definitions.yml")
	err = os.WriteFile(path, []byte("c:\n  - {table: p, column: p_id, on_delete: async_delete}\n"), 0o600)
	assert.NoError(t, err)
	definitions, err := lfk.LoadDefinitions(path)
	assert.NoError(t, err)
	c := service.Config{
		Databases: []*repo.Database{a.main}, Queue: queue, Logger: slog.New(slog.DiscardHandler),
		HistoryKeep: 365 * 24 * time.Hour,
		Load:        load.Config{MaxLockWait: time.Hour},
	}
	service.Settings[lfk.Config](&c).Definitions = definitions
	config.Defaults(&c)
	a.Service, err = service.New(c)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = a.Shutdown(context.Background()) })
	return a
}

func (a *aged) acceptAbsent(ctx context.Context) error {
	// The table is in main, which all reads find out.
	_, err := a.AcceptAbsent(ctx, []string{"c"}, "test")
	if refused, ok := errors.AsType[*fault.RefusedError](err); ok && refused.Reason == "CHILD_NOT_ABSENT" {
		return nil
	}
	return err
}

// calls exercise every method of the service, by its name: what serves calls and pages, and what the scheduler and the
// queue do. Shutdown comes last by itself.
func (a *aged) calls() map[string]func(context.Context) error {
	all := a.callsOfWorkers()
	maps.Copy(all, map[string]func(context.Context) error{
		"Status":    func(ctx context.Context) error { return second(a.Status(ctx, "")) },
		"Leases":    func(ctx context.Context) error { return second(a.Leases(ctx, "")) },
		"Run":       func(ctx context.Context) error { return second(a.Run(ctx, a.run)) },
		"Runs":      a.listRuns,
		"Fires":     a.listFires,
		"Jobs":      a.listJobs,
		"Job":       func(ctx context.Context) error { return second(a.Job(ctx, 50_000)) },
		"JobCounts": func(ctx context.Context) error { return second(a.JobCounts(ctx)) },
		"JobsOfRun": func(ctx context.Context) error { return second(a.JobsOfRun(ctx, a.run, 20)) },
		"CancelJob": func(ctx context.Context) error { return second(a.CancelJob(ctx, 1, "a test", "test")) },
		"RetryJob":  func(ctx context.Context) error { return second(a.RetryJob(ctx, 1)) },
		"JobWorker": func(ctx context.Context) error { return second(a.JobWorker(ctx, 50_000)) },
		"RecordAudit": func(ctx context.Context) error {
			return second(a.main.Audit.RecordAudit(ctx, control.AuditEntry{Action: "PauseWorker"}))
		},
		"CompleteAudit": func(ctx context.Context) error {
			return a.main.Audit.CompleteAudit(ctx, control.AuditEntry{ID: 50_000, Outcome: "OK"})
		},
		"Audit":    a.listAudit,
		"Receipts": a.listReceipts,
		"Outside":  a.listOutside,
		"AckOutside": func(ctx context.Context) error {
			return second(a.AckOutside(ctx, []int64{50_000, 2, 3}, "test"))
		},
		"AcceptAbsent": a.acceptAbsent,
		"Records": func(ctx context.Context) (err error) {
			for _, state := range []string{"dead", "failing", "reused"} {
				err = errors.Join(err, third(a.Records(ctx, "", lfkadmin.RecordFilter{State: state, Table: "users", Limit: 50})))
			}
			return err
		},
		"DecideRecords": func(ctx context.Context) error {
			_, err := a.DecideRecords(ctx, service.RecordDecision{Decision: "retry", Table: "*"})
			_, refused := errors.AsType[*fault.RefusedError](err)
			assert.That(a.t, refused, "got %v", err)
			return nil
		},
		"Protect": a.protect,
		"Protections": func(ctx context.Context) error {
			return second(a.Protections(ctx, "user", service.Protection{}, 50))
		},
		"Unprotect":       func(context.Context) error { return nil }, // protect calls it, and this one
		"PlanDeletion":    func(context.Context) error { return nil },
		"JobKinds":        func(context.Context) error { a.JobKinds(); return nil },
		"Waiting":         a.listWaiting,
		"WorkJob":         a.workJobs,
		"BacklogSamples":  func(ctx context.Context) error { return second(a.BacklogSamples(ctx)) },
		"SampleBacklogs":  a.SampleBacklogs,
		"DatabaseSamples": func(ctx context.Context) error { return second(a.DatabaseSamples(ctx)) },
		"ChangedRows":     func(ctx context.Context) error { return second(a.ChangedRows(ctx)) },
		"DatabaseStatus":  func(ctx context.Context) error { a.DatabaseStates(ctx, a.DatabaseStatus(ctx, nil)); return nil },
		"DatabaseStates":  func(context.Context) error { return nil }, // DatabaseStatus calls it
		"CheckLooseForeignKeys": func(ctx context.Context) error {
			return second(a.CheckLooseForeignKeys(ctx))
		},
	})
	return all
}

func second[T any](_ T, err error) error { return err }

func third[T, U any](_ T, _ U, err error) error { return err }

func (a *aged) listRuns(ctx context.Context) (err error) {
	for _, worker := range []string{"", "placeholder_user_cleanup"} {
		for _, state := range []string{"", "failed", "cancelled"} {
			for _, after := range []string{"", a.run} {
				f := run.Filter{Worker: worker, State: state, After: after, Limit: 50}
				err = errors.Join(err, second(a.Runs(ctx, f)))
				f.Since, f.Until = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
				err = errors.Join(err, second(a.Runs(ctx, f)))
			}
		}
	}
	return err
}

func (a *aged) listAudit(ctx context.Context) (err error) {
	for _, since := range []time.Time{{}, time.Now().Add(-time.Hour), time.Now().Add(time.Hour)} {
		for _, after := range []time.Time{{}, time.Now().Add(-time.Minute)} {
			f := control.AuditFilter{Since: since, After: after, AfterID: 7, Limit: 50}
			err = errors.Join(err, second(a.main.Audit.ListAudit(ctx, f)))
			f.Until, f.Action = time.Now().Add(-time.Minute), "nothing"
			err = errors.Join(err, second(a.main.Audit.ListAudit(ctx, f)))
			for _, f.Action = range []string{"", "PauseWorker"} {
				f.By = "nobody"
				err = errors.Join(err, second(a.main.Audit.ListAudit(ctx, f)))
			}
		}
	}
	return err
}

// protect protects a user that there is, plans its deletion, and ends the protection.
func (a *aged) protect(ctx context.Context) error {
	if _, err := a.sql.Exec(ctx, `WITH o AS (INSERT INTO organizations (name, path, created_at, updated_at) VALUES ('o', 'o', now(), now()) RETURNING id)
		INSERT INTO users (id, username, email, projects_limit, organization_id) SELECT 1, 'u', 'u', 0, id FROM o`); err != nil {
		return err
	}
	u := service.Protection{Kind: "user", ID: 1, Reason: "a test", By: "test"}
	_, err := a.Protect(ctx, u, time.Hour, false)
	return errors.Join(err, second(a.PlanDeletion(ctx, "user", 1)), second(a.Unprotect(ctx, "user", 1, "test")))
}

func (a *aged) listFires(ctx context.Context) (err error) {
	for _, worker := range []string{"", "placeholder_user_cleanup"} {
		for _, outcome := range []string{"", "missed"} {
			for _, after := range []time.Time{{}, time.Now()} {
				f := schedule.Filter{Worker: worker, Outcome: outcome, After: after, AfterWorker: "x", Limit: 50}
				err = errors.Join(err, second(a.Fires(ctx, f)))
			}
		}
	}
	return err
}

func (a *aged) listJobs(ctx context.Context) (err error) {
	for _, kind := range []string{"", "delete_user", "destroy_group"} {
		for _, state := range []string{"", "retryable", "completed"} {
			for _, after := range []int64{0, 50_000} {
				f := job.Filter{Kind: kind, State: state, After: after, Limit: 50}
				err = errors.Join(err, second(a.Jobs(ctx, f)))
				f.Since, f.Until = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
				err = errors.Join(err, second(a.Jobs(ctx, f)))
			}
		}
	}
	return err
}

func (a *aged) listReceipts(ctx context.Context) (err error) {
	for _, f := range []control.ReceiptFilter{
		{},
		{Table: "t1"},
		{Table: "nowhere"},
		{RunID: a.run},
		{JobID: 77},
		{Table: "t1", RunID: a.run},
		{Worker: "nobody"},
		{Table: "t1", Worker: "nobody"},
		{Since: time.Now().Add(-time.Hour)},
		{Until: time.Now().Add(-9000 * time.Hour)},
		{Since: time.Now().Add(time.Hour)},
	} {
		for _, f.Before = range []int64{0, 25_000} {
			f.Limit = 50
			_, _, failed := a.Receipts(ctx, service.ReceiptFilter{ReceiptFilter: f})
			err = errors.Join(err, failed)
		}
	}
	return err
}

func (a *aged) listOutside(ctx context.Context) (err error) {
	for _, f := range []rowset.OutsideFilter{{}, {JobID: 77}, {JobID: 2499}, {RunID: a.run}} {
		for _, f.Pending = range []bool{false, true} {
			for _, f.After = range []int64{0, 49_000} {
				f.Limit = 50
				err = errors.Join(err, second(a.main.Outside.ListOutside(ctx, f)))
			}
		}
	}
	return err
}

func (a *aged) listWaiting(ctx context.Context) (err error) {
	for _, worker := range servicetest.Configured(a.t, a.Service) { //nolint:contextcheck // the test's
		for _, dead := range []bool{false, true} {
			err = errors.Join(err, second(a.Waiting(ctx, worker, dead)))
		}
	}
	return err
}

// workJobs works a job of each kind, whose row and target are gone.
func (a *aged) workJobs(ctx context.Context) (err error) {
	for kind, args := range map[string]string{
		"delete_placeholder_user": `{"placeholder_user_id": 1}`, "delete_user": `{"user_id": 1, "reason": "x"}`,
		"destroy_group": `{"group_id": 1, "user_id": 1}`, "continue_inactive_token_deletion": `{"pass_id": "` + a.run + `"}`,
	} {
		_, worked := a.WorkJob(ctx, job.Request{
			ID: 1, Kind: kind, Args: []byte(args), Attempt: 1, MaxAttempts: 25, AttemptedAt: time.Now(), RunID: a.run,
		})
		if !errors.Is(worked, dberr.ErrJobLost) {
			err = errors.Join(err, worked)
		}
	}
	return err
}

// runAll runs each worker, with a request id and as a dry run. The cleanup for long enough to give
// signs of life.
func (a *aged) runAll(ctx context.Context) (err error) {
	for _, worker := range servicetest.Configured(a.t, a.Service) { //nolint:contextcheck // the test's
		for _, dry := range []bool{true, false} {
			run, failed := a.RunBatch(ctx, run.Request{
				Worker: worker, DryRun: dry, RequestID: fmt.Sprint(worker, dry), RequestedBy: "test",
			})
			err = errors.Join(err, failed)
			a.run = run.ID
		}
	}
	return err
}

// planned are the statements whose plan matters. The others set something, or insert what they are
// given.
var planned = regexp.MustCompile(`^[\s(]*(SELECT|WITH|UPDATE|DELETE)`)

// wantLookups fails the test if a plan reads more of a table than what it searches for. A day of
// samples is read whole, and of the newest jobs some thousand are searched for those of a run.
func wantLookups(t *testing.T, nodes []node, text string) {
	t.Helper()
	const tooMany, newestJobs = 2000, 20_000
	for _, n := range nodes {
		read := (n.Rows + n.Filtered + n.Rechecked) * n.Loops
		history := n.Relation == "runs" || n.Relation == "fires" || n.Relation == "river_job" || n.Relation == "audit" ||
			n.Relation == "outside_paths"
		switch {
		case strings.HasSuffix(n.Relation, "_samples"), strings.HasPrefix(n.Relation, "pg_"):
		case strings.Contains(text, "run_id'::text) = ") && read <= newestJobs:
		case n.Type == "Seq Scan" && n.Loops > 0 && history, read > tooMany:
			t.Errorf("%s of %s reads %.0f rows: %s", n.Type, n.Relation, read, text)
			return
		}
	}
}

// engineMethods are those of the engine that the calls use in turn.
const engineMethods = " Add CloseAbandoned Current Database FailedJobs Go Health Heartbeat IsStopping Join NotUsed " +
	"Planning Prune ReadDatabases Ready ResumesAfterLoad SlowedBy Unfinished Worker "

// TestPlans_NothingReadsALongHistory must not run in parallel: the provider of meters is the process's.
func TestPlans_NothingReadsALongHistory(t *testing.T) {
	reader := sdk.NewManualReader()
	before := otel.GetMeterProvider()
	otel.SetMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader)))
	defer otel.SetMeterProvider(before)
	a := newAged(t)
	ctx := context.Background()
	calls := a.calls()
	assert.NoError(t, calls["RunBatch"](ctx))
	for method := range reflect.TypeFor[*service.Service]().Methods() {
		known := calls[method.Name] != nil || strings.Contains(engineMethods, " "+method.Name+" ")
		assert.That(t, known, "nothing calls %s: add it to the calls", method.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		err := calls[name](ctx)
		assert.That(t, err == nil, "%s: %v", name, err)
	}
	assert.NoError(t, reader.Collect(ctx, &metricdata.ResourceMetrics{}))
	// The runs have succeeded on main: what has only failed, and that before the worker was last taken into use, is on ci.
	assert.Must(a.main.History.RunFigures(ctx, []string{"ghost_user_migration"}, []string{"ci"}))(t)
	assert.Must(a.main.Runs.Failures(ctx, "ghost_user_migration", []string{"ci", "nowhere"}))(t)
	assert.NoError(t, a.Shutdown(ctx))
	wantHeard(t, a.heard.statements, "SET heartbeat_at = clock_timestamp(), counts", "INSERT INTO maintenance.fires", "DELETE FROM maintenance.runs", "DELETE FROM maintenance.audit",
		"maintenance.backlog_samples", "maintenance.database_samples", "jsonb_array_elements(r.tables)", "coalesce(s.in_use_since")
	for _, h := range examples(a.heard.statements) {
		if !planned.MatchString(h.sql) {
			continue
		}
		for _, mode := range h.modes {
			nodes, text := plan(t, a.sql, []sent{h.sent}, mode)
			wantLookups(t, nodes, fmt.Sprint(mode, h.sql, h.args, text))
		}
	}
}

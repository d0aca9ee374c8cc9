package run

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Metrics are the instruments of docs/reference/metrics.md. No control flow depends on them.
type Metrics struct {
	Meter metric.Meter
	// Runs counts ended runs. duration is in seconds.
	Runs     metric.Int64Counter
	duration metric.Float64Histogram
	rows     metric.Int64Counter
	// Apdex and ErrorRate are the SLIs.
	Apdex     metric.Int64Counter
	ErrorRate metric.Int64Counter
	Jobs      metric.Int64Counter
	fires     metric.Int64Counter
	// LeasesLost, OverLimit and EndedEarly count runs that one of these ended.
	LeasesLost metric.Int64Counter
	OverLimit  metric.Int64Counter
	EndedEarly metric.Int64Counter
	// paused is the time in seconds that runs have waited because of load.
	paused   metric.Float64Counter
	JobsHeld metric.Int64Counter
}

// newMetrics creates the instruments that runs and jobs count with. Bucket limits of durations are
// in seconds. The error joins those of all instruments.
func newMetrics() (*Metrics, error) {
	m := &Metrics{Meter: otel.Meter("github.com/caretaker-go/caretaker/service")}
	var errs [12]error
	m.Runs, errs[0] = m.Meter.Int64Counter("maintenance.runs", metric.WithDescription("Runs that ended, by outcome."))
	m.duration, errs[1] = m.Meter.Float64Histogram("maintenance.run.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of runs."), metric.WithExplicitBucketBoundaries(.1, 1, 10, 30, 60, 180, 600))
	m.rows, errs[2] = m.Meter.Int64Counter("maintenance.rows", metric.WithDescription("Rows processed, by action."))
	m.Apdex, errs[3] = m.Meter.Int64Counter("maintenance.sli.apdex", metric.WithDescription("Runs that did not fail. The attribute success is true if a run stayed within its limits."))
	m.ErrorRate, errs[4] = m.Meter.Int64Counter("maintenance.sli.error", metric.WithDescription("Runs that succeeded or failed. The attribute error is true if a run failed."))
	m.Jobs, errs[5] = m.Meter.Int64Counter("maintenance.jobs", metric.WithDescription("Ended attempts of jobs, by outcome."))
	m.fires, errs[6] = m.Meter.Int64Counter("maintenance.fires", metric.WithDescription("Scheduled runs (fires), by outcome."))
	m.LeasesLost, errs[7] = m.Meter.Int64Counter("maintenance.leases.lost", metric.WithDescription("Runs that failed because their lease was lost."))
	m.OverLimit, errs[8] = m.Meter.Int64Counter("maintenance.runs.over_limit", metric.WithDescription("Runs that a time or row limit stopped before all work was done."))
	m.EndedEarly, errs[9] = m.Meter.Int64Counter("maintenance.runs.ended_early", metric.WithDescription("Runs that ended early because of the load of a database or a full queue."))
	m.paused, errs[10] = m.Meter.Float64Counter("maintenance.throttled", metric.WithUnit("s"), metric.WithDescription("Time that runs have paused because of the load of a database."))
	m.JobsHeld, errs[11] = m.Meter.Int64Counter("maintenance.jobs.held", metric.WithDescription("Number of times that a job was postponed because of a pause or the load of a database."))
	return m, errors.Join(errs[:]...)
}

// MainDatabase is the label of workers without a turn by database.
const MainDatabase = "main"

// addRun counts the end of a run. It does not count dry runs, so that no alert fires on them.
func (m *Metrics) addRun(ctx context.Context, run Run, duration time.Duration) {
	if run.DryRun {
		return
	}
	worker := attribute.String("worker", run.Worker)
	at := metric.WithAttributes(worker, attribute.String("database", databaseOrMain(run)))
	m.Runs.Add(ctx, 1, at, metric.WithAttributes(attribute.String("outcome", run.State)))
	if run.State != control.RunSkipped {
		m.duration.Record(ctx, duration.Seconds(), metric.WithAttributes(worker))
	}
	if run.Reason == fault.ReasonLeaseLost {
		m.LeasesLost.Add(ctx, 1, at)
	}
	if run.OverLimit {
		m.OverLimit.Add(ctx, 1, at)
	}
	if fault.EndedEarly(run.Reason) {
		m.EndedEarly.Add(ctx, 1, at)
	}
}

// AddRows counts rows that were deleted or changed.
func (m *Metrics) AddRows(ctx context.Context, worker, database, action string, n int64) {
	m.rows.Add(ctx, n, metric.WithAttributes(attribute.String("worker", worker), attribute.String("database", database),
		attribute.String("action", action)))
}

// AddJob counts a job that has ended, by its outcome.
func (m *Metrics) AddJob(ctx context.Context, kind, outcome string) {
	m.Jobs.Add(ctx, 1, metric.WithAttributes(attribute.String("kind", kind), attribute.String("outcome", outcome)))
}

// AddHold counts a postponed job by the reason.
func (m *Metrics) AddHold(ctx context.Context, kind, reason string) {
	m.JobsHeld.Add(ctx, 1, metric.WithAttributes(attribute.String("kind", kind), attribute.String("reason", reasons.Read(reason).Code)))
}

// AddPause counts the time that a run on a database paused.
func (m *Metrics) AddPause(ctx context.Context, worker, database string, paused time.Duration) {
	m.paused.Add(ctx, paused.Seconds(), metric.WithAttributes(attribute.String("worker", worker), attribute.String("database", database)))
}

// AddFires counts fires by their outcome.
func (m *Metrics) AddFires(ctx context.Context, worker, outcome string, n int) {
	m.fires.Add(ctx, int64(n), metric.WithAttributes(attribute.String("worker", worker), attribute.String("outcome", outcome)))
}

// addSLI counts a run that has ended for the error rate and, if it succeeded, for the Apdex.
func (m *Metrics) addSLI(ctx context.Context, run Run) {
	database := attribute.String("database", run.Database)
	failed := run.State == control.RunFailed
	if run.DryRun || (!failed && run.State != control.RunSucceeded) {
		return
	}
	m.ErrorRate.Add(ctx, 1, metric.WithAttributes(database, attribute.String("error", strconv.FormatBool(failed))))
	if !failed {
		m.Apdex.Add(ctx, 1, metric.WithAttributes(database, attribute.String("success", strconv.FormatBool(!run.OverLimit))))
	}
}

package service

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo"
)

// metrics are the instruments of contract.md section 6. Nothing in the control flow depends on them.
type metrics struct {
	meter      metric.Meter
	runs       metric.Int64Counter
	duration   metric.Float64Histogram
	rows       metric.Int64Counter
	apdex      metric.Int64Counter
	errorRate  metric.Int64Counter
	jobs       metric.Int64Counter
	fires      metric.Int64Counter
	leasesLost metric.Int64Counter
	overLimit  metric.Int64Counter
	endedEarly metric.Int64Counter
	rested     metric.Float64Counter
	jobsHeld   metric.Int64Counter
}

func newMetrics() (*metrics, error) {
	m := &metrics{meter: otel.Meter("github.com/caretaker-go/caretaker/service")}
	var errs [12]error
	m.runs, errs[0] = m.meter.Int64Counter("maintenance.runs", metric.WithDescription("Runs that ended, by outcome."))
	m.duration, errs[1] = m.meter.Float64Histogram("maintenance.run.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of runs."), metric.WithExplicitBucketBoundaries(.1, 1, 10, 30, 60, 180, 600))
	m.rows, errs[2] = m.meter.Int64Counter("maintenance.rows", metric.WithDescription("Rows worked on, by action."))
	m.apdex, errs[3] = m.meter.Int64Counter("maintenance.sli.apdex", metric.WithDescription("Runs that did not fail; success: within their limits."))
	m.errorRate, errs[4] = m.meter.Int64Counter("maintenance.sli.error", metric.WithDescription("Runs that succeeded or failed; error: failed."))
	m.jobs, errs[5] = m.meter.Int64Counter("maintenance.jobs", metric.WithDescription("Attempts of deferred jobs that ended, by outcome."))
	m.fires, errs[6] = m.meter.Int64Counter("maintenance.fires", metric.WithDescription("Fires of schedules, by what became of them."))
	m.leasesLost, errs[7] = m.meter.Int64Counter("maintenance.leases.lost", metric.WithDescription("Runs that failed because their lease was lost."))
	m.overLimit, errs[8] = m.meter.Int64Counter("maintenance.runs.over_limit", metric.WithDescription("Runs that a limit of time or rows stopped before they were done."))
	m.endedEarly, errs[9] = m.meter.Int64Counter("maintenance.runs.ended_early", metric.WithDescription("Runs that ended early because of the load of a database or a full queue."))
	m.rested, errs[10] = m.meter.Float64Counter("maintenance.throttled", metric.WithUnit("s"), metric.WithDescription("Time that runs have rested because of the load of a database."))
	m.jobsHeld, errs[11] = m.meter.Int64Counter("maintenance.jobs.held", metric.WithDescription("How often a job was put back because of a pause or the load of a database."))
	return m, errors.Join(errs[:]...)
}

// mainDatabase is the label of workers that have no turn by database.
const mainDatabase = "main"

// addRun counts the end of a run. What a dry run would do is nothing to count, or to alert on.
func (m *metrics) addRun(ctx context.Context, run Run, duration time.Duration) {
	if run.DryRun {
		return
	}
	worker := attribute.String("worker", run.Worker)
	at := metric.WithAttributes(worker, attribute.String("database", homeOf(run)))
	m.runs.Add(ctx, 1, at, metric.WithAttributes(attribute.String("outcome", run.State)))
	if run.State != repo.RunSkipped {
		m.duration.Record(ctx, duration.Seconds(), metric.WithAttributes(worker))
	}
	if run.Reason == reasonLeaseLost {
		m.leasesLost.Add(ctx, 1, at)
	}
	if run.OverLimit {
		m.overLimit.Add(ctx, 1, at)
	}
	if endedEarly(run.Reason) {
		m.endedEarly.Add(ctx, 1, at)
	}
}

func (m *metrics) addRows(ctx context.Context, worker, database, action string, n int64) {
	m.rows.Add(ctx, n, metric.WithAttributes(attribute.String("worker", worker), attribute.String("database", database),
		attribute.String("action", action)))
}

func (m *metrics) addJob(ctx context.Context, kind, outcome string) {
	m.jobs.Add(ctx, 1, metric.WithAttributes(attribute.String("kind", kind), attribute.String("outcome", outcome)))
}

// addHold counts a job that was put back, by what held it.
func (m *metrics) addHold(ctx context.Context, kind, reason string) {
	reason, _, _ = strings.Cut(reason, ":")
	m.jobsHeld.Add(ctx, 1, metric.WithAttributes(attribute.String("kind", kind), attribute.String("reason", reason)))
}

// addRest counts the time that a run on a database rested.
func (m *metrics) addRest(ctx context.Context, worker, database string, rested time.Duration) {
	m.rested.Add(ctx, rested.Seconds(), metric.WithAttributes(attribute.String("worker", worker), attribute.String("database", database)))
}

func (m *metrics) addFires(ctx context.Context, worker, outcome string, n int) {
	m.fires.Add(ctx, int64(n), metric.WithAttributes(attribute.String("worker", worker), attribute.String("outcome", outcome)))
}

func (m *metrics) addSLI(ctx context.Context, run Run) {
	database := attribute.String("database", run.Database)
	failed := run.State == repo.RunFailed
	if run.DryRun || (!failed && run.State != repo.RunSucceeded) {
		return
	}
	m.errorRate.Add(ctx, 1, metric.WithAttributes(database, attribute.String("error", strconv.FormatBool(failed))))
	if !failed {
		m.apdex.Add(ctx, 1, metric.WithAttributes(database, attribute.String("success", strconv.FormatBool(!run.OverLimit))))
	}
}

package service

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo"
)

// metrics are the instruments of contract.md section 6. Nothing in the control flow depends on them.
type metrics struct {
	meter        metric.Meter
	runs         metric.Int64Counter
	duration     metric.Float64Histogram
	rows         metric.Int64Counter
	apdex        metric.Int64Counter
	errorRate    metric.Int64Counter
	jobs         metric.Int64Counter
	fires        metric.Int64Counter
	registration metric.Registration
}

func newMetrics() (*metrics, error) {
	m := &metrics{meter: otel.Meter("github.com/caretaker-go/caretaker/service")}
	var errs [7]error
	m.runs, errs[0] = m.meter.Int64Counter("maintenance.runs", metric.WithDescription("Runs that ended, by outcome."))
	m.duration, errs[1] = m.meter.Float64Histogram("maintenance.run.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of runs."), metric.WithExplicitBucketBoundaries(.01, .05, .1, .5, 1, 2, 5, 10, 20, 30, 45, 60, 120, 180))
	m.rows, errs[2] = m.meter.Int64Counter("maintenance.rows", metric.WithDescription("Rows worked on, by action."))
	m.apdex, errs[3] = m.meter.Int64Counter("maintenance.sli.apdex", metric.WithDescription("Runs that did not fail; success: within their limits."))
	m.errorRate, errs[4] = m.meter.Int64Counter("maintenance.sli.error", metric.WithDescription("Runs that succeeded or failed; error: failed."))
	m.jobs, errs[5] = m.meter.Int64Counter("maintenance.jobs", metric.WithDescription("Attempts of deferred jobs that ended, by outcome."))
	m.fires, errs[6] = m.meter.Int64Counter("maintenance.fires", metric.WithDescription("Fires of schedules, by what became of them."))
	return m, errors.Join(errs[:]...)
}

// mainDatabase is the label of workers that have no turn by database.
const mainDatabase = "main"

func (m *metrics) addRun(ctx context.Context, run Run, duration time.Duration) {
	worker := attribute.String("worker", run.Worker)
	database := run.Database
	if database == "" {
		database = mainDatabase
	}
	m.runs.Add(ctx, 1, metric.WithAttributes(worker, attribute.String("database", database), attribute.String("outcome", run.State)))
	if run.State != repo.RunSkipped {
		m.duration.Record(ctx, duration.Seconds(), metric.WithAttributes(worker))
	}
}

func (m *metrics) addRows(ctx context.Context, worker, database, action string, n int64) {
	m.rows.Add(ctx, n, metric.WithAttributes(attribute.String("worker", worker), attribute.String("database", database),
		attribute.String("action", action)))
}

func (m *metrics) addJob(ctx context.Context, kind, outcome string) {
	m.jobs.Add(ctx, 1, metric.WithAttributes(attribute.String("kind", kind), attribute.String("outcome", outcome)))
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

// observe registers the gauges: they are read when somebody asks, from figures at most backlogAge old.
func (m *metrics) observe(s *Service) error {
	pending, err1 := m.meter.Int64ObservableGauge("maintenance.backlog.pending", metric.WithDescription("What waits, deferred included."))
	age, err2 := m.meter.Float64ObservableGauge("maintenance.backlog.oldest.age", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest that waits, 0 when nothing does."))
	held, err3 := m.meter.Int64ObservableGauge("maintenance.lease.held", metric.WithDescription("1 while anybody holds the lease."))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	registration, err := m.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		for _, w := range s.workers {
			for i, p := range s.look(ctx, w) {
				d := w.homes(s)[i]
				labels := metric.WithAttributes(attribute.String("worker", w.name), attribute.String("database", d.Name))
				if p.err == nil {
					o.ObserveInt64(held, countHeld(p.leases), metric.WithAttributes(attribute.String("name", w.leaseName(d))))
				}
				if p.known {
					o.ObserveInt64(pending, p.backlog.Pending, labels)
					o.ObserveFloat64(age, ageOf(p.backlog).Seconds(), labels)
				}
			}
		}
		return nil
	}, pending, age, held)
	m.registration = registration
	return err
}

func (m *metrics) stop() error { return m.registration.Unregister() }

func ageOf(b repo.Backlog) time.Duration {
	if b.OldestAt.IsZero() {
		return 0
	}
	return max(0, b.ReadAt.Sub(b.OldestAt))
}

func countHeld(leases []Lease) (n int64) {
	for _, l := range leases {
		if !l.Expired {
			n++
		}
	}
	return n
}

package service

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/service/status"
)

// gauges are the instruments that a scrape reads: of workers, fires, jobs and databases.
type gauges struct {
	meter metric.Meter
	// all are the instruments to register, errs the errors of creating them.
	all  []metric.Observable
	errs []error

	// Counts of items, partitions and tables, by worker and database.
	pending, due, dead, partitions, untracked metric.Int64ObservableGauge
	held, reachable                           metric.Int64ObservableGauge
	// Ages in seconds. limit is a duration in seconds, success a Unix time.
	age, measured, heldFor                            metric.Float64ObservableGauge
	running, limit, failing, success, paused, overdue metric.Float64ObservableGauge
	unsuccessful, jobs, connections, connectionsMax   metric.Int64ObservableGauge
	jobsOverdue, load                                 metric.Float64ObservableGauge
	// Totals since the start of the process. waited is in seconds.
	waits  metric.Int64ObservableCounter
	waited metric.Float64ObservableCounter
}

// number creates an integer gauge without a unit. newGauges reports its error.
func (g *gauges) number(name, description string) metric.Int64ObservableGauge {
	i, err := g.meter.Int64ObservableGauge("maintenance."+name, metric.WithDescription(description))
	g.all, g.errs = append(g.all, i), append(g.errs, err)
	return i
}

// seconds creates a gauge with the unit s.
func (g *gauges) seconds(name, description string) metric.Float64ObservableGauge {
	i, err := g.meter.Float64ObservableGauge("maintenance."+name, metric.WithUnit("s"), metric.WithDescription(description))
	g.all, g.errs = append(g.all, i), append(g.errs, err)
	return i
}

// ratio creates a fractional gauge without a unit.
func (g *gauges) ratio(name, description string) metric.Float64ObservableGauge {
	i, err := g.meter.Float64ObservableGauge("maintenance."+name, metric.WithDescription(description))
	g.all, g.errs = append(g.all, i), append(g.errs, err)
	return i
}

// newGauges creates all gauges and counters that a scrape reads. The error joins those of all
// instruments.
func newGauges(meter metric.Meter) (*gauges, error) {
	g := &gauges{meter: meter}
	g.pending = g.number("backlog.pending", "Pending items, including deferred ones.")
	g.due = g.number("backlog.due", "Due items.")
	g.dead = g.number("backlog.dead", "Dead or held items.")
	g.age = g.seconds("backlog.oldest.age", "Age of the oldest pending item, 0 if none.")
	g.measured = g.seconds("backlog.measured.age", "Age of the backlog figures.")
	g.partitions = g.number("backlog.partitions", "Partitions of the queue of deleted parents.")
	g.untracked = g.number("untracked.parents", "Parent tables of loose foreign keys from which deletions are "+
		"not recorded.")
	g.held = g.number("lease.held", "1 while the lease is held.")
	g.heldFor = g.seconds("lease.held.duration", "Time since the current holder acquired the lease, 0 if the lease is free.")
	g.reachable = g.number("database.reachable", "1 if the database is reachable and writable.")
	g.running = g.seconds("run.age", "Age of the current run, 0 if none.")
	g.limit = g.seconds("run.limit", "Time limit of runs, for workers with a time limit.")
	g.failing = g.seconds("failing", "Time since the first failure after the last success, 0 if "+
		"the last run did not fail.")
	g.success = g.seconds("last.success.timestamp", "End of the last run that succeeded, as a Unix time.")
	g.paused = g.seconds("paused", "Age of the current pause, 0 if none.")
	g.overdue = g.seconds("fires.overdue", "Age of the oldest fire that no scheduler has claimed, "+
		"0 if none.")
	g.unsuccessful = g.number("fires.unsuccessful", "Number of fires that failed, were missed or found the "+
		"lease held since the last success on any database. Only the newest 100 fires count.")
	g.jobs = g.number("queue.jobs", "Jobs that have not succeeded, by state.")
	g.load = g.ratio("load.excess", "Highest ratio of load to limit, 0 if no load exceeds its "+
		"limit. Missing while the load cannot be measured.")
	g.jobsOverdue = g.seconds("queue.oldest.age", "Time since the oldest due job became due, 0 "+
		"if none.")
	g.connections = g.number("pool.connections", "Open connections, by state.")
	g.connectionsMax = g.number("pool.connections.max", "Maximum number of open connections.")
	var err1, err2 error
	g.waits, err1 = meter.Int64ObservableCounter("maintenance.pool.waits", metric.WithDescription("Number of waits for a connection."))
	g.waited, err2 = meter.Float64ObservableCounter("maintenance.pool.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("Time spent waiting for a connection."))
	g.all, g.errs = append(g.all, g.waits, g.waited), append(g.errs, err1, err2)
	return g, errors.Join(g.errs...)
}

// observe registers the gauges. A scrape reads them from figures at most [run.BacklogAge] old.
func (s *Service) observe() error {
	g, err := newGauges(s.Metrics.Meter)
	if err != nil {
		return err
	}
	known := &figures{}
	s.gauges, err = s.Metrics.Meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		var wait sync.WaitGroup
		places := make([][]status.Database, len(s.Workers))
		for i, w := range s.Workers {
			wait.Go(func() { places[i] = s.ReadDatabases(ctx, w) })
		}
		wait.Go(func() { known.read(ctx, s) })
		for _, d := range s.Databases {
			wait.Go(func() {
				if ratio, seen := s.Loads.Ratio(ctx, d); seen {
					o.ObserveFloat64(g.load, ratio, metric.WithAttributes(attribute.String("database", d.Name)))
				}
			})
		}
		wait.Wait()
		at := gaugesAt{g, o}
		at.places(s, places, known)
		at.figures(s, known)
		at.pools(s)
		return nil
	}, g.all...)
	return err
}

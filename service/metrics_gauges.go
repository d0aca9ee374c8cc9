package service

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo"
)

// gauges are read when somebody asks, of what has no state of being paused, failing or switched off: the databases.
type gauges struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error

	pending, due, dead, partitions, held, reachable  metric.Int64ObservableGauge
	age, measured, heldFor                           metric.Float64ObservableGauge
	atWork, limit, failing, success, paused, overdue metric.Float64ObservableGauge
	unsuccessful, jobs, connections, connectionsMax  metric.Int64ObservableGauge
	jobsOverdue                                      metric.Float64ObservableGauge
	waits                                            metric.Int64ObservableCounter
	waited                                           metric.Float64ObservableCounter
}

func (g *gauges) number(name, description string) metric.Int64ObservableGauge {
	i, err := g.meter.Int64ObservableGauge("maintenance."+name, metric.WithDescription(description))
	g.all, g.errs = append(g.all, i), append(g.errs, err)
	return i
}

func (g *gauges) seconds(name, description string) metric.Float64ObservableGauge {
	i, err := g.meter.Float64ObservableGauge("maintenance."+name, metric.WithUnit("s"), metric.WithDescription(description))
	g.all, g.errs = append(g.all, i), append(g.errs, err)
	return i
}

func newGauges(meter metric.Meter) (*gauges, error) {
	g := &gauges{meter: meter}
	g.pending = g.number("backlog.pending", "What waits, deferred included.")
	g.due = g.number("backlog.due", "What waits and may be worked now.")
	g.dead = g.number("backlog.dead", "What has been given up, or needs somebody to decide.")
	g.age = g.seconds("backlog.oldest.age", "Age of the oldest that waits, 0 when nothing does.")
	g.measured = g.seconds("backlog.measured.age", "Age of the figures of the backlog.")
	g.partitions = g.number("backlog.partitions", "Partitions of the queue of deleted parents.")
	g.held = g.number("lease.held", "1 while anybody holds the lease.")
	g.heldFor = g.seconds("lease.held.duration", "For how long the lease has been held by whoever holds it now, 0 when nobody does.")
	g.reachable = g.number("database.reachable", "1 if the database answers this process and can be written to.")
	g.atWork = g.seconds("run.age", "For how long the run at work has been so, 0 when none is.")
	g.limit = g.seconds("run.limit", "Time limit of runs, for workers that have one.")
	g.failing = g.seconds("failing", "For how long runs have failed without a success in between, 0 when the last one did not.")
	g.success = g.seconds("last.success.timestamp", "End of the last run that succeeded, as a Unix time.")
	g.paused = g.seconds("paused", "For how long a pause has been in force, 0 when none is.")
	g.overdue = g.seconds("fires.overdue", "For how long the oldest fire has waited for any scheduler, 0 when none does.")
	g.unsuccessful = g.number("fires.unsuccessful", "Fires since the last success that failed, were missed or found the lease held, of the newest 100.")
	g.jobs = g.number("queue.jobs", "Deferred jobs that have not ended well, by state.")
	g.jobsOverdue = g.seconds("queue.oldest.age", "For how long the oldest job has been due, 0 when none is.")
	g.connections = g.number("pool.connections", "Open connections, by state.")
	g.connectionsMax = g.number("pool.connections.max", "Connections that may be open.")
	var err1, err2 error
	g.waits, err1 = meter.Int64ObservableCounter("maintenance.pool.waits", metric.WithDescription("How often a connection had to be waited for."))
	g.waited, err2 = meter.Float64ObservableCounter("maintenance.pool.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("For how long connections were waited for."))
	g.all, g.errs = append(g.all, g.waits, g.waited), append(g.errs, err1, err2)
	return g, errors.Join(g.errs...)
}

// observe registers the gauges: they are read when somebody asks, from figures at most backlogAge old.
func (m *metrics) observe(s *Service) error {
	g, err := newGauges(m.meter)
	if err != nil {
		return err
	}
	known := &figures{}
	m.registration, err = m.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		var wait sync.WaitGroup
		places, told := make([][]place, len(s.workers)), false
		for i, w := range s.workers {
			wait.Go(func() { places[i] = s.look(ctx, w) })
		}
		wait.Go(func() { told = known.read(ctx, s) })
		wait.Wait()
		at := gaugesAt{g, o}
		at.places(s, places)
		if told {
			at.figures(s, known)
		}
		at.pools(s)
		return nil
	}, g.all...)
	return err
}

func (m *metrics) stop() error { return m.registration.Unregister() }

// gaugesAt writes the gauges of one reading.
type gaugesAt struct {
	*gauges
	metric.Observer
}

func (g gaugesAt) places(s *Service, all [][]place) {
	reachable := map[string]bool{}
	for i, w := range s.workers {
		for j, p := range all[i] {
			d := w.homes(s)[j]
			worker, database := attribute.String("worker", w.name), attribute.String("database", d.Name)
			labels := metric.WithAttributes(worker, database)
			answers, seen := reachable[d.Name]
			reachable[d.Name] = p.err == nil && (answers || !seen)
			if p.err == nil {
				name := metric.WithAttributes(attribute.String("name", w.leaseName(d)))
				g.ObserveInt64(g.held, countHeld(p.leases), name)
				g.ObserveFloat64(g.heldFor, heldFor(p.leases).Seconds(), name, labels)
			}
			if p.known {
				g.backlog(p, w.databases != nil, labels)
			}
		}
	}
	for name, answers := range reachable {
		n := int64(0)
		if answers {
			n = 1
		}
		g.ObserveInt64(g.reachable, n, metric.WithAttributes(attribute.String("database", name)))
	}
}

func (g gaugesAt) backlog(p place, partitioned bool, labels metric.MeasurementOption) {
	g.ObserveInt64(g.pending, p.backlog.Pending, labels)
	g.ObserveInt64(g.due, p.backlog.Due, labels)
	g.ObserveInt64(g.dead, p.backlog.Dead, labels)
	g.ObserveFloat64(g.age, ageOf(p.backlog).Seconds(), labels)
	g.ObserveFloat64(g.measured, time.Since(p.measuredAt).Seconds(), labels)
	if partitioned {
		g.ObserveInt64(g.partitions, int64(p.backlog.Partitions), labels)
	}
}

func (g gaugesAt) figures(s *Service, f *figures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		labels := metric.WithAttributes(attribute.String("worker", w.Worker))
		g.ObserveFloat64(g.paused, w.Paused.Seconds(), labels)
		g.ObserveFloat64(g.overdue, overdue(w).Seconds(), labels)
		g.ObserveInt64(g.unsuccessful, w.Unsuccessful, labels)
	}
	for _, r := range f.runs {
		database := r.Database
		if database == "" {
			database = mainDatabase
		}
		labels := metric.WithAttributes(attribute.String("worker", r.Worker), attribute.String("database", database))
		g.ObserveFloat64(g.atWork, r.AtWork.Seconds(), labels)
		g.ObserveFloat64(g.failing, r.Failing.Seconds(), labels)
		if !r.LastSuccess.IsZero() {
			g.ObserveFloat64(g.success, float64(r.LastSuccess.UnixMilli())/1000, labels)
		}
		if i := slices.IndexFunc(s.workers, func(w *worker) bool { return w.name == r.Worker }); !s.workers[i].untimed {
			limit, _ := s.workers[i].maxRuntime(database, f.flags)
			g.ObserveFloat64(g.limit, limit.Seconds(), labels)
		}
	}
	g.queue(s, f.jobs)
}

// queue shows the kinds that this process knows: others are of older or newer versions.
func (g gaugesAt) queue(s *Service, all []repo.JobFigures) {
	states := gaugeStates()
	for _, kind := range s.JobKinds() {
		counts, oldest := map[string]int64{}, time.Duration(0)
		for _, f := range all {
			if f.Kind == kind {
				counts[states[f.State]] += f.Jobs
				oldest = max(oldest, f.Overdue)
			}
		}
		for _, state := range []string{"waiting", "scheduled", "retryable", "running", "discarded"} {
			g.ObserveInt64(g.jobs, counts[state], metric.WithAttributes(attribute.String("kind", kind), attribute.String("state", state)))
		}
		g.ObserveFloat64(g.jobsOverdue, oldest.Seconds(), metric.WithAttributes(attribute.String("kind", kind)))
	}
}

func (g gaugesAt) pools(s *Service) {
	for _, d := range s.databases {
		for _, p := range d.PoolFigures() {
			role := "primary"
			if p.Replica {
				role = "replica"
			}
			labels := metric.WithAttributes(attribute.String("database", d.Name), attribute.String("role", role))
			g.ObserveInt64(g.connections, p.Used, labels, metric.WithAttributes(attribute.String("state", "used")))
			g.ObserveInt64(g.connections, p.Idle, labels, metric.WithAttributes(attribute.String("state", "idle")))
			g.ObserveInt64(g.connectionsMax, p.Max, labels)
			g.ObserveInt64(g.waits, p.Waits, labels)
			g.ObserveFloat64(g.waited, p.Waited.Seconds(), labels)
		}
	}
}

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

// heldFor is by the host's clock.
func heldFor(leases []Lease) (longest time.Duration) {
	for _, l := range leases {
		if !l.Expired {
			longest = max(longest, time.Since(l.AcquiredAt))
		}
	}
	return longest
}

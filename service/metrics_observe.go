package service

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/schedule"
	"github.com/caretaker-go/caretaker/service/status"
)

// gaugesAt writes the gauges of one reading.
type gaugesAt struct {
	*gauges
	metric.Observer
}

// places observes leases and backlogs, by worker and database. A database that does not answer has
// no lease gauges. reachable is 1 only if no worker found the database unreachable.
func (g gaugesAt) places(s *Service, all [][]status.Database, f *figures) {
	reachable := map[string]bool{}
	for i, w := range s.Workers {
		for j, p := range all[i] {
			d := w.LeaseDatabases(s.Runner)[j]
			worker, database := attribute.String("worker", w.Name), attribute.String("database", d.Name)
			labels := metric.WithAttributes(worker, database)
			answers, seen := reachable[d.Name]
			reachable[d.Name] = p.Err == nil && (answers || !seen)
			if !f.shown(w) {
				continue
			}
			if p.Err == nil {
				name := metric.WithAttributes(attribute.String("name", w.LeaseName(d)))
				g.ObserveInt64(g.held, countHeld(p.Leases), name)
				g.ObserveFloat64(g.heldFor, heldFor(p.Leases).Seconds(), name, labels)
			}
			if p.Known {
				g.backlog(p, w.Databases != nil, labels)
			}
			if p.Known && p.Backlog.TrackingKnown {
				g.ObserveInt64(g.untracked, int64(p.Backlog.Untracked), metric.WithAttributes(database))
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

// backlog observes the backlog of a worker in one database. Workers with several databases also
// have the number of partitions.
func (g gaugesAt) backlog(p status.Database, partitioned bool, labels metric.MeasurementOption) {
	g.ObserveInt64(g.pending, p.Backlog.Pending, labels)
	g.ObserveInt64(g.due, p.Backlog.Due, labels)
	g.ObserveInt64(g.dead, p.Backlog.Dead, labels)
	g.ObserveFloat64(g.age, ageOf(p.Backlog).Seconds(), labels)
	g.ObserveFloat64(g.measured, time.Since(p.MeasuredAt).Seconds(), labels)
	if partitioned {
		g.ObserveInt64(g.partitions, int64(p.Backlog.Partitions), labels)
	}
}

// figures observes the values read from main: pauses, overdue fires and runs. It holds f.mu. Run
// limits are missing if the feature flags could not be read.
func (g gaugesAt) figures(s *Service, f *figures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		labels := metric.WithAttributes(attribute.String("worker", w.Worker))
		g.ObserveFloat64(g.paused, w.Paused.Seconds(), labels)
		overdue, _ := schedule.Overdue(w.Cron, w.AccountedUntil, w.Now)
		g.ObserveFloat64(g.overdue, overdue.Seconds(), labels)
		g.ObserveInt64(g.unsuccessful, w.Unsuccessful, labels)
	}
	for _, r := range f.runs {
		database := r.Database
		if database == "" {
			database = run.MainDatabase
		}
		labels := metric.WithAttributes(attribute.String("worker", r.Worker), attribute.String("database", database))
		g.ObserveFloat64(g.running, r.Running.Seconds(), labels)
		g.ObserveFloat64(g.failing, r.Failing.Seconds(), labels)
		if !r.LastSuccess.IsZero() {
			g.ObserveFloat64(g.success, float64(r.LastSuccess.UnixMilli())/1000, labels)
		}
		if i := slices.IndexFunc(s.Workers, func(w *run.Worker) bool { return w.Name == r.Worker }); !s.Workers[i].NoTimeLimit && f.flags != nil {
			limit, _ := s.Workers[i].MaxRuntime(database, f.flags)
			g.ObserveFloat64(g.limit, limit.Seconds(), labels)
		}
	}
	if f.jobs != nil {
		g.queue(s, f.jobs)
	}
}

// queue writes the kinds that this process knows. Other kinds are from older or newer versions.
func (g gaugesAt) queue(s *Service, all []jobqueue.Count) {
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

// pools observes the connection pools of this process, primaries and replicas. It sends no query.
func (g gaugesAt) pools(s *Service) {
	for _, d := range s.Databases {
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

// ageOf returns the age of the oldest item when the backlog was read. It is 0 without an item.
func ageOf(b control.Backlog) time.Duration {
	if b.OldestAt.IsZero() {
		return 0
	}
	return max(0, b.ReadAt.Sub(b.OldestAt))
}

// countHeld returns the number of leases that have not expired.
func countHeld(leases []run.Lease) (n int64) {
	for _, l := range leases {
		if !l.Expired {
			n++
		}
	}
	return n
}

// heldFor uses the host's clock.
func heldFor(leases []run.Lease) (longest time.Duration) {
	for _, l := range leases {
		if !l.Expired {
			longest = max(longest, time.Since(l.AcquiredAt))
		}
	}
	return longest
}

package status

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/load"
)

// DatabaseSample has the highest figures of a database in one step of the last day.
type DatabaseSample = control.DatabaseSample

// ChangedRows counts the rows that the runs of a worker changed in one step.
type ChangedRows = control.ChangedRows

// DatabaseFigures are the current figures of a database, over all workers that are used.
type DatabaseFigures struct {
	Name string
	// Err is set if the database does not answer now.
	Err error
	// Backlog is the sum of the workers' backlogs. Known is false if one of them is unknown, or no
	// worker that is used works on the database.
	Backlog Backlog
	Known   bool
	// Load has each limit that is set. LoadKnown is false if the load cannot be read.
	Load      []load.Measure
	LoadKnown bool
}

// DatabaseStatus returns the current figures of all databases. The backlogs are those of a reading
// of all workers. Databases that do not answer come first, then those with the largest backlogs.
func (r *Reporter) DatabaseStatus(ctx context.Context, workers []Worker) []DatabaseFigures {
	all := make([]DatabaseFigures, len(r.runner.Databases))
	run.EachDatabase(ctx, r.runner.Databases, func(ctx context.Context, i int, d *repo.Database) {
		all[i] = DatabaseFigures{Name: d.Name, Err: d.StillWritable(ctx)}
		all[i].Load, all[i].LoadKnown = r.runner.Loads.Measures(ctx, d)
	})
	read := map[string]int{}
	for _, w := range workers {
		if w.NotUsed != "" {
			continue
		}
		for _, place := range w.places {
			f := &all[slices.IndexFunc(all, func(f DatabaseFigures) bool { return f.Name == place.Name })]
			f.Known = (f.Known || read[f.Name] == 0) && !place.unknown()
			f.Backlog, f.Err = addBacklogs(f.Backlog, place.Backlog), cmp.Or(f.Err, place.Err)
			read[f.Name]++
		}
	}
	slices.SortStableFunc(all, func(a, b DatabaseFigures) int {
		if (a.Err == nil) == (b.Err == nil) {
			return cmp.Compare(b.Backlog.Pending, a.Backlog.Pending)
		} else if a.Err != nil {
			return -1
		}
		return 1
	})
	return all
}

// sampleOf returns a sample with the known figures of a database.
func (r *Reporter) sampleOf(f DatabaseFigures) DatabaseSample {
	s := DatabaseSample{Database: f.Name}
	if f.Known {
		oldest := 0.0
		if !f.Backlog.OldestAt.IsZero() {
			oldest = max(0, time.Since(f.Backlog.OldestAt).Seconds())
		}
		s.Pending, s.Oldest = &f.Backlog.Pending, &oldest
	}
	for _, m := range f.Load {
		if s.Load == nil || m.Ratio > *s.Load {
			s.Load = &m.Ratio
		}
	}
	at := slices.IndexFunc(r.runner.Databases, func(d *repo.Database) bool { return d.Name == f.Name })
	if times := r.runner.Databases[at].TakeTimes(); times.Statements > 0 {
		p50, p99 := times.P50.Seconds(), times.P99.Seconds()
		s.P50, s.P99 = &p50, &p99
	}
	return s
}

// SampleStep is the time between two samples of a database.
const SampleStep = 2 * time.Hour

// DatabaseSamples returns the samples of the last day by database, oldest first.
func (r *Reporter) DatabaseSamples(ctx context.Context) (map[string][]DatabaseSample, error) {
	all, err := r.runner.Main.History.DatabaseSamples(ctx, SampleStep)
	byName := map[string][]DatabaseSample{}
	for _, s := range all {
		byName[s.Database] = append(byName[s.Database], s)
	}
	return byName, err
}

// ChangedRows returns the rows changed by the runs of the last 24 hours by worker, the oldest step
// first.
func (r *Reporter) ChangedRows(ctx context.Context) (map[string][]ChangedRows, error) {
	all, err := r.runner.Main.History.ChangedRows(ctx, SampleStep)
	byWorker := map[string][]ChangedRows{}
	for _, c := range all {
		byWorker[c.Worker] = append(byWorker[c.Worker], c)
	}
	return byWorker, err
}

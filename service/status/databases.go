package status

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run/load"
)

// DatabaseSample has the figures of a database at a moment of the last day.
type DatabaseSample = control.DatabaseSample

// ChangedRows counts the rows that the runs of a worker changed in one step.
type ChangedRows = control.ChangedRows

// DatabaseFigures are the current figures of a database, over all workers that are used here.
type DatabaseFigures struct {
	Name string
	// Err is set if the database does not answer now.
	Err error
	// Backlog is the sum of the workers' backlogs. Known is false if one of them is unknown, or no
	// worker that is used here works on the database.
	Backlog Backlog
	Known   bool
	// Load has each limit that is set. LoadKnown is false if the load cannot be read.
	Load      []load.Measure
	LoadKnown bool
}

// DatabaseStatus reads the current figures of all databases in parallel, in the configured order.
func (r *Reporter) DatabaseStatus(ctx context.Context) ([]DatabaseFigures, error) {
	all := make([]DatabaseFigures, len(r.runner.Databases))
	at := map[string]*DatabaseFigures{}
	var wait sync.WaitGroup
	for i, d := range r.runner.Databases {
		all[i] = DatabaseFigures{Name: d.Name}
		at[d.Name] = &all[i]
		wait.Go(func() {
			all[i].Load, all[i].LoadKnown = r.runner.Loads.Measures(ctx, d)
			all[i].Err = d.StillWritable(ctx)
		})
	}
	found, failed := make([][]Database, len(r.runner.Workers)), make([]error, len(r.runner.Workers))
	for i, w := range r.runner.Workers {
		wait.Go(func() {
			var why string
			if why, failed[i] = r.dispatcher.NotUsed(ctx, w); failed[i] == nil && why == "" {
				found[i] = r.ReadDatabases(ctx, w)
			}
		})
	}
	wait.Wait()
	for _, databases := range found {
		for _, d := range databases {
			at[d.Name].Known = errors.Join(failed...) == nil
		}
	}
	for _, databases := range found {
		for _, d := range databases {
			f := at[d.Name]
			f.Known = f.Known && d.Known && d.Err == nil
			partitions := f.Backlog.Partitions + d.Backlog.Partitions
			f.Backlog = addBacklogs(f.Backlog, d.Backlog)
			f.Backlog.Partitions = partitions
			if d.Err != nil {
				f.Err = d.Err
			}
		}
	}
	return all, nil
}

// sampleDatabases stores the current figures of all databases in main.
func (r *Reporter) sampleDatabases(ctx context.Context) error {
	all, err := r.DatabaseStatus(ctx)
	if err != nil {
		return err
	}
	samples := make([]DatabaseSample, len(all))
	for i, f := range all {
		samples[i] = sampleOf(f, r.runner.Databases[i])
	}
	return r.runner.Main.History.SampleDatabases(ctx, samples)
}

// sampleOf returns a sample with the known figures of a database.
func sampleOf(f DatabaseFigures, d *repo.Database) DatabaseSample {
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
	if times := d.TakeTimes(); times.Statements > 0 {
		p50, p99 := times.P50.Seconds(), times.P99.Seconds()
		s.P50, s.P99 = &p50, &p99
	}
	return s
}

// SampleStep is the time between two points of a chart.
const SampleStep = 2 * time.Hour

// DatabaseSamples returns the samples of the last day by database, oldest first. Each sample has
// the highest values of its step.
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

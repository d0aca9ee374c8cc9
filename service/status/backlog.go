package status

import (
	"context"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
)

// Backlog is the remaining work of a worker, as in the message of that name.
type Backlog = control.Backlog

// BacklogSample is the highest backlog of a worker in one step of the last day.
type BacklogSample = control.BacklogSample

// BacklogStep is the time between two samples of a backlog.
const BacklogStep = 30 * time.Minute

// SampleBacklogs adds the current backlog of each worker and the figures of each database to the
// samples in main. All replicas show the same charts, and a restart loses nothing. Call it once a
// minute. Workers that are not used, or have a database that does not answer, are skipped.
func (r *Reporter) SampleBacklogs(ctx context.Context) error {
	for _, w := range r.runner.Workers {
		for _, d := range w.LeaseDatabases(r.runner) {
			r.runner.Backlogs.Renew(w, d)
		}
	}
	workers, err := r.Status(ctx, "")
	if err != nil {
		return err
	}
	var samples []BacklogSample
	for _, w := range workers {
		if w.NotUsed == "" && !slices.ContainsFunc(w.places, Database.unknown) {
			samples = append(samples, BacklogSample{
				Worker: w.Worker, Pending: w.Backlog.Pending, Due: w.Backlog.Due,
				Deferred: w.Backlog.Deferred, Dead: w.Backlog.Dead,
			})
		}
	}
	history := r.runner.Main.History
	if err := history.SampleBacklogs(ctx, BacklogStep, samples); err != nil {
		return err
	}
	figures := r.DatabaseStatus(ctx, workers)
	ofDatabases := make([]DatabaseSample, len(figures))
	for i, f := range figures {
		ofDatabases[i] = r.sampleOf(f)
	}
	return history.SampleDatabases(ctx, SampleStep, ofDatabases)
}

// BacklogSamples returns the samples of the last day by worker, oldest first.
func (r *Reporter) BacklogSamples(ctx context.Context) (map[string][]BacklogSample, error) {
	all, err := r.runner.Main.History.BacklogSamples(ctx, BacklogStep)
	byWorker := map[string][]BacklogSample{}
	for _, sample := range all {
		byWorker[sample.Worker] = append(byWorker[sample.Worker], sample)
	}
	return byWorker, err
}

// addBacklogs returns the sum of two backlogs. Its oldest item is the older of both. AtLeast is
// set if either is only a lower limit.
func addBacklogs(a, b Backlog) Backlog {
	sum := Backlog{
		Pending: a.Pending + b.Pending, Due: a.Due + b.Due, Deferred: a.Deferred + b.Deferred,
		Dead: a.Dead + b.Dead, AtLeast: a.AtLeast || b.AtLeast, OldestAt: a.OldestAt,
		Untracked: a.Untracked + b.Untracked, Partitions: a.Partitions + b.Partitions,
	}
	if sum.OldestAt.IsZero() || (!b.OldestAt.IsZero() && b.OldestAt.Before(sum.OldestAt)) {
		sum.OldestAt = b.OldestAt
	}
	return sum
}

package status

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
)

// Backlog is the remaining work of a worker, as in the message of that name.
type Backlog = control.Backlog

// BacklogSample is the backlog of a worker at one moment of the last day.
type BacklogSample = control.BacklogSample

// backlogStep is the time between two points of a backlog curve.
const backlogStep = 4 * time.Minute

// SampleBacklogs stores the current backlog of each worker and the figures of each database in
// main. All replicas show the same charts, and a restart loses nothing. Call it once a minute. The
// first sample of a worker in a minute wins. Workers that are not used here, or have a database that
// does not answer, are skipped.
func (r *Reporter) SampleBacklogs(ctx context.Context) error {
	var samples []BacklogSample
	for _, w := range r.runner.Workers {
		if why, err := r.dispatcher.NotUsed(ctx, w); err != nil || why != "" {
			continue
		}
		var sum Backlog
		known := true
		for _, d := range w.LeaseDatabases(r.runner) {
			r.runner.Backlogs.Renew(w, d)
		}
		for _, p := range r.ReadDatabases(ctx, w) {
			known = known && p.Known && p.Err == nil
			sum = addBacklogs(sum, p.Backlog)
		}
		if known {
			samples = append(samples, BacklogSample{
				Worker: w.Name, Pending: sum.Pending, Due: sum.Due, Deferred: sum.Deferred, Dead: sum.Dead,
			})
		}
	}
	if len(samples) > 0 {
		if err := r.runner.Main.History.SampleBacklogs(ctx, samples); err != nil {
			return err
		}
	}
	return r.sampleDatabases(ctx)
}

// BacklogSamples returns the samples of the last day by worker, oldest first, four minutes apart.
// Each sample is the highest of its four minutes.
func (r *Reporter) BacklogSamples(ctx context.Context) (map[string][]BacklogSample, error) {
	all, err := r.runner.Main.History.BacklogSamples(ctx, backlogStep)
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
		Untracked: a.Untracked + b.Untracked,
	}
	if sum.OldestAt.IsZero() || (!b.OldestAt.IsZero() && b.OldestAt.Before(sum.OldestAt)) {
		sum.OldestAt = b.OldestAt
	}
	return sum
}

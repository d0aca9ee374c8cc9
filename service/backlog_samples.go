package service

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
)

// BacklogSample is the backlog of a worker at one moment of the last day.
type BacklogSample = control.BacklogSample

// backlogStep is the time between two points of a backlog curve.
const backlogStep = 4 * time.Minute

// SampleBacklogs stores the current backlogs in main: all replicas show the same curve, and a
// restart loses nothing. Call it once a minute. A sample that main already has for this minute
// wins. Workers that are not used here, or have a database that does not answer, are skipped.
func (s *Service) SampleBacklogs(ctx context.Context) error {
	var samples []BacklogSample
	for _, w := range s.Workers {
		if why, err := s.NotUsed(ctx, w); err != nil || why != "" {
			continue
		}
		var sum Backlog
		known := true
		for _, d := range w.LeaseDatabases(s.Runner) {
			s.Backlogs.Renew(w, d)
		}
		for _, p := range s.readBacklogs(ctx, w) {
			known = known && p.Known && p.err == nil
			sum = addBacklogs(sum, p.Backlog)
		}
		if known {
			samples = append(samples, BacklogSample{
				Worker: w.Name, Pending: sum.Pending, Due: sum.Due, Deferred: sum.Deferred, Dead: sum.Dead,
			})
		}
	}
	if len(samples) == 0 {
		return nil
	}
	return s.Main.History.SampleBacklogs(ctx, samples)
}

// BacklogSamples returns the samples of the last day by worker, oldest first, four minutes apart.
// Each sample is the highest of its four minutes.
func (s *Service) BacklogSamples(ctx context.Context) (map[string][]BacklogSample, error) {
	all, err := s.Main.History.BacklogSamples(ctx, backlogStep)
	byWorker := map[string][]BacklogSample{}
	for _, sample := range all {
		byWorker[sample.Worker] = append(byWorker[sample.Worker], sample)
	}
	return byWorker, err
}

package service

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
)

// BacklogSample is a worker's backlog at a moment of the last day.
type BacklogSample = control.BacklogSample

// backlogStep is how far apart the points of a backlog's curve are.
const backlogStep = 4 * time.Minute

// SampleBacklogs keeps the backlogs as they are now, in main, so that all replicas show the same curve and a restart loses
// none of it. To be called once a minute; what else is known of that minute already wins. A worker that is not used here, or
// has a database that does not answer, is left out.
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

// BacklogSamples are those of the last day, by worker, the oldest first, four minutes apart; each is the highest of its
// time.
func (s *Service) BacklogSamples(ctx context.Context) (map[string][]BacklogSample, error) {
	all, err := s.Main.History.BacklogSamples(ctx, backlogStep)
	byWorker := map[string][]BacklogSample{}
	for _, sample := range all {
		byWorker[sample.Worker] = append(byWorker[sample.Worker], sample)
	}
	return byWorker, err
}

package service

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo"
)

// beginWorker lets the counters of a worker that is used exist from the start, so that the first event is an increase of
// something.
func (s *Service) beginWorker(ctx context.Context, w *worker) {
	m := s.metrics
	for _, d := range w.homes(s.Runner) {
		at := metric.WithAttributes(attribute.String("worker", w.name), attribute.String("database", d.Name))
		m.leasesLost.Add(ctx, 0, at)
		m.overLimit.Add(ctx, 0, at)
		m.endedEarly.Add(ctx, 0, at)
		m.addRest(ctx, w.name, d.Name, 0)
		for _, state := range []string{repo.RunSucceeded, repo.RunFailed, repo.RunCancelled, repo.RunSkipped} {
			m.runs.Add(ctx, 0, at, metric.WithAttributes(attribute.String("outcome", state)))
		}
		for _, action := range w.actions {
			m.addRows(ctx, w.name, d.Name, action, 0)
		}
		if w.sli {
			beginSLI(ctx, m, d.Name)
		}
	}
	for _, outcome := range []string{repo.FireRan, repo.FireSkipped, repo.FireMissed} {
		m.addFires(ctx, w.name, outcome, 0)
	}
}

// beginJobs does the same for the jobs.
func (s *Service) beginJobs() {
	m := s.metrics
	ctx := context.Background()
	for kind := range s.jobs {
		for _, outcome := range []string{JobSucceeded, JobSkipped, JobRefused, JobRestored, JobFailed, JobDiscarded} {
			m.jobs.Add(ctx, 0, metric.WithAttributes(attribute.String("kind", kind), attribute.String("outcome", outcome)))
		}
		for _, reason := range []string{reasonPaused, reasonThrottled} {
			m.jobsHeld.Add(ctx, 0, metric.WithAttributes(attribute.String("kind", kind), attribute.String("reason", reason)))
		}
	}
}

func beginSLI(ctx context.Context, m *metrics, database string) {
	for _, is := range []bool{false, true} {
		at := metric.WithAttributes(attribute.String("database", database))
		m.errorRate.Add(ctx, 0, at, metric.WithAttributes(attribute.String("error", strconv.FormatBool(is))))
		m.apdex.Add(ctx, 0, at, metric.WithAttributes(attribute.String("success", strconv.FormatBool(is))))
	}
}

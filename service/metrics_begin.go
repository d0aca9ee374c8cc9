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
func (m *metrics) beginWorker(ctx context.Context, s *Service, w *worker) {
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
			m.beginSLI(ctx, d.Name)
		}
	}
	for _, outcome := range []string{repo.FireRan, repo.FireSkipped, repo.FireMissed} {
		m.addFires(ctx, w.name, outcome, 0)
	}
}

// beginJobs does the same for the jobs.
func (m *metrics) beginJobs(s *Service) {
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

func (m *metrics) beginSLI(ctx context.Context, database string) {
	for _, is := range []bool{false, true} {
		at := metric.WithAttributes(attribute.String("database", database))
		m.errorRate.Add(ctx, 0, at, metric.WithAttributes(attribute.String("error", strconv.FormatBool(is))))
		m.apdex.Add(ctx, 0, at, metric.WithAttributes(attribute.String("success", strconv.FormatBool(is))))
	}
}

package service

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// beginWorker creates the counters of a used worker at 0, so that the first event is an increase.
func (s *Service) beginWorker(ctx context.Context, w *run.Worker) {
	m := s.Metrics
	for _, d := range w.LeaseDatabases(s.Runner) {
		at := metric.WithAttributes(attribute.String("worker", w.Name), attribute.String("database", d.Name))
		m.LeasesLost.Add(ctx, 0, at)
		m.OverLimit.Add(ctx, 0, at)
		m.EndedEarly.Add(ctx, 0, at)
		m.AddPause(ctx, w.Name, d.Name, 0)
		for _, state := range []string{control.RunSucceeded, control.RunFailed, control.RunCancelled, control.RunSkipped} {
			m.Runs.Add(ctx, 0, at, metric.WithAttributes(attribute.String("outcome", state)))
		}
		for _, action := range w.Actions {
			m.AddRows(ctx, w.Name, d.Name, action, 0)
		}
		if w.Sli {
			beginSLI(ctx, m, d.Name)
		}
	}
	for _, outcome := range []string{control.FireRan, control.FireSkipped, control.FireMissed} {
		m.AddFires(ctx, w.Name, outcome, 0)
	}
}

// beginJobs creates the counters of jobs at 0.
func (s *Service) beginJobs() {
	m := s.Metrics
	ctx := context.Background()
	for _, kind := range s.JobKinds() {
		for _, outcome := range []string{job.Succeeded, job.Skipped, job.Refused, job.Restored, job.Failed, job.Discarded} {
			m.Jobs.Add(ctx, 0, metric.WithAttributes(attribute.String("kind", kind), attribute.String("outcome", outcome)))
		}
		for _, reason := range []string{fault.ReasonPaused, fault.ReasonThrottled} {
			m.JobsHeld.Add(ctx, 0, metric.WithAttributes(attribute.String("kind", kind), attribute.String("reason", reason)))
		}
	}
}

// beginSLI adds 0 to the SLI counters of a database. The series then exist before the first run
// ends.
func beginSLI(ctx context.Context, m *run.Metrics, database string) {
	for _, is := range []bool{false, true} {
		at := metric.WithAttributes(attribute.String("database", database))
		m.ErrorRate.Add(ctx, 0, at, metric.WithAttributes(attribute.String("error", strconv.FormatBool(is))))
		m.Apdex.Add(ctx, 0, at, metric.WithAttributes(attribute.String("success", strconv.FormatBool(is))))
	}
}

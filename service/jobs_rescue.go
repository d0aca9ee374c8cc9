package service

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// RescueJobs lets jobs be tried again whose attempt began longer ago than any attempt lasts: the process that worked
// them is gone.
func (s *Service) RescueJobs(ctx context.Context, lasts time.Duration) error {
	rescued, err := s.main.RescueJobs(ctx, lasts)
	for _, r := range rescued {
		s.reportRescued(ctx, r)
	}
	return err
}

// reportRescued is what reportJob is for an attempt whose process lives. Its span takes the place of the one that has died
// with the process, and ends now: until when it was at work nobody knows.
func (s *Service) reportRescued(ctx context.Context, r repo.RescuedJob) {
	ctx, span := s.startJob(ctx, JobRequest{
		ID: r.ID, Kind: r.Kind, Attempt: r.Attempt, AttemptedAt: r.AttemptedAt, RunID: r.RunID, TraceParent: r.TraceParent, QueuedAt: r.QueuedAt,
	}, trace.WithTimestamp(r.AttemptedAt))
	defer span.End(trace.WithTimestamp(r.RescuedAt))
	result, outcome := JobResult{Reason: repo.ReasonProcessGone, Attributes: withArguments(nil, r.Args)}, JobFailed
	if r.Discarded {
		outcome = JobDiscarded
	}
	tellJob(ctx, result, outcome, &reasonedError{result.Reason, "the process that worked it has died or lost the database"})
	s.logger.ErrorContext(ctx, "job rescued, the process that worked it is gone", append([]any{
		"kind", r.Kind, "job_id", r.ID, "outcome", outcome, "reason", result.Reason, "attempt", r.Attempt, "run_id", r.RunID,
	}, result.Attributes...)...)
	s.metrics.addJob(ctx, r.Kind, outcome)
}

package service

import (
	"context"
	"errors"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// closeAbandoned closes the runs of processes that died. Their ends are told here, because nobody else is left to tell
// them: a run that died is logged, counted and traced once, by the process that closes it. A process that only stood
// still, and comes back, tells its end again, as it was.
func (s *Service) closeAbandoned(ctx context.Context) error {
	runs, err := s.main.CloseAbandonedRuns(ctx)
	for _, run := range runs {
		s.tellAbandoned(ctx, run)
	}
	return err
}

// tellAbandoned is what report is for a run whose process lives.
func (s *Service) tellAbandoned(ctx context.Context, run Run) {
	ctx, span := s.abandonedSpan(ctx, run)
	took := run.FinishedAt.Sub(run.StartedAt)
	span.End(trace.WithTimestamp(run.FinishedAt))
	log := s.logger.With("worker", run.Worker, "run_id", run.ID, "database", homeOf(run), "dry_run", run.DryRun)
	log.Log(ctx, slog.LevelError, runFinished, append(runLine(run, took), "died_on", run.Replica, "error", errors.New(run.Error))...)
	s.metrics.addRun(ctx, run, took)
	// One of a worker that only other versions know has no more to be told.
	if w, err := s.worker(run.Worker); err == nil && w.finished != nil {
		w.finished(ctx, run)
	}
}

// abandonedSpan is the span of a run in its trace, in the place and with the id of the one that has died with its process.
// It is a root: which span was the caller's nobody knows any more.
func (s *Service) abandonedSpan(ctx context.Context, run Run) (context.Context, trace.Span) {
	var of trace.SpanContextConfig
	of.TraceID, _ = trace.TraceIDFromHex(run.TraceID) // none is on record: a trace of its own
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(of))
	ctx, span := s.startRunSpan(ctx, run.ID, trace.WithTimestamp(run.StartedAt), trace.WithAttributes(
		attribute.String("maintenance.worker", run.Worker), attribute.String("maintenance.run_id", run.ID),
		attribute.String("maintenance.database", homeOf(run)), attribute.String("maintenance.trigger", run.Trigger),
		attribute.Bool("maintenance.dry_run", run.DryRun), attribute.Int64("maintenance.lease_epoch", run.LeaseEpoch),
		attribute.String("maintenance.outcome", run.State), attribute.String("maintenance.reason", run.Reason),
		attribute.String("maintenance.stopped_because", run.Error), attribute.String("error.type", run.Reason)))
	span.SetAttributes(countAttributes(run.Counts)...)
	span.SetStatus(codes.Error, run.Error)
	return ctx, span
}

// homeOf is the database of a run in the log, in metrics and in traces: main of a worker that takes no turns.
func homeOf(run Run) string {
	if run.Database == "" {
		return mainDatabase
	}
	return run.Database
}

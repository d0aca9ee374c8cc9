package run

import (
	"context"
	"errors"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// CloseAbandoned closes the runs of processes that died. Each is logged, counted and traced once, by
// the process that closes it: nobody else is left to do so.
func (r *Runner) CloseAbandoned(ctx context.Context) error {
	runs, err := r.Main.CloseAbandonedRuns(ctx)
	for _, run := range runs {
		if w, unknown := r.Worker(run.Worker); unknown == nil && !run.DryRun {
			r.recount(ctx, w, &run)
		}
		r.recordAbandoned(ctx, run)
	}
	return err
}

// recount completes the counts of a run whose end was not clean. They were saved up to a quarter of a
// second before its process died, and nobody has heard of a commit whose answer was lost. A database that
// does not answer leaves them as they are, until a later run settles them.
func (r *Runner) recount(ctx context.Context, w *Worker, run *Run) (complete bool) {
	// Whoever asked may be gone: nobody closes the run a second time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaseMargin)
	defer cancel()
	var found []repo.RunCount
	var err error
	for _, d := range r.Databases {
		some, failed := d.RunCounts(ctx, run.ID)
		found, err = append(found, some...), errors.Join(err, failed)
	}
	if run.Recount(found, func(count string) bool { return w.Actions[count] != "" }) {
		err = errors.Join(err, r.Main.SaveRecount(ctx, *run))
	}
	if err != nil {
		r.Logger.WarnContext(ctx, "counts of the run not completed", "run_id", run.ID, "error", err)
	}
	return err == nil
}

// settle completes the counts of a run whose end is on record. A clean end deletes its journal, and settles
// the runs before it that had no clean end: they cannot commit anything any more.
func (r *Runner) settle(ctx context.Context, x *Execution, run *Run) {
	counted := false
	for _, n := range run.Counts {
		counted = counted || n > 0
	}
	switch {
	case run.Unsettled:
		r.recount(ctx, x.Worker, run)
		x.Report(func(r *Run) { *r = *run })
		return
	case run.DryRun || !counted && !run.EarlierUnsettled:
		return
	case x.Database != r.Main:
		_ = x.Database.ForgetRunCounts(ctx, run.ID)
	}
	// What fails here is settled by the next run.
	unsettled, _ := r.Main.UnsettledRuns(ctx, *run)
	for _, before := range unsettled {
		if !r.recount(ctx, x.Worker, &before) {
			continue
		}
		for _, d := range r.Databases {
			_ = d.ForgetRunCounts(ctx, before.ID)
		}
	}
}

// recordAbandoned is what report is for a run whose process lives.
func (r *Runner) recordAbandoned(ctx context.Context, run Run) {
	ctx, span := r.abandonedSpan(ctx, run)
	took := run.FinishedAt.Sub(run.StartedAt)
	span.End(trace.WithTimestamp(run.FinishedAt))
	log := r.Logger.With("worker", run.Worker, "run_id", run.ID, "database", databaseOrMain(run), "dry_run", run.DryRun)
	log.Log(ctx, slog.LevelError, runFinished, append(lineOf(run, took), "died_on", run.Replica, "error", errors.New(run.Error))...)
	r.Metrics.addRun(ctx, run, took)
	// One of a worker that only other versions know needs nothing more.
	if w, err := r.Worker(run.Worker); err == nil && w.Sli {
		r.Metrics.addSLI(ctx, run)
	}
}

// correct is what report is for a run that others have closed and reported meanwhile: its process had
// only stood still, or could not reach main. Its record has the real end now, but is not counted again.
func (*Runner) correct(ctx context.Context, x *Execution, run Run, err error) {
	Withhold(x.Span)
	x.Span.End()
	x.Log.WarnContext(ctx, "the run had been taken for dead, its record is corrected", x.endLine(run, err)...)
}

// endLine is what the log says of an end that has no line of its own.
func (x *Execution) endLine(run Run, err error) []any {
	attrs := lineOf(run, x.ended.Sub(x.started))
	if err != nil {
		attrs = append(attrs, "error", err)
	}
	return attrs
}

// Withhold keeps a span from being sent: another process has sent one with its id, or it says nothing.
func Withhold(span trace.Span) { span.SetAttributes(attribute.Bool("maintenance.withheld", true)) }

// abandonedSpan is the span of a run in its trace, in the place and with the id of the one that has died with its process.
// It is a root: which span was the caller's nobody knows any more.
func (r *Runner) abandonedSpan(ctx context.Context, run Run) (context.Context, trace.Span) {
	var of trace.SpanContextConfig
	of.TraceID, _ = trace.TraceIDFromHex(run.TraceID) // none is on record: a trace of its own
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(of))
	ctx, span := r.startRunSpan(ctx, run, trace.WithTimestamp(run.StartedAt))
	span.SetAttributes(attribute.Int64("maintenance.lease_epoch", run.LeaseEpoch))
	SetTexts(span, "maintenance.outcome", run.State, "maintenance.reason", run.Reason,
		"maintenance.stopped_because", run.Error, "error.type", run.Reason)
	span.SetAttributes(countAttributes(run.Counts)...)
	span.SetStatus(codes.Error, run.Error)
	return ctx, span
}

// databaseOrMain is the database of a run in the log, in metrics and in traces: main of a worker that
// has no turn by database.
func databaseOrMain(run Run) string {
	if run.Database == "" {
		return MainDatabase
	}
	return run.Database
}

package job

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// reportLost is what reportJob is for an attempt whose process lives: the next one reports it. Its span takes the place
// of the one that has died with the process. Until when it was at work nobody knows.
func (p *Pool) reportLost(ctx context.Context, next Request) {
	lost := next
	lost.Name, lost.Attempt = next.Lost.Name, next.Attempt-1
	ctx, span := p.startJob(ctx, lost, trace.WithTimestamp(next.Lost.Began))
	defer span.End(trace.WithTimestamp(next.Lost.RescuedAt))
	result := Result{Reason: repo.ReasonProcessGone, Attributes: withArguments(nil, lost.Args)}
	recordJob(ctx, result, Failed, &run.ReasonedError{Reason: result.Reason, Text: repo.ProcessGoneText})
	p.Logger.ErrorContext(ctx, "job rescued, the process that worked it is gone", append([]any{
		"kind", lost.Kind, "job_id", lost.ID, "outcome", Failed, "reason", result.Reason,
		"attempt", lost.Attempt, "run_id", lost.RunID,
	}, result.Attributes...)...)
	p.Metrics.AddJob(ctx, lost.Kind, Failed)
}

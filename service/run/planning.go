package run

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/service/run/plan"
)

// Planning returns a dry run for a plan: it is not recorded, has no lease and logs nothing.
func (r *Runner) Planning(ctx context.Context, p *plan.Plan) *Execution {
	return &Execution{
		Database: p.Main(), DryRun: true, MaxRuntime: plan.MaxTime, Worker: &Worker{}, metrics: r.Metrics,
		Log:    slog.New(slog.DiscardHandler),
		Tracer: r.Tracer, Span: trace.SpanFromContext(ctx), loads: r.Loads, started: time.Now(),
		stopRequested: ctx, requestStop: func(error) {},
		run: Run{Counts: map[string]int64{}}, found: candidates{digest: sha256.New()},
	}
}

// Planner adds the effects of a job or worker to a plan. A refusal goes into the plan: no error.
type Planner func(ctx context.Context, x *Execution, p *plan.Plan) error

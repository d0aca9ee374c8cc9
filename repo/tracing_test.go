package repo_test

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/caretaker-go/caretaker/repo"
)

// traced calls do in a span, and returns those below it. Its test must not run in parallel with others: the provider is the
// process's.
func traced(t *testing.T, url string, do func(context.Context, *repo.Database)) []sdktrace.ReadOnlySpan {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	defer otel.SetTracerProvider(before)
	d := open(t, url)
	ctx, span := otel.Tracer("test").Start(context.Background(), "test")
	ctx, _ = repo.WithScope(ctx)
	do(ctx, d)
	if len(spans.Ended()) == 0 {
		t.Fatal("no spans")
	}
	span.End()
	return spans.Ended()[:len(spans.Ended())-1]
}

func TestTrace_WithoutAConnectionTheDatabaseIsUnreachable(t *testing.T) {
	spans := traced(t, "postgres://127.0.0.1:1/nothing", func(ctx context.Context, d *repo.Database) {
		if _, err := d.Now(ctx); err == nil {
			t.Error("no error")
		}
	})
	for _, s := range spans {
		all := attribute.NewSet(s.Attributes()...)
		if class, _ := all.Value("error.type"); class.AsString() != "unreachable" || s.Status().Description != repo.ErrUnreachable.Error() {
			t.Errorf("%s: error.type %q, status %+v", s.Name(), class.AsString(), s.Status())
		}
	}
}

func TestDeletionTraces_AreThoseOfJobsThatHaveSentTheUser(t *testing.T) {
	t.Parallel()
	b := installed(t)
	b.exec(`INSERT INTO maintenance.river_job (kind, args, metadata, max_attempts, queue, state, finalized_at)
		SELECT 'delete_user', '{"user_id": 7}', jsonb_build_object('processed_by', 'the ' || outcome, 'outcome', outcome), 25, 'default', 'completed', now()
		FROM unnest(ARRAY['succeeded', 'refused', 'skipped']) outcome`)
	got, err := b.DeletionTraces(t.Context(), 7, repo.Limits{Statement: 5 * time.Second, Lock: time.Second})
	if err != nil || len(got) != 1 || got[0] != "the succeeded" {
		t.Errorf("%v, %v", got, err)
	}
}

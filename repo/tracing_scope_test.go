package repo_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func attributeOf(attributes []attribute.KeyValue, key string) string {
	value, _ := attributeSet(attributes).Value(attribute.Key(key))
	return value.String()
}

func attributeSet(attributes []attribute.KeyValue) *attribute.Set {
	set := attribute.NewSet(attributes...)
	return &set
}

// batch does in a batch what its span is named after, and says whether the batch is a span.
func batch(ctx context.Context, took time.Duration, reason string, do func(context.Context)) bool {
	ctx, span := otel.Tracer("test").Start(ctx, "batch")
	defer span.End()
	ctx, scope := repo.WithBatch(ctx)
	if do != nil {
		do(ctx)
	}
	return scope.EndBatch(took, reason == "failed", reason)
}

func TestScope_OfManyOperationsTheFirstAreSpansAndAllAreCounted(t *testing.T) {
	url := databases.Clone(t, servicetest.Migrated("ci"))
	var counted []attribute.KeyValue
	spans := traced(t, url, func(ctx context.Context, d *repo.Database) {
		for range 50 {
			if err := d.Look(ctx); err != nil {
				t.Error(err)
			}
		}
		counted = repo.ScopeAttributes(ctx)
	})
	if len(spans) != 10 {
		t.Errorf("%d spans", len(spans))
	}
	if all, omitted := attributeOf(counted, "maintenance.statements"), attributeOf(counted, "maintenance.statements_omitted"); all != "50" || omitted != "40" {
		t.Errorf("%s statements, %s left out", all, omitted)
	}
}

func TestScope_ALaterBatchIsASpanIfItOrWhatIsBelowItFailedOrWasSlowOrHasANewReason(t *testing.T) {
	url := databases.Clone(t, servicetest.Migrated("ci"))
	var shown []int
	spans := traced(t, url, func(ctx context.Context, d *repo.Database) {
		for i := range 100 {
			took, reason := time.Millisecond, ""
			do := func(ctx context.Context) {
				if err := d.Look(ctx); err != nil {
					t.Error(err)
				}
			}
			switch i {
			case 10:
				took = time.Minute
			case 20, 21:
				reason = "held"
			case 30, 31:
				reason = "failed"
			case 40:
				do = func(ctx context.Context) {
					if err := d.Fail(ctx); err == nil {
						t.Error("no error")
					}
				}
			}
			if batch(ctx, took, reason, do) {
				shown = append(shown, i)
			}
		}
		counted := repo.ScopeAttributes(ctx)
		for key, want := range map[string]string{
			"maintenance.batches": "100", "maintenance.batches_omitted": "92", "maintenance.batches_failed": "2", "maintenance.statements": "100",
		} {
			if got := attributeOf(counted, key); got != want {
				t.Errorf("%s is %s, want %s", key, got, want)
			}
		}
	})
	if want := []int{0, 1, 2, 10, 20, 30, 31, 40}; !slices.Equal(shown, want) {
		t.Errorf("batches %v, want %v", shown, want)
	}
	failed := slices.DeleteFunc(spans, func(s sdktrace.ReadOnlySpan) bool { return attributeOf(s.Attributes(), "error.type") == "" })
	if len(failed) != 1 || attributeOf(failed[0].Attributes(), "error.type") != "22012" {
		t.Errorf("failed %v", failed)
	}
}

func TestScope_HoweverMuchFailsThereAreSixtySpans(t *testing.T) {
	url := databases.Clone(t, servicetest.Migrated("ci"))
	shown := 0
	spans := traced(t, url, func(ctx context.Context, d *repo.Database) {
		for range 100 {
			for range 12 {
				_ = d.Fail(ctx)
			}
			if batch(ctx, time.Minute, "failed", func(ctx context.Context) {
				for range 12 {
					_ = d.Fail(ctx)
				}
			}) {
				shown++
			}
		}
	})
	operations := len(slices.DeleteFunc(spans, func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "batch" }))
	if all := operations + shown; all > 60 || all < 40 {
		t.Errorf("%d spans, %d of them batches", all, shown)
	}
}

func TestTrace_AnOperationWithoutAScopeHasNoSpan(t *testing.T) {
	url := databases.Clone(t, servicetest.Migrated("ci"))
	spans := traced(t, url, func(ctx context.Context, d *repo.Database) {
		bare := trace.ContextWithSpan(t.Context(), trace.SpanFromContext(ctx))
		if err := d.Look(bare); err != nil { //nolint:contextcheck // one without a scope
			t.Error(err)
		}
		if err := d.Look(ctx); err != nil {
			t.Error(err)
		}
	})
	if len(spans) != 1 || spans[0].Name() != "look" {
		t.Errorf("got %v", spans)
	}
}

func TestTrace_TheClockIsCountedAndHasNoSpan(t *testing.T) {
	url := databases.Clone(t, servicetest.Migrated("ci"))
	spans := traced(t, url, func(ctx context.Context, d *repo.Database) {
		if _, err := d.Now(ctx); err != nil {
			t.Error(err)
		}
		if got := attributeOf(repo.ScopeAttributes(ctx), "maintenance.statements"); got != "1" {
			t.Errorf("%s statements", got)
		}
		_ = d.Fail(ctx)
	})
	if len(spans) != 1 || spans[0].Name() != "fail" {
		t.Errorf("got %v", spans)
	}
}

func TestTrace_ACancelledOperationHasNotFailed(t *testing.T) {
	url := databases.Clone(t, servicetest.Migrated("ci"))
	spans := traced(t, url, func(ctx context.Context, d *repo.Database) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := d.Look(ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	if len(spans) != 1 || attributeOf(spans[0].Attributes(), "maintenance.outcome") != "interrupted" {
		t.Errorf("got %v", spans)
	}
}

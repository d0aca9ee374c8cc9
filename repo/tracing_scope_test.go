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
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func attributeOf(attributes []attribute.KeyValue, key string) string {
	set := attribute.NewSet(attributes...)
	value, _ := set.Value(attribute.Key(key))
	return value.String()
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
	var counted []attribute.KeyValue
	spans := traced(t, databases.Clone(t, servicetest.Migrated("")), func(ctx context.Context, d *repo.Database) {
		for range 50 {
			assert.NoError(t, d.Look(ctx))
		}
		counted = repo.ScopeAttributes(ctx)
	})
	assert.That(t, len(spans) == 10, "%d spans", len(spans))
	all, omitted := attributeOf(counted, "maintenance.statements"), attributeOf(counted, "maintenance.statements_omitted")
	assert.That(t, all == "50" && omitted == "40", "%s statements, %s left out", all, omitted)
}

func TestScope_ALaterBatchIsASpanIfItOrWhatIsBelowItFailedOrWasSlowOrHasANewReason(t *testing.T) {
	var shown []int
	spans := traced(t, databases.Clone(t, servicetest.Migrated("")), func(ctx context.Context, d *repo.Database) {
		for i := range 100 {
			took, reason := time.Millisecond, ""
			do := func(ctx context.Context) {
				assert.NoError(t, d.Look(ctx))
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
					assert.That(t, d.Fail(ctx) != nil, "no error")
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
			assert.Equal(t, attributeOf(counted, key), want, key)
		}
	})
	want := []int{0, 1, 2, 10, 20, 30, 31, 40}
	assert.That(t, slices.Equal(shown, want), "batches %v, want %v", shown, want)
	failed := slices.DeleteFunc(spans, func(s sdktrace.ReadOnlySpan) bool { return attributeOf(s.Attributes(), "error.type") == "" })
	assert.That(t, len(failed) == 1 && attributeOf(failed[0].Attributes(), "error.type") == "22012", "failed %v", failed)
}

func TestScope_HoweverMuchFailsThereAreSixtySpans(t *testing.T) {
	shown := 0
	spans := traced(t, databases.Clone(t, servicetest.Migrated("")), func(ctx context.Context, d *repo.Database) {
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
	all := operations + shown
	assert.That(t, all <= 60 && all >= 40, "%d spans, %d of them batches", all, shown)
}

// Without a scope an operation has no span, and the clock has none, but is counted. What is cancelled has not failed.
func TestTrace_OperationsOfAScopeHaveSpans(t *testing.T) {
	spans := traced(t, databases.Clone(t, servicetest.Migrated("")), func(ctx context.Context, d *repo.Database) {
		//nolint:contextcheck // one without a scope
		assert.NoError(t, d.Look(trace.ContextWithSpan(t.Context(), trace.SpanFromContext(ctx))))
		assert.Must(d.Now(ctx))(t)
		got := attributeOf(repo.ScopeAttributes(ctx), "maintenance.statements")
		assert.That(t, got == "1", "%s statements", got)
		assert.NoError(t, d.Look(ctx))
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := d.Look(ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	assert.That(t, len(spans) == 2 && spans[0].Name() == "look" && attributeOf(spans[1].Attributes(), "maintenance.outcome") == "interrupted",
		"got %v", spans)
}

// traced calls do in a span, and returns those below it. Its test must not run in parallel with others: the provider is the
// process's.
func traced(t *testing.T, url string, do func(context.Context, *repo.Database)) []sdktrace.ReadOnlySpan {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	defer otel.SetTracerProvider(before)
	d := servicetest.Open(t, url)
	ctx, span := otel.Tracer("test").Start(context.Background(), "test")
	ctx, _ = repo.WithScope(ctx)
	do(ctx, d)
	assert.Require(t, len(spans.Ended()) != 0, "no spans")
	span.End()
	return spans.Ended()[:len(spans.Ended())-1]
}

func TestTrace_WithoutAConnectionTheDatabaseIsUnreachable(t *testing.T) {
	spans := traced(t, "postgres://127.0.0.1:1/nothing", func(ctx context.Context, d *repo.Database) {
		_, err := d.Now(ctx)
		assert.That(t, err != nil, "no error")
	})
	for _, s := range spans {
		all := attribute.NewSet(s.Attributes()...)
		if class, _ := all.Value("error.type"); class.AsString() != "unreachable" || s.Status().Description != repo.ErrUnreachable.Error() {
			t.Errorf("%s: error.type %q, status %+v", s.Name(), class.AsString(), s.Status())
		}
	}
}

func TestDeletionTraces_AreThoseOfJobsThatHaveSentTheUser(t *testing.T) {
	b := installed(servicetest.Parallel(t))
	b.exec(`INSERT INTO maintenance.river_job (kind, args, metadata, max_attempts, queue, state, finalized_at)
		SELECT 'delete_user', '{"user_id": 7}', jsonb_build_object('processed_by', 'the ' || outcome, 'outcome', outcome), 25, 'default', 'completed', now()
		FROM unnest(ARRAY['succeeded', 'refused', 'skipped']) outcome`)
	got, err := b.DeletionTraces(t.Context(), 7, repo.Limits{Statement: 5 * time.Second, Lock: time.Second})
	assert.That(t, err == nil && len(got) == 1 && got[0] == "the succeeded", "%v, %v", got, err)
}

const (
	aParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	aTrace  = `SELECT set_config('caretaker.traceparent', '` + aParent + `', false)`
	noted   = `SELECT coalesce(string_agg(concat_ws(':', q.primary_key_value, t.traceparent), ' ' ORDER BY q.id), '-')
		FROM maintenance.record_traces t LEFT JOIN loose_foreign_keys_deleted_records q ON q.partition = t.partition AND q.id = t.record_id`
)

func TestRecordTraces_GoWithTheirRecords(t *testing.T) {
	b := installed(t)
	ctx := context.Background()
	if has, err := b.HasRecordTraces(ctx); has || err != nil {
		t.Errorf("%v, %v before any deletion", has, err)
	}
	b.exec("CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 4); " + aTrace)
	b.track("p")
	b.exec("DELETE FROM p")
	if has, err := b.HasRecordTraces(ctx); !has || err != nil {
		t.Errorf("%v, %v, want that there are traces", has, err)
	}
	queue := assert.Must(b.DeletedRecords(ctx))(t)
	limits := repo.Limits{Statement: 5 * time.Second, Lock: time.Second}
	page, err := b.LoadRecords(ctx, queue, repo.RecordPage{Parent: "public.p", Limit: 10}, limits)
	records := page.Records
	assert.Require(t, err == nil && len(records) == 4, "%d records, %v", len(records), err)
	parents, err := b.RecordTraces(ctx, records, 16, limits)
	assert.That(t, err == nil && len(parents) == 1 && parents[0] == aParent, "%v, %v, want the one span", parents, err)
	fence := b.acquire("a", time.Minute).Fence
	assert.Must(b.RemoveRecords(ctx, by(fence), queue, records[:2]))(t)
	b.want(noted, "3:"+aParent+" 4:"+aParent)
	dead := repo.RecordFailure{Record: records[2], Isolated: true, Definition: "c.p_id -> p", SQLState: "P0001", Message: "raise_exception"}
	for range repo.DeadAfter {
		if _, _, err := b.FailRecords(ctx, by(fence), queue, []repo.RecordFailure{dead}); err != nil {
			t.Fatal(err)
		}
	}
	b.want(noted, "4:"+aParent)
	b.exec("DELETE FROM loose_foreign_keys_deleted_records; ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT 9")
	b.exec("CREATE TABLE gitlab_partitions_dynamic.nine PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (9)")
	if queue, err = b.DeletedRecords(ctx); err != nil {
		t.Fatal(err)
	}
	dropped := assert.Must(b.DropPartitions(ctx, by(fence), queue))(t)
	assert.That(t, len(dropped) == 1, "dropped %v", dropped)
	b.want("SELECT count(*) FROM maintenance.record_traces", "0")
}

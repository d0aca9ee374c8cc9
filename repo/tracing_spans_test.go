package repo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/lfk"
	"github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func attributeOf(attributes []attribute.KeyValue, key string) string {
	set := attribute.NewSet(attributes...)
	value, _ := set.Value(attribute.Key(key))
	return value.String()
}

// batches does n batches, and returns those that are spans. do returns whether it failed, and why.
func batches(ctx context.Context, n int, do func(ctx context.Context, i int) (failed bool, reason string)) (shown []int) {
	for i := range n {
		inside := spans.WithBatch(ctx)
		failed, reason := do(inside, i)
		if spans.SetReason(inside, failed, reason); spans.EndBatch(inside) {
			shown = append(shown, i)
		}
	}
	return shown
}

func TestSpans_OfMuchTheFirstAndWhatIsNotableAreShownAndAllIsCounted(t *testing.T) {
	url := databases.Clone(t, servicetest.Migrated(""))
	look := func(ctx context.Context, d *repo.Database) []int {
		for range 50 {
			_ = d.Look(ctx)
		}
		return nil
	}
	mixed := func(ctx context.Context, d *repo.Database) []int {
		return batches(ctx, 100, func(ctx context.Context, i int) (failed bool, reason string) {
			_ = d.Look(ctx)
			switch i / 10 {
			case 5:
				return true, "FAILED"
			case 6:
				reason = "HELD"
			}
			if i == 80 {
				_ = d.Fail(ctx)
			}
			return false, reason
		})
	}
	fail := func(ctx context.Context, d *repo.Database) []int {
		return batches(ctx, 100, func(ctx context.Context, _ int) (failed bool, reason string) {
			for range 12 {
				_ = d.Fail(ctx)
			}
			return true, "FAILED"
		})
	}
	for name, c := range map[string]struct {
		do func(ctx context.Context, d *repo.Database) (shown []int)
		// operations that are spans, and batches.
		operations     int
		shown, counted string
	}{
		"operations": {look, 8, "[]", " statements=50 statements_omitted=42"},
		"batches": {
			mixed, 16, "[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 50 51 52 53 54 55 56 57 58 59 60 80]",
			" batches=100 batches_omitted=73 batches_failed=10 statements=101 statements_omitted=85",
		},
		"failures": {
			fail, 55, "[0 1 2 3 4]", " batches=100 batches_omitted=95 batches_failed=100 statements=1200 statements_omitted=1145",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var shown []int
			var counted string
			recorder := traced(t, url, func(ctx context.Context, d *repo.Database) {
				shown = c.do(ctx, d)
				for _, a := range spans.Attributes(ctx) {
					if a.Value.Type() == attribute.INT64 {
						counted += " " + strings.TrimPrefix(string(a.Key), "maintenance.") + "=" + a.Value.String()
					}
				}
			})
			assert.Equal(t, len(recorder), c.operations, "operations that are spans")
			assert.Equal(t, fmt.Sprint(shown), c.shown, "batches that are spans")
			assert.Equal(t, counted, c.counted, "counted")
		})
	}
}

// Outside of a run, a job or a call an operation has no span, and the clock has none, but is
// counted. A cancelled operation has not failed.
func TestTrace_OperationsOfARunHaveSpans(t *testing.T) {
	recorder := traced(t, databases.Clone(t, servicetest.Migrated("")), func(ctx context.Context, d *repo.Database) {
		//nolint:contextcheck // outside of it
		assert.NoError(t, d.Look(trace.ContextWithSpan(t.Context(), trace.SpanFromContext(ctx))))
		assert.Must(d.Now(ctx))(t)
		got := attributeOf(spans.Attributes(ctx), "maintenance.statements")
		assert.That(t, got == "1", "%s statements", got)
		assert.NoError(t, d.Look(ctx))
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := d.Look(ended); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	assert.That(t, len(recorder) == 2 && recorder[0].Name() == "look" && attributeOf(recorder[1].Attributes(), "maintenance.outcome") == "interrupted",
		"got %v", recorder)
}

// traced calls do in a span, and returns those below it. Its test must not run in parallel with others: the provider is the
// process's.
func traced(t *testing.T, url string, do func(context.Context, *repo.Database)) []sdktrace.ReadOnlySpan {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))
	defer otel.SetTracerProvider(before)
	d := servicetest.Open(t, url)
	ctx, span := otel.Tracer("test").Start(context.Background(), "test")
	do(spans.WithSpans(ctx), d)
	assert.Require(t, len(recorder.Ended()) != 0, "no spans")
	span.End()
	return recorder.Ended()[:len(recorder.Ended())-1]
}

func TestTrace_WithoutAConnectionTheDatabaseIsUnreachable(t *testing.T) {
	recorder := traced(t, "postgres://127.0.0.1:1/nothing", func(ctx context.Context, d *repo.Database) {
		_, err := d.Now(ctx)
		assert.That(t, err != nil, "no error")
	})
	for _, s := range recorder {
		all := attribute.NewSet(s.Attributes()...)
		if class, _ := all.Value("error.type"); class.AsString() != "unreachable" || s.Status().Description != dberr.ErrUnreachable.Error() {
			t.Errorf("%s: error.type %q, status %+v", s.Name(), class.AsString(), s.Status())
		}
	}
}

func TestDeletionTraces_AreThoseOfJobsThatHaveSentTheUser(t *testing.T) {
	b := installed(servicetest.Parallel(t))
	b.exec(`INSERT INTO maintenance.river_job (kind, args, metadata, max_attempts, queue, state, finalized_at)
		SELECT 'delete_user', '{"user_id": 7}', jsonb_build_object('processed_by', 'the ' || outcome, 'outcome', outcome), 25, 'default', 'completed', now()
		FROM unnest(ARRAY['succeeded', 'refused', 'skipped']) outcome`)
	got, err := b.Ghosts.DeletionTraces(t.Context(), 7, fencing.Limits{Statement: 5 * time.Second, Lock: time.Second})
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
	if has, err := b.Queue.HasRecordTraces(ctx); has || err != nil {
		t.Errorf("%v, %v before any deletion", has, err)
	}
	b.exec("CREATE TABLE p (id bigint PRIMARY KEY); INSERT INTO p SELECT generate_series(1, 4); " + aTrace)
	b.track("p")
	b.exec("DELETE FROM p")
	if has, err := b.Queue.HasRecordTraces(ctx); !has || err != nil {
		t.Errorf("%v, %v, want that there are traces", has, err)
	}
	queue := assert.Must(b.Queue.DeletedRecords(ctx))(t)
	limits := fencing.Limits{Statement: 5 * time.Second, Lock: time.Second}
	page, err := b.Queue.LoadRecords(ctx, queue, lfk.RecordPage{Parent: "public.p", Limit: 10}, limits)
	records := page.Records
	assert.Require(t, err == nil && len(records) == 4, "%d records, %v", len(records), err)
	parents, err := b.Queue.RecordTraces(ctx, records, 16, limits)
	assert.That(t, err == nil && len(parents) == 1 && parents[0] == aParent, "%v, %v, want the one span", parents, err)
	fence := b.acquire("a", time.Minute).Fence
	assert.Must(b.Queue.RemoveRecords(ctx, by(fence), queue, records[:2]))(t)
	b.want(noted, "3:"+aParent+" 4:"+aParent)
	dead := lfk.RecordFailure{Record: records[2], Isolated: true, Definition: "c.p_id -> p", SQLState: "P0001", Message: "raise_exception"}
	for range lfk.DeadAfter {
		if _, _, err := b.Queue.FailRecords(ctx, by(fence), queue, []lfk.RecordFailure{dead}); err != nil {
			t.Fatal(err)
		}
	}
	b.want(noted, "4:"+aParent)
	b.exec("DELETE FROM loose_foreign_keys_deleted_records; ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT 9")
	b.exec("CREATE TABLE gitlab_partitions_dynamic.nine PARTITION OF loose_foreign_keys_deleted_records FOR VALUES IN (9)")
	if queue, err = b.Queue.DeletedRecords(ctx); err != nil {
		t.Fatal(err)
	}
	dropped := assert.Must(b.Queue.DropPartitions(ctx, by(fence), queue))(t)
	assert.That(t, len(dropped) == 1, "dropped %v", dropped)
	b.want("SELECT count(*) FROM maintenance.record_traces", "0")
}

package telemetry

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// condensed is a tracer whose spans go through a condenser.
type condensed struct {
	trace.Tracer
	t      *testing.T
	spans  *tracetest.SpanRecorder
	filter *condenser
	clock  time.Time
}

func newCondensed(t *testing.T, quiet ...string) *condensed {
	t.Helper()
	c := &condensed{t: t, spans: tracetest.NewSpanRecorder(), clock: time.Unix(1_000_000, 0)}
	c.filter = newCondenser(c.spans, quiet)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(c.filter))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	c.Tracer = provider.Tracer("test")
	return c
}

// span is a span that took so long, with what is done in it.
func (c *condensed) span(ctx context.Context, name string, took time.Duration, do func(context.Context, trace.Span), options ...trace.SpanStartOption) {
	c.t.Helper()
	ctx, span := c.Start(ctx, name, append(options, trace.WithTimestamp(c.clock))...)
	if do != nil {
		do(ctx, span)
	}
	span.End(trace.WithTimestamp(c.clock.Add(took)))
}

// statement is a span of a client.
func (c *condensed) statement(ctx context.Context, name string, took time.Duration) {
	c.t.Helper()
	c.span(ctx, name, took, nil, trace.WithSpanKind(trace.SpanKindClient))
}

// names of the spans that got through, in the order of their ends; none may be an orphan, nothing may be left behind.
func (c *condensed) names() (names []string) {
	c.t.Helper()
	through := c.spans.Ended()
	for _, s := range through {
		names = append(names, s.Name())
		known := slices.ContainsFunc(through, func(p sdktrace.ReadOnlySpan) bool { return p.SpanContext().SpanID() == s.Parent().SpanID() })
		if s.Parent().IsValid() && !s.Parent().IsRemote() && !known {
			c.t.Errorf("%s is an orphan", s.Name())
		}
	}
	if len(c.filter.open) != 0 {
		c.t.Errorf("%d spans are still known", len(c.filter.open))
	}
	return names
}

func (c *condensed) attribute(name, key string) string {
	c.t.Helper()
	for _, s := range c.spans.Ended() {
		if s.Name() != name {
			continue
		}
		for _, a := range s.Attributes() {
			if string(a.Key) == key {
				return a.Value.String()
			}
		}
	}
	return ""
}

// shown is how many spans of a name are there for what they say, by that.
func (c *condensed) shown(name string) map[string]int {
	out := map[string]int{}
	for _, s := range c.spans.Ended() {
		for _, a := range s.Attributes() {
			if s.Name() == name && a.Key == "maintenance.shown_as" {
				out[a.Value.AsString()]++
			}
		}
	}
	return out
}

func TestCondenser_OfManyBatchesKeepsTheFirstTheSlowestAndTheFailed(t *testing.T) {
	c := newCondensed(t)
	c.span(t.Context(), "maintenance.run", time.Hour, func(ctx context.Context, _ trace.Span) {
		for i := range 1000 {
			took := time.Second
			if i == 500 || i == 600 {
				took = time.Minute
			}
			c.span(ctx, "maintenance.batch", took, func(ctx context.Context, s trace.Span) {
				s.SetAttributes(attribute.Int("n", i))
				for range 20 {
					c.statement(ctx, fmt.Sprintf("DELETE %d", i), time.Millisecond)
				}
				if i == 700 {
					s.SetStatus(codes.Error, "failed")
				}
			})
		}
	})
	count := map[string]int{}
	for _, name := range c.names() {
		count[name]++
	}
	const each = firstStatements + slowestStatements
	want := map[string]int{
		"maintenance.run": 1, "maintenance.batch": 5, "DELETE 0": each, "DELETE 1": each, "DELETE 500": each, "DELETE 600": each, "DELETE 700": each,
	}
	for name, n := range want {
		if count[name] != n {
			t.Errorf("%d of %s, want %d", count[name], name, n)
		}
	}
	if len(count) != len(want) {
		t.Errorf("got %v", count)
	}
	for key, want := range map[string]string{
		"maintenance.batches": "1000", "maintenance.batches_omitted": "995", "maintenance.statements": "20000",
		"maintenance.statements_omitted": "19970", "maintenance.statement_seconds": "20",
	} {
		if got := c.attribute("maintenance.run", key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}

func TestCondenser_ABatchWhoseStatementFailedIsShown(t *testing.T) {
	c := newCondensed(t)
	c.span(t.Context(), "maintenance.run", time.Hour, func(ctx context.Context, _ trace.Span) {
		for i := range 50 {
			c.span(ctx, "maintenance.batch", time.Second, func(ctx context.Context, _ trace.Span) {
				for j := range 50 {
					c.span(ctx, fmt.Sprintf("DELETE %d", i), time.Millisecond, func(_ context.Context, s trace.Span) {
						if i == 30 && j == 40 {
							s.SetStatus(codes.Error, "40P01")
						}
					}, trace.WithSpanKind(trace.SpanKindClient))
				}
			})
		}
	})
	if names := c.names(); !slices.Contains(names, "DELETE 30") {
		t.Errorf("got %v", names)
	}
	if got := c.shown("DELETE 30"); got["failed"] != 1 {
		t.Errorf("shown %v, want the one that failed", got)
	}
	if got := c.shown("maintenance.batch"); got["failed_below"] != 1 || got["failed"] != 0 {
		t.Errorf("shown %v, want the batch in which it failed", got)
	}
}

func TestCondenser_LinksAndReasonsKeepNoFailureOut(t *testing.T) {
	c := newCondensed(t)
	_, other := c.Start(t.Context(), "other")
	other.End()
	c.span(t.Context(), "maintenance.run", time.Hour, func(ctx context.Context, _ trace.Span) {
		for i := range 50 {
			c.span(ctx, "maintenance.batch", time.Second, func(ctx context.Context, s trace.Span) {
				s.AddLink(trace.LinkFromContext(trace.ContextWithSpan(ctx, other)))
				if i > 10 && i != 40 {
					s.SetAttributes(attribute.String("maintenance.reason", "RIGHTS_MISSING"))
				}
				if i == 40 {
					s.SetAttributes(attribute.String("maintenance.reason", "DELETING_USER_MISSING"))
				}
				if i >= 30 && i%10 == 1 {
					s.SetStatus(codes.Error, "40P01")
				}
			})
		}
	})
	c.names()
	if got, want := fmt.Sprint(c.shown("maintenance.batch")), "map[failed:2 linked:2 reason:2 slowest:2]"; got != want {
		t.Errorf("shown %s, want %s", got, want)
	}
	for key, want := range map[string]string{"maintenance.batches_failed": "2", "maintenance.batches_omitted": "40"} {
		if got := c.attribute("maintenance.run", key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
}

func TestCondenser_BatchesWithLinksAreShown(t *testing.T) {
	c := newCondensed(t)
	_, other := c.Start(t.Context(), "other")
	other.End()
	c.span(t.Context(), "maintenance.run", time.Hour, func(ctx context.Context, _ trace.Span) {
		for i := range 50 {
			c.span(ctx, "maintenance.batch", time.Second, func(ctx context.Context, s trace.Span) {
				if i == 20 {
					s.AddLink(trace.LinkFromContext(trace.ContextWithSpan(ctx, other)))
					c.statement(ctx, "linked", time.Millisecond)
				}
			})
		}
	})
	if names := c.names(); !slices.Contains(names, "linked") {
		t.Errorf("got %v", names)
	}
	if got := c.attribute("maintenance.run", "maintenance.batches_omitted"); got != "45" {
		t.Errorf("%s batches left out, want 45", got)
	}
}

func TestCondenser_ARunMayOutliveItsCaller(t *testing.T) {
	c := newCondensed(t)
	ctx, rpc := c.Start(t.Context(), "RunBatch")
	ctx, run := c.Start(ctx, "maintenance.run")
	rpc.End()
	for range 20 {
		c.statement(ctx, "DELETE", time.Millisecond)
	}
	run.End()
	if got := len(c.names()); got != 2+firstStatements+slowestStatements {
		t.Errorf("%d spans", got)
	}
}

func TestCondenser_AWithheldSpanLetsThroughWhatIsBelowIt(t *testing.T) {
	c := newCondensed(t)
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	c.span(trace.ContextWithSpanContext(t.Context(), remote), "maintenance.run", time.Second, func(ctx context.Context, s trace.Span) {
		for range 20 {
			c.statement(ctx, "DELETE", time.Millisecond)
		}
		s.SetAttributes(attribute.Bool("maintenance.withheld", true))
	})
	var names []string
	for _, s := range c.spans.Ended() {
		names = append(names, s.Name())
	}
	if len(names) != firstStatements+slowestStatements || slices.Contains(names, "maintenance.run") || len(c.filter.open) != 0 {
		t.Errorf("got %v", names)
	}
}

func TestCondenser_QuietRootsAreLeftOutUnlessTheyFail(t *testing.T) {
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	for name, test := range map[string]struct {
		ctx  context.Context
		fail bool
		want int
	}{
		"left out":                {ctx: context.Background()},
		"failed":                  {ctx: context.Background(), fail: true, want: 2},
		"part of another's trace": {ctx: trace.ContextWithSpanContext(context.Background(), remote), want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCondensed(t, "GetStatus")
			c.span(test.ctx, "GetStatus", time.Second, func(ctx context.Context, s trace.Span) {
				c.statement(ctx, "SELECT", time.Millisecond)
				if test.fail {
					s.SetStatus(codes.Error, "UNAVAILABLE")
				}
			})
			if got := c.names(); len(got) != test.want {
				t.Errorf("got %v, want %d", got, test.want)
			}
		})
	}
}

func TestStart_WithoutAnExporterSpansHaveIdsAndCostNothing(t *testing.T) {
	start(t, Config{})
	_, span := otel.Tracer("test").Start(t.Context(), "span")
	if !span.SpanContext().IsValid() || span.IsRecording() {
		t.Errorf("valid %v, recording %v", span.SpanContext().IsValid(), span.IsRecording())
	}
}

func TestCondenser_CountsAPreparationWithItsStatement(t *testing.T) {
	c := newCondensed(t)
	c.span(t.Context(), "run", 3*time.Second, func(ctx context.Context, _ trace.Span) {
		for range 2 {
			c.span(ctx, "maintenance.batch", time.Second, func(ctx context.Context, _ trace.Span) {
				c.span(ctx, "UPDATE t", time.Second, func(ctx context.Context, _ trace.Span) {
					c.statement(ctx, "PREPARE UPDATE t", time.Second)
				}, trace.WithSpanKind(trace.SpanKindClient))
			})
		}
	})
	c.names()
	for name, want := range map[string]string{"run": "2", "maintenance.batch": "1", "UPDATE t": ""} {
		if n, took := c.attribute(name, "maintenance.statements"), c.attribute(name, "maintenance.statement_seconds"); n != want || took != want {
			t.Errorf("%s: %q statements that took %q s, want %q of each", name, n, took, want)
		}
	}
}

func TestCondenser_ABatchIsNoFailureForAStatementThatFailed(t *testing.T) {
	c := newCondensed(t)
	c.span(t.Context(), "run", 3*time.Second, func(ctx context.Context, _ trace.Span) {
		for i := range 3 {
			c.span(ctx, "maintenance.batch", time.Second, func(ctx context.Context, batch trace.Span) {
				c.span(ctx, "UPDATE t", time.Second, func(_ context.Context, s trace.Span) { s.SetStatus(codes.Error, "locked") },
					trace.WithSpanKind(trace.SpanKindClient))
				if i == 2 {
					batch.SetStatus(codes.Error, "failed")
				}
			})
		}
	})
	c.names()
	if got := c.attribute("run", "maintenance.batches_failed"); got != "1" {
		t.Errorf("%s batches failed, want the one that did", got)
	}
}

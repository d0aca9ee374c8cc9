// Package spans decides which operations have a span of OpenTelemetry, and counts all of them.
package spans

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Spans limits the number of spans of a run, an attempt of a job, or a call, and counts all
// operations. One number grows with every span. Failures still get a span when usual operations no
// longer do.
//
// The decision about an operation follows its end. A batch that has the span of an operation below
// it is a span itself, so that no span misses its parent. Outside of these, operations have no
// spans.
type Spans struct {
	// run belongs to the run of a batch, otherwise it is itself. Its mutex guards all.
	run *Spans
	mu  sync.Mutex
	// number of spans of the run so far.
	number int
	// parent is the span of the run in W3C's format, "" if it is not recorded.
	parent string
	// shown: it has a span itself.
	shown bool

	// calls counts ended operations, omitted those that have no span. operations and seconds are by
	// name.
	calls, omitted int
	operations     map[string]figures
	seconds        map[string]float64
	// Of a run.
	queued                                 map[string]int
	reasons                                map[string]bool
	batches, batchesOmitted, batchesFailed int
	// Of a batch. reason is why it failed, or did not end as usual.
	began  time.Time
	counts map[string]int64
	failed bool
	reason string
}

// figures are the figures of the operations of one name.
type figures struct {
	// rows are returned or changed rows, took is the sum of durations.
	calls, rows int64
	took        time.Duration
}

// The numbers of spans up to which usual operations, slow operations or new reasons, and failures
// get further spans.
const (
	usualSpans   = 30
	notableSpans = 45
	failedSpans  = 60
)

// firstOperations of a batch, or of a run outside batches, are spans even if nothing is notable.
const firstOperations = 8

// Durations from which a span is slow. slowBatch is also the limit of most statements.
const (
	slowOperation = 250 * time.Millisecond
	slowBatch     = time.Second
)

// scope is the owner of a context's statements. It is one value of the context.
type scope struct {
	// work is their worker or kind of job, "" for bookkeeping.
	work string
	// spans counts them. nil: nothing does.
	spans *Spans
}

// scopeKey is the key of the scope in a context.
type scopeKey struct{}

// scopeOf returns the scope of a context, the zero value if it has none.
func scopeOf(ctx context.Context) scope {
	s, _ := ctx.Value(scopeKey{}).(scope)
	return s
}

// withScope returns a context with a changed copy of its scope.
func withScope(ctx context.Context, change func(*scope)) context.Context {
	s := scopeOf(ctx)
	change(&s)
	return context.WithValue(ctx, scopeKey{}, s)
}

// WithWork sets the worker or kind of job of a context's statements.
func WithWork(ctx context.Context, name string) context.Context {
	return withScope(ctx, func(s *scope) { s.work = name })
}

// WithSpans lets operations of a context have spans below its own, if that is recorded. The
// triggers of tracked tables then store that span (W3C) with the records of rows that statements of
// the context delete: the setting caretaker.traceparent.
func WithSpans(ctx context.Context) context.Context {
	s := &Spans{
		shown: true, operations: map[string]figures{}, seconds: map[string]float64{},
		queued: map[string]int{}, reasons: map[string]bool{},
	}
	if s.run = s; recording(ctx) {
		s.parent = TraceParent(ctx)
	}
	return withScope(ctx, func(in *scope) { in.spans = s })
}

// WithBatch is WithSpans for a batch of the context's run.
func WithBatch(ctx context.Context) context.Context {
	run := spansOf(ctx)
	if run == nil {
		return WithSpans(ctx)
	}
	s := &Spans{
		run: run.run, operations: map[string]figures{}, seconds: map[string]float64{},
		counts: map[string]int64{},
		began:  time.Now(), //nolint:forbidigo // a span's time is the host's
	}
	return withScope(ctx, func(in *scope) { in.spans = s })
}

// spansOf returns what counts the operations of a context, nil for none.
func spansOf(ctx context.Context) *Spans { return scopeOf(ctx).spans }

// TraceParent returns the span of a context in W3C's format, "" if it has none.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get("traceparent")
}

// TraceParentOf returns the span that triggers store, "" for none.
func TraceParentOf(ctx context.Context) string {
	if s := spansOf(ctx); s != nil {
		return s.run.parent
	}
	return ""
}

// recording reports whether the span of a context is recorded.
func recording(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }

// all returns s and the spans of its run.
func (s *Spans) all() []*Spans {
	if s == s.run {
		return []*Spans{s}
	}
	return []*Spans{s, s.run}
}

// AddSeconds adds to a duration of a context's batch and its run, and reports whether it is the
// first.
func AddSeconds(ctx context.Context, key string, d time.Duration) (first bool) {
	s := spansOf(ctx)
	if s == nil {
		return false
	}
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	first = s.seconds[key] == 0
	for _, in := range s.all() {
		in.seconds[key] += d.Seconds()
	}
	return first
}

// AddCount adds to a count of a context's batch.
func AddCount(ctx context.Context, key string, n int64) {
	if s := spansOf(ctx); s != nil && s != s.run && n != 0 {
		s.run.mu.Lock()
		defer s.run.mu.Unlock()
		s.counts[key] += n
	}
}

// SetReason sets why a context's batch has failed, or has not ended as usual.
func SetReason(ctx context.Context, failed bool, reason string) {
	if s := spansOf(ctx); s != nil && s != s.run {
		s.run.mu.Lock()
		defer s.run.mu.Unlock()
		s.failed, s.reason = failed, reason
	}
}

// show reports whether s gets n further spans, unless the run has as many as most. The caller holds
// run.mu.
func (s *Spans) show(n, most int) bool {
	if !s.shown {
		n++
	}
	if s.run.number+n > most {
		return false
	}
	s.run.number += n
	s.shown = true
	return true
}

// count counts an operation that has ended, and reports whether it is a span.
func (s *Spans) count(o *Operation, took time.Duration, failed bool) bool {
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	for kind, n := range o.queued {
		s.run.queued[kind] += n
	}
	for _, in := range s.all() {
		f := in.operations[o.name]
		in.operations[o.name] = figures{f.calls + 1, f.rows + o.Rows, f.took + took}
		in.calls++
	}
	most := usualSpans
	switch {
	case failed:
		most = failedSpans
	case took >= slowOperation:
		most = notableSpans
	case o.Routine || s.calls > firstOperations:
		most = 0
	}
	if s.show(1, most) {
		return true
	}
	for _, in := range s.all() {
		in.omitted++
	}
	return false
}

// ShouldTrace reports whether jobs queued in the transaction of a context get a span. Those of a
// dry run never do.
func ShouldTrace(ctx context.Context) bool {
	o := OperationOf(ctx)
	if o == nil || o.dryRun {
		return false
	}
	o.spans.run.mu.Lock()
	defer o.spans.run.mu.Unlock()
	return o.spans.show(1, usualSpans)
}

// EndBatch counts a context's batch, and reports whether it is a span.
func EndBatch(ctx context.Context) bool {
	s := spansOf(ctx)
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	most, fresh := usualSpans, s.reason != "" && !s.run.reasons[s.reason]
	s.run.reasons[s.reason] = true
	s.run.batches++
	switch {
	case s.failed:
		most = failedSpans
		s.run.batchesFailed++
	case fresh || time.Since(s.began) >= slowBatch: //nolint:forbidigo // as began
		most = notableSpans
	}
	if s.shown || s.show(0, most) {
		return true
	}
	s.run.batchesOmitted++
	return false
}

// Attributes returns the counts of a context.
func Attributes(ctx context.Context) (out []attribute.KeyValue) {
	s := spansOf(ctx)
	if s == nil {
		return nil
	}
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	if s.batches > 0 {
		out = append(out, attribute.Int("maintenance.batches", s.batches),
			attribute.Int("maintenance.batches_omitted", s.batchesOmitted),
			attribute.Int("maintenance.batches_failed", s.batchesFailed))
	}
	if len(s.queued) > 0 {
		var queued []string
		for _, kind := range slices.Sorted(maps.Keys(s.queued)) {
			queued = append(queued, fmt.Sprintf("%s: %d", kind, s.queued[kind]))
		}
		out = append(out, attribute.StringSlice("maintenance.queued", queued))
	}
	for key, seconds := range s.seconds {
		out = append(out, attribute.Float64(key, seconds))
	}
	for key, n := range s.counts {
		out = append(out, attribute.Int64("maintenance.count."+key, n))
	}
	if s.calls == 0 {
		return out
	}
	var took time.Duration
	for _, f := range s.operations {
		took += f.took
	}
	return append(out, attribute.Int("maintenance.statements", s.calls),
		attribute.Int("maintenance.statements_omitted", s.omitted),
		attribute.Float64("maintenance.statement_seconds", took.Seconds()),
		attribute.StringSlice("maintenance.operations", s.texts()))
}

// texts describe each operation, the longest first: calls, rows, and time.
func (s *Spans) texts() (out []string) {
	names := slices.SortedFunc(maps.Keys(s.operations), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.operations[b].took, s.operations[a].took), cmp.Compare(a, b))
	})
	for _, name := range names {
		f := s.operations[name]
		out = append(out, fmt.Sprintf("%s: %d calls, %d rows, %.3f s",
			name, f.calls, f.rows, f.took.Seconds()))
	}
	return Longest(out)
}

// Longest returns the first 20 of a list, for a span, and the number of further ones.
func Longest(texts []string) []string {
	const most = 20
	if len(texts) <= most {
		return texts
	}
	return append(texts[:most], fmt.Sprintf("and %d more", len(texts)-most))
}

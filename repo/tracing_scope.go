package repo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// Scope decides, for a run, an attempt of a job or a call, what is done below it is a span: the
// first operations, the first batches with the first operations of each, and later ones that
// failed or were slow, as long as there are not too many. All of it is counted.
//
// An operation is decided about when it has ended. A batch of which an operation is a span is one
// itself, so that no span misses its parent. Outside of any scope operations have no spans.
type Scope struct {
	// root of a batch's is that of its run; its own of others. Its mutex guards all.
	root *Scope
	mu   sync.Mutex
	// first is how many more operations are spans whatever they are, late how many later ones.
	first, late int
	// shown: the batch is a span.
	shown bool
	// operations by name, reasons of batches that have been seen.
	operations map[string]*figures
	reasons    map[string]bool
	// How many operations and batches there were, and are not spans.
	number, omitted                        int
	batches, batchesOmitted, batchesFailed int
	took                                   time.Duration
}

// figures are those of the operations of one name.
type figures struct {
	calls, rows int64
	took        time.Duration
}

// How many spans there are at most of what: together with the run, its lease, and jobs that it
// sends, some 60.
const (
	firstOperations   = 10
	firstBatches      = 3
	operationsOfBatch = 6
	lateSpans         = 22
)

// From when on a span is slow. slowBatch is also what most statements may take (bulk.StatementTime).
const (
	slowOperation = 250 * time.Millisecond
	slowBatch     = time.Second
)

// maxOperations is how many operations a span lists, those that took longest.
const maxOperations = 20

type scopeKey struct{}

// WithScope is a context in which what is done has spans, if that of the context is recorded.
func WithScope(ctx context.Context) (context.Context, *Scope) {
	s := &Scope{first: firstOperations, late: lateSpans, shown: true}
	s.operations, s.reasons = map[string]*figures{}, map[string]bool{}
	s.root = s
	return context.WithValue(ctx, scopeKey{}, s), s
}

func scopeOf(ctx context.Context) *Scope {
	s, _ := ctx.Value(scopeKey{}).(*Scope)
	return s
}

// WithBatch is WithScope for a batch of the context's run.
func WithBatch(ctx context.Context) (context.Context, *Scope) {
	run := scopeOf(ctx)
	if run == nil {
		return WithScope(ctx)
	}
	root := run.root
	root.mu.Lock()
	defer root.mu.Unlock()
	s := &Scope{root: root, operations: map[string]*figures{}}
	if root.batches++; root.batches <= firstBatches {
		s.first, s.shown = operationsOfBatch, true
	}
	return context.WithValue(ctx, scopeKey{}, s), s
}

// count counts an operation that has ended, and says whether it is a span. worth: it failed or was
// slow.
func (s *Scope) count(o *operation, took time.Duration, notable bool) bool {
	s.root.mu.Lock()
	defer s.root.mu.Unlock()
	for _, in := range s.all() {
		f := in.operations[o.name]
		if f == nil {
			f = &figures{}
			in.operations[o.name] = f
		}
		f.calls, f.rows, f.took = f.calls+1, f.rows+o.rows, f.took+took
		in.number, in.took = in.number+1, in.took+took
	}
	if (notable || !o.routine) && s.show(notable) {
		return true
	}
	for _, in := range s.all() {
		in.omitted++
	}
	return false
}

// all are the scope and that of its run.
func (s *Scope) all() []*Scope {
	if s == s.root {
		return []*Scope{s}
	}
	return []*Scope{s, s.root}
}

// show says whether there is to be one more span below the scope's; the root's mutex is held.
func (s *Scope) show(notable bool) bool {
	if s.first > 0 {
		s.first--
		return true
	}
	need := 1
	if !s.shown {
		need = 2
	}
	if !notable || s.root.late < need {
		return false
	}
	s.root.late -= need
	s.shown = true
	return true
}

// ShouldTrace says whether what is about to be done in a context is to be a span.
func ShouldTrace(ctx context.Context) bool {
	s := scopeOf(ctx)
	if s == nil || !recording(ctx) {
		return false
	}
	s.root.mu.Lock()
	defer s.root.mu.Unlock()
	return s.show(false)
}

// EndBatch counts a batch, and says whether it is a span: later ones are if they failed, were slow,
// or are the first with a reason of ending otherwise than is usual.
func (s *Scope) EndBatch(took time.Duration, failed bool, reason string) bool {
	s.root.mu.Lock()
	defer s.root.mu.Unlock()
	if failed {
		s.root.batchesFailed++
	}
	fresh := reason != "" && !s.root.reasons[reason]
	if fresh {
		s.root.reasons[reason] = true
	}
	if !s.shown && (failed || fresh || took >= slowBatch) && s.root.late > 0 {
		s.root.late--
		s.shown = true
	}
	if !s.shown {
		s.root.batchesOmitted++
	}
	return s.shown
}

// ScopeAttributes are what was counted in the scope of a context, if it has one.
func ScopeAttributes(ctx context.Context) []attribute.KeyValue {
	if s := scopeOf(ctx); s != nil {
		return s.Attributes()
	}
	return nil
}

// Attributes are what was counted.
func (s *Scope) Attributes() (out []attribute.KeyValue) {
	s.root.mu.Lock()
	defer s.root.mu.Unlock()
	if s.batches > 0 {
		out = append(out, attribute.Int("maintenance.batches", s.batches),
			attribute.Int("maintenance.batches_omitted", s.batchesOmitted),
			attribute.Int("maintenance.batches_failed", s.batchesFailed))
	}
	if s.number == 0 {
		return out
	}
	return append(out, attribute.Int("maintenance.statements", s.number),
		attribute.Int("maintenance.statements_omitted", s.omitted),
		attribute.Float64("maintenance.statement_seconds", s.took.Seconds()),
		attribute.StringSlice("maintenance.operations", s.texts()))
}

// texts say of each operation how often it was called, its rows, and its time.
func (s *Scope) texts() (out []string) {
	names := slices.SortedFunc(maps.Keys(s.operations), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.operations[b].took, s.operations[a].took), cmp.Compare(a, b))
	})
	for i, name := range names {
		if i == maxOperations {
			return append(out, fmt.Sprintf("and %d more", len(names)-i))
		}
		f := s.operations[name]
		out = append(out, fmt.Sprintf("%s: %d calls, %d rows, %.3f s",
			name, f.calls, f.rows, f.took.Seconds()))
	}
	return out
}

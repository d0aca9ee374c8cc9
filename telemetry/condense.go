package telemetry

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// condenser keeps traces readable, however much is done in them: of the many children of one kind that a span has, it
// lets through the first, the slowest, some that failed, some that say why they ended as they did, and some that are
// linked to other traces, and adds to their parent how many there were. Kinds are statements, which are all spans of
// clients, and spans of one name: batches.
//
// What it guarantees:
//
//   - A span that gets through has its parent, unless that ended first.
//   - What waits to be judged is bounded: a few children of each span that has not ended.
//   - Roots of quiet names get through only if they, or what is below them, failed.
type condenser struct {
	next  sdktrace.SpanProcessor
	quiet []string

	mu   sync.Mutex
	open map[spanID]*node
}

// How many children of one kind a span keeps. One that is several of these counts as the first of them, so that what is
// common does not keep out what is rare: every batch of an estate that is traced has links.
const (
	firstStatements, slowestStatements, failedStatements = 4, 2, 2
	firstSpans, slowestSpans, failedSpans                = 2, 2, 4
	reasonedSpans, linkedSpans                           = 4, 2
)

// reasonKey is the attribute of a span that says why it ended as it did, if that was not as usual. One span a reason is kept.
const reasonKey = "maintenance.reason"

// withheldKey is the attribute of a span that is not sent itself: another process has sent one in its place.
const withheldKey = "maintenance.withheld"

// spanID is unique among all traces.
type spanID struct {
	trace trace.TraceID
	span  trace.SpanID
}

func idOf(s trace.SpanContext) spanID { return spanID{s.TraceID(), s.SpanID()} }

// fate is what becomes of a span.
type fate int

const (
	// undecided: what waits with the span goes or stays with it.
	undecided fate = iota
	kept
	dropped
)

// node is a span that has not ended, or that waits for its parent's end.
type node struct {
	// parent is nil where this process knows none.
	parent *node
	kind   string
	// first of its kind below its parent.
	first bool
	fate  fate
	ended bool
	// failed: the span or one below it. A statement that failed below a batch does not make that one a failure.
	failed bool
	took   time.Duration
	kinds  map[string]*children
	// spans are those below it that have ended, and at last itself; they wait for its fate.
	spans []sdktrace.ReadOnlySpan
	// What was below it, and how much of that is not in the trace.
	statements, omittedStatements int
	statementTime                 time.Duration
}

// children of one kind.
type children struct {
	started, ended, omitted int
	// failed are all that did themselves, first ones too; shown are those that are kept for what they say, by that; reasons have been
	// seen.
	failed  int
	shown   map[string]int
	reasons map[string]bool
	// slowest of those that are neither first nor shown, the slowest first.
	slowest []*node
}

// statement is the kind of all spans of clients.
const statement = "statement"

func newCondenser(next sdktrace.SpanProcessor, quiet []string) *condenser {
	return &condenser{next: next, quiet: quiet, open: map[spanID]*node{}}
}

// OnStart makes the span known to its children.
func (c *condenser) OnStart(ctx context.Context, span sdktrace.ReadWriteSpan) {
	c.next.OnStart(ctx, span)
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &node{kind: span.Name(), kinds: map[string]*children{}}
	if span.SpanKind() == trace.SpanKindClient {
		n.kind = statement
	}
	if !span.Parent().IsRemote() {
		n.parent = c.open[idOf(span.Parent())]
	}
	switch {
	case n.parent != nil:
		siblings := n.parent.children(n.kind)
		siblings.started++
		n.first = siblings.started <= n.limits().first
		if n.first && n.parent.fate == kept {
			n.fate = kept
		}
	case span.Parent().IsValid() || !slices.Contains(c.quiet, span.Name()):
		n.fate = kept
	}
	c.open[idOf(span.SpanContext())] = n
}

// OnEnd decides about the span, or leaves that to its parent's end.
func (c *condenser) OnEnd(span sdktrace.ReadOnlySpan) {
	c.mu.Lock()
	id := idOf(span.SpanContext())
	n := c.open[id]
	if n == nil {
		c.mu.Unlock()
		c.next.OnEnd(span)
		return
	}
	delete(c.open, id)
	n.end(span)
	through := n.settle(span)
	c.mu.Unlock()
	for _, s := range through {
		if own, is := s.(*accounted); !is || !own.withheld {
			c.next.OnEnd(s)
		}
	}
}

// Shutdown passes on.
func (c *condenser) Shutdown(ctx context.Context) error { return c.next.Shutdown(ctx) }

// ForceFlush passes on.
func (c *condenser) ForceFlush(ctx context.Context) error { return c.next.ForceFlush(ctx) }

func (n *node) children(kind string) *children {
	c := n.kinds[kind]
	if c == nil {
		c = &children{shown: map[string]int{}, reasons: map[string]bool{}}
		n.kinds[kind] = c
	}
	return c
}

// quota is how many children of a kind are kept.
type quota struct{ first, slowest, failed, reasoned, linked int }

func (n *node) limits() quota {
	if n.kind == statement {
		return quota{first: firstStatements, slowest: slowestStatements, failed: failedStatements}
	}
	return quota{firstSpans, slowestSpans, failedSpans, reasonedSpans, linkedSpans}
}

// shows says for what a child is kept besides those before it, "" if it is not.
func (c *children) shows(n *node, span sdktrace.ReadOnlySpan) string {
	q := n.limits()
	for _, may := range []struct {
		what string
		is   bool
		most int
	}{
		{"failed", n.failed, q.failed},
		{"reason", c.newReason(span, q.reasoned), q.reasoned},
		{"linked", len(span.Links()) > 0, q.linked},
	} {
		if may.is && c.shown[may.what] < may.most {
			c.shown[may.what]++
			return may.what
		}
	}
	return ""
}

// newReason says whether a span has a reason that none had before it. So many are remembered.
func (c *children) newReason(span sdktrace.ReadOnlySpan, most int) bool {
	for _, a := range span.Attributes() {
		if reason := a.Value.String(); a.Key == reasonKey && len(c.reasons) < most && !c.reasons[reason] {
			c.reasons[reason] = true
			return true
		}
	}
	return false
}

// end adds the slowest children, and the span itself with the account of all.
func (n *node) end(span sdktrace.ReadOnlySpan) {
	n.ended, n.took = true, span.EndTime().Sub(span.StartTime())
	n.failed = n.failed || span.Status().Code == codes.Error
	account := &accounted{ReadOnlySpan: span}
	account.withheld = n.kind != statement && slices.ContainsFunc(span.Attributes(), func(a attribute.KeyValue) bool { return a.Key == withheldKey })
	for kind, c := range n.kinds {
		for _, child := range c.slowest {
			if c.omitted > 0 {
				child.mark("slowest")
			}
			n.spans = append(n.spans, child.spans...)
			n.omittedStatements += child.omittedStatements
		}
		if kind == statement {
			n.statements += c.ended
			n.omittedStatements += c.omitted
		}
		account.add(kind, c)
	}
	if n.kind == statement {
		// What is below a statement, such as its preparation, is part of it.
		n.statements, n.omittedStatements, n.statementTime = 0, 0, 0
	}
	if n.statements > 0 {
		account.extra = append(account.extra, attribute.Int("maintenance.statements", n.statements),
			attribute.Int("maintenance.statements_omitted", n.omittedStatements),
			attribute.Float64("maintenance.statement_seconds", n.statementTime.Seconds()))
	}
	n.spans = append(n.spans, account)
}

// settle says what gets through now that the span has ended.
func (n *node) settle(span sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	p := n.parent
	switch {
	case p == nil && (n.fate == kept || n.failed):
		return n.take()
	case p == nil || p.fate == dropped:
		n.drop()
		return nil
	case p.ended:
		return n.take()
	}
	c := p.children(n.kind)
	c.ended++
	p.failed = p.failed || n.failed
	p.statements += n.statements
	p.statementTime += n.statementTime
	if n.kind == statement {
		p.statementTime += n.took
	}
	if span.Status().Code == codes.Error {
		c.failed++
	}
	if !n.first {
		why := c.shows(n, span)
		if why == "" {
			p.compete(c, n)
			return nil
		}
		if why == "failed" && span.Status().Code != codes.Error {
			why = "failed_below"
		}
		n.mark(why)
	}
	p.omittedStatements += n.omittedStatements
	if p.fate == kept {
		return n.take()
	}
	p.spans = append(p.spans, n.take()...)
	return nil
}

// compete keeps a child if it is among the slowest.
func (n *node) compete(c *children, child *node) {
	c.slowest = append(c.slowest, child)
	slices.SortStableFunc(c.slowest, func(a, b *node) int { return cmp.Compare(b.took, a.took) })
	if len(c.slowest) <= child.limits().slowest {
		return
	}
	last := len(c.slowest) - 1
	loser := c.slowest[last]
	c.slowest = c.slowest[:last]
	c.omitted++
	n.omittedStatements += loser.statements
	loser.drop()
}

// take hands over all that waits with a span that is kept, for its parent's end at the latest.
func (n *node) take() []sdktrace.ReadOnlySpan {
	n.fate = kept
	spans := n.spans
	n.spans = nil
	return spans
}

func (n *node) drop() { n.fate, n.spans = dropped, nil }

// mark notes why the span is in the trace, though it was none of the first.
func (n *node) mark(why string) {
	if own, is := n.spans[len(n.spans)-1].(*accounted); is {
		own.extra = append(own.extra, attribute.String("maintenance.shown_as", why))
	}
}

// accounted is a span with what was found out after its end.
type accounted struct {
	sdktrace.ReadOnlySpan
	extra    []attribute.KeyValue
	withheld bool
}

// Attributes of the span, and of what was below it.
func (a *accounted) Attributes() []attribute.KeyValue {
	return slices.Concat(a.ReadOnlySpan.Attributes(), a.extra)
}

// add tells how many spans of a kind there were, where not all are in the trace. Of statements all are told together.
func (a *accounted) add(kind string, c *children) {
	switch {
	case kind == "maintenance.batch":
		a.extra = append(a.extra, attribute.Int("maintenance.batches", c.ended), attribute.Int("maintenance.batches_omitted", c.omitted),
			attribute.Int("maintenance.batches_failed", c.failed))
	case kind != statement && c.omitted > 0:
		a.extra = append(a.extra, attribute.Int(kind+".omitted", c.omitted))
	}
}

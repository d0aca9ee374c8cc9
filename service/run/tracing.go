package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// What spans of runs, batches and jobs say: what was done, why it stopped, what it queued, so
// that the trace alone tells. Values of rows other than ids, and texts of the server's, are not in them.

// startRun begins the span of a run. The run outlives its caller, and keeps the caller's trace.
func (r *Runner) startRun(ctx context.Context, w *Worker, run Run, database *repo.Database) (context.Context, trace.Span) {
	attributes := []attribute.KeyValue{
		attribute.String("maintenance.worker", w.Name), attribute.String("maintenance.run_id", run.ID),
		attribute.String("maintenance.database", database.Name), attribute.String("maintenance.trigger", run.Trigger),
		attribute.Bool("maintenance.dry_run", run.DryRun),
	}
	if run.RequestedBy != "" {
		attributes = append(attributes, attribute.String("maintenance.requested_by", run.RequestedBy))
	}
	if !run.Fire.IsZero() {
		attributes = append(attributes, attribute.String("maintenance.fire_time", run.Fire.UTC().Format(time.RFC3339)))
	}
	ctx, span := r.startRunSpan(context.WithoutCancel(ctx), run.ID, trace.WithAttributes(attributes...))
	return Traced(ctx, span, &Queued{}), span
}

// WithSpans lets what is done in a context have spans below its own.
func WithSpans(ctx context.Context) context.Context {
	ctx, _ = repo.WithScope(ctx)
	return ctx
}

// recordStart says on its span under which lease a run has started, and how late that was for its fire.
func (x *Execution) recordStart() {
	run := x.Snapshot()
	x.Span.SetAttributes(attribute.Int64("maintenance.lease_epoch", run.LeaseEpoch))
	if !run.Fire.IsZero() {
		x.Span.SetAttributes(attribute.Float64("maintenance.lateness_seconds", run.StartedAt.Sub(run.Fire).Seconds()))
	}
}

// QueuedKey is the context's key of the [Queued] of a run or a job.
type QueuedKey struct{}

// Traced lets what a run or job does in the databases have spans, and lead back to its own:
// deletions that triggers note, jobs.
func Traced(ctx context.Context, span trace.Span, q *Queued) context.Context {
	if !span.IsRecording() {
		return ctx
	}
	ctx = WithSpans(ctx)
	return context.WithValue(repo.WithTraceParent(ctx, TraceParent(ctx)), QueuedKey{}, q)
}

// Queued is what a run or a job has queued, by kind.
type Queued struct {
	mu              sync.Mutex
	pending, number map[string]int
	// tx is the last transaction that has inserted some. What a run has pending from another one is lost: every write of a
	// run is one transaction, which comes again after a deadlock.
	tx repo.Tx
	// Job: the transactions of a job are not distinguished.
	Job bool
}

// add counts jobs that wait for the end of a transaction.
func (q *Queued) add(tx repo.Tx, kind string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending == nil || !q.Job && q.tx != tx {
		q.pending = map[string]int{}
	}
	q.tx = tx
	q.pending[kind] += n
}

// RecordQueued says on the span of a context's run or job what it has queued.
func RecordQueued(ctx context.Context, span trace.Span) {
	q, _ := ctx.Value(QueuedKey{}).(*Queued)
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var byKind []string
	for kind, n := range q.number {
		byKind = append(byKind, fmt.Sprintf("%s: %d", kind, n))
	}
	if len(byKind) > 0 {
		slices.Sort(byKind)
		span.SetAttributes(attribute.StringSlice("maintenance.queued", byKind))
	}
}

// Committed counts what was queued in the transaction that has ended, or forgets it.
func (q *Queued) Committed(yes bool) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for kind, n := range q.pending {
		if yes && n > 0 {
			if q.number == nil {
				q.number = map[string]int{}
			}
			q.number[kind] += n
		}
	}
	q.pending, q.tx = nil, nil
}

// CountedQueue is a queue that counts for the traces.
type CountedQueue struct{ repo.JobQueue }

// InsertJobs inserts kind by kind, in the order in which the queue itself sorts them.
func (c CountedQueue) InsertJobs(ctx context.Context, tx repo.Tx, jobs []repo.Job) (inserted int, err error) {
	q, _ := ctx.Value(QueuedKey{}).(*Queued)
	if q == nil {
		return c.JobQueue.InsertJobs(ctx, tx, jobs)
	}
	byKind := slices.Clone(jobs)
	slices.SortStableFunc(byKind, func(a, b repo.Job) int { return strings.Compare(a.Args.Kind(), b.Args.Kind()) })
	for len(byKind) > 0 {
		kind := byKind[0].Args.Kind()
		n := slices.IndexFunc(byKind, func(j repo.Job) bool { return j.Args.Kind() != kind })
		if n < 0 {
			n = len(byKind)
		}
		some, err := c.JobQueue.InsertJobs(ctx, tx, byKind[:n])
		if inserted += some; err != nil {
			return inserted, err
		}
		q.add(tx, kind, some)
		byKind = byKind[n:]
	}
	return inserted, nil
}

// batchKey is the context's key of a [batchCounts].
type batchKey struct{}

// batchCounts are what one batch adds to the counts of its run.
type batchCounts struct {
	mu     sync.Mutex
	counts map[string]int64
	rested time.Duration
	// waited is for how long its permits have waited for renewals.
	waited time.Duration
	// failed: the batch has; reason is why, or why it ended otherwise than is usual.
	failed bool
	reason string
}

// rest adds to the time that the batch has rested, and says whether it had not before.
func (b *batchCounts) rest(d time.Duration) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first = b.rested == 0
	b.rested += d
	return first
}

func (b *batchCounts) add(key string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts[key] += n
}

// Batch calls do within a span of a batch. An error is the batch's failure, unless the run is to stop.
func (x *Execution) Batch(ctx context.Context, do func(context.Context) error, attributes ...attribute.KeyValue) error {
	ctx, span := x.Tracer.Start(ctx, "maintenance.batch", trace.WithAttributes(attributes...))
	defer span.End()
	if !span.IsRecording() {
		return do(ctx)
	}
	ctx, scope := repo.WithBatch(ctx)
	began := time.Now()
	counts := &batchCounts{counts: map[string]int64{}}
	ctx = context.WithValue(ctx, batchKey{}, counts)
	err := do(ctx)
	span.SetAttributes(countAttributes(counts.counts)...)
	setSeconds(span, "maintenance.rested_seconds", counts.rested)
	setSeconds(span, waitedKey, counts.waited)
	switch reason := stoppedBy(ctx, err); {
	case err == nil:
	case reason != "":
		RecordOutcome(ctx, outcomeStopped, reason)
	default:
		RecordFailure(ctx, err)
	}
	span.SetAttributes(scope.Attributes()...)
	if !scope.EndBatch(time.Since(began), counts.failed, counts.reason) {
		span.SetAttributes(attribute.Bool(withheldKey, true))
	}
	return err
}

// waitedKey is the attribute for how long permits have waited until the lease was renewed.
const waitedKey = "maintenance.waited_seconds"

// setSeconds sets a duration that is not 0.
func setSeconds(span trace.Span, key string, d time.Duration) {
	if d > 0 {
		span.SetAttributes(attribute.Float64(key, d.Seconds()))
	}
}

// recordWait adds to the time that the run and the batch of a context have waited for permits.
func (x *Execution) recordWait(ctx context.Context, d time.Duration) {
	x.mu.Lock()
	x.waited += d
	x.mu.Unlock()
	if batch, is := ctx.Value(batchKey{}).(*batchCounts); is {
		batch.mu.Lock()
		batch.waited += d
		batch.mu.Unlock()
	}
}

// countAttributes are the counts that are not 0.
func countAttributes(counts map[string]int64) (out []attribute.KeyValue) {
	for key, n := range counts {
		if n != 0 {
			out = append(out, attribute.Int64("maintenance.count."+key, n))
		}
	}
	return out
}

// maxTables is how many tables a span names, those with most rows.
const maxTables = 20

// recordEnd says on a span how the run has ended.
func (x *Execution) recordEnd(ctx context.Context, span trace.Span, run *Run, err error) {
	if !span.IsRecording() {
		return
	}
	SetTexts(span, "maintenance.outcome", run.State, "maintenance.reason", run.Reason, "maintenance.stopped_because", x.whyStopped(run, err))
	span.SetAttributes(attribute.Bool("maintenance.over_limit", run.OverLimit))
	span.SetAttributes(countAttributes(run.Counts)...)
	if run.TurboMode {
		span.SetAttributes(attribute.Bool("maintenance.turbo_mode", true))
	}
	if x.leases != nil {
		span.SetAttributes(attribute.StringSlice("maintenance.databases", x.leases.databases()))
	}
	if tables := tableTexts(run.Tables); len(tables) > 0 {
		span.SetAttributes(attribute.StringSlice("maintenance.tables", tables))
	}
	RecordQueued(ctx, span)
	span.SetAttributes(repo.ScopeAttributes(ctx)...)
	_, rested := x.throttle.state()
	setSeconds(span, "maintenance.rested_seconds", rested)
	x.mu.Lock()
	setSeconds(span, waitedKey, x.waited)
	x.mu.Unlock()
	// Of a run that was told to stop the error says by whom, and has an operator's words: those are for the record.
	if run.State == repo.RunFailed {
		text := redactedText(run.Error, err)
		SetTexts(span, "maintenance.error", text)
		NoteError(span, err)
		span.SetStatus(codes.Error, text)
	}
}

func tableTexts(tables []repo.TableCount) (out []string) {
	tables = slices.Clone(tables)
	slices.SortStableFunc(tables, func(a, b repo.TableCount) int { return int(b.Deleted + b.Updated - a.Deleted - a.Updated) })
	for i, t := range tables {
		if i == maxTables {
			return append(out, fmt.Sprintf("and %d more", len(tables)-i))
		}
		out = append(out, fmt.Sprintf("%s: %d deleted, %d updated", t.Table, t.Deleted, t.Updated))
	}
	return out
}

// TraceParent is the span of a context in W3C's form, "" if there is none.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier.Get("traceparent")
}

// SpanOf is the span that a traceparent names, invalid if that is empty or malformed.
func SpanOf(ctx context.Context, parent string) trace.SpanContext {
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
	return trace.SpanContextFromContext(ctx)
}

// LinkTo is a link to the span of a traceparent, none if that is empty or malformed.
func LinkTo(ctx context.Context, parent string) trace.SpanStartOption {
	if span := SpanOf(ctx, parent); span.IsValid() {
		return trace.WithLinks(trace.Link{SpanContext: span})
	}
	return trace.WithLinks()
}

// MaxBatchLinks is how many links the span of a batch has at most, maxRunLinks that of a run.
const MaxBatchLinks, maxRunLinks = 16, 64

// Link leads from a batch, and from its run in case that batch is left out of the trace, to what has caused the work:
// spans in W3C's form, each of which is linked once. what says what they are.
func (x *Execution) Link(ctx context.Context, what string, parents []string) {
	batch := trace.SpanFromContext(ctx)
	if !batch.IsRecording() {
		return
	}
	linked := 0
	for _, parent := range parents {
		span := SpanOf(ctx, parent)
		if !span.IsValid() || span.SpanID() == x.Span.SpanContext().SpanID() {
			continue
		}
		link := trace.Link{SpanContext: span, Attributes: []attribute.KeyValue{attribute.String("maintenance.link", what)}}
		if linked++; linked <= MaxBatchLinks && batch.SpanContext().SpanID() != x.Span.SpanContext().SpanID() {
			batch.AddLink(link)
		}
		x.mu.Lock()
		fresh := !x.linked[parent] && len(x.linked) < maxRunLinks
		if fresh {
			if x.linked == nil {
				x.linked = map[string]bool{}
			}
			x.linked[parent] = true
		}
		x.mu.Unlock()
		if fresh {
			x.Span.AddLink(link)
		}
	}
}

package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	spansrepo "github.com/caretaker-go/caretaker/repo/spans"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// Deferred jobs: any queue calls WorkJob, the one place that logs and counts a job's end. The work
// of a job is in the package of its worker, or in deletion.

// Outcomes of a job. A job that returned an error is failed, or the queue discards it.
const (
	Succeeded = "succeeded"
	Skipped   = "skipped"
	Refused   = "refused"
	Restored  = "restored"
	Cancelled = "cancelled"
	Failed    = "failed"
	Discarded = "discarded"
)

// JobSlice is how long an attempt runs before it snoozes and continues later.
const JobSlice = 45 * time.Second

// TransactionTime is the time limit of a job's transaction, below the 60 s of an attempt.
const TransactionTime = 30 * time.Second

// Request is a job handed over by the queue.
type Request struct {
	ID                   int64
	Kind                 string
	Args                 json.RawMessage
	Attempt, MaxAttempts int
	// AttemptedAt is the attempt's start by main's clock, as in its row. Its guard checks it.
	AttemptedAt time.Time
	// RunID is the run that queued it. "" means none. TraceParent (W3C) is the span of that run.
	RunID, TraceParent string
	// RequestedBy is the requester of that run. "" means unknown.
	RequestedBy string
	// Worked is the total time of previous attempts, without those whose process died.
	Worked time.Duration
	// QueuedAt is when the job was queued.
	QueuedAt time.Time
	// Stopping, if not nil, closes when running attempts should snooze, because the process is
	// about to end.
	Stopping <-chan struct{}
}

// Result is the end of an attempt.
type Result struct {
	// Outcome is one of the constants above, empty with Snooze.
	Outcome string
	// Reason is typed: TARGET_GONE and so on.
	Reason string
	// Message is the text of a refusal besides its reason, fit for clients.
	Message string
	// Snooze postpones the job by this time without using up an attempt.
	Snooze time.Duration
	// LogAtDebug lowers the level of the log line for an uninteresting end.
	LogAtDebug bool
	// Attributes are added to the job's log line: user_id, group_id, counts.
	Attributes []any
	// TraceParent (W3C) is the attempt's span. "" means not exported. WorkJob sets it.
	TraceParent string
	// Took is the duration of the attempt. WorkJob sets it.
	Took time.Duration
	// traced are the keys of Kind.Traced.
	traced []string
	// TraceID is the attempt's trace, for log lines, even if it is not exported. WorkJob sets it.
	TraceID string
}

// Work does an attempt of one kind of job. It decodes args.
type Work func(ctx context.Context, j *Attempt) (Result, error)

// Pool runs deferred jobs, and lists them. Any goroutine may call its methods.
type Pool struct {
	*run.Runner
	Kinds map[string]Kind
}

// New returns a pool without kinds of job.
func New(r *run.Runner) *Pool { return &Pool{r, map[string]Kind{}} }

// Add adds kinds of job.
func (p *Pool) Add(kinds ...Kind) {
	for _, kind := range kinds {
		p.Kinds[kind.Name] = kind
	}
}

// Kind is a kind of deferred job, as a value.
type Kind struct {
	Name string
	Work Work
	// Plan adds to a plan what the job would do with its target. nil means jobs of this kind delete
	// nothing by themselves.
	Plan run.Planner
	// Traced lists the attributes of its results that spans get in addition to ids. They must not identify a
	// person. A key has one type in all kinds, as some backends reject a second one.
	Traced []string
	// Owner returns the worker whose pause holds a job, by its arguments. nil means only the pause of
	// all workers holds jobs.
	Owner func(json.RawMessage) string
	// Worker is the worker that the jobs belong to if Owner is nil. A client that is limited to
	// some workers may cancel and retry their jobs. The jobs check its pause themselves.
	Worker string
	// Uses returns what its attempts do with the application's tables of a database, besides the
	// workers that queue it. nil means nothing.
	Uses func(database string) []catalog.Use
}

// Attempt is a running attempt.
type Attempt struct {
	Request
	Log   *slog.Logger
	loads *load.Loads
	// started is the start of this attempt by the host's clock.
	started time.Time
	// currentHold returns what holds the job now. nil means nothing. heldBy is what did.
	currentHold func() *hold
	heldBy      *hold
}

// Left returns the time until the attempt must snooze: 0 for a held job, or a process about to end.
func (j *Attempt) Left() time.Duration {
	if j.stops() || j.held() {
		return 0
	}
	return JobSlice - time.Since(j.started)
}

// stops reports whether the process is about to end.
func (j *Attempt) stops() bool {
	select {
	case <-j.Stopping:
		return true
	default:
		return false
	}
}

// Guard lets a transaction write only while this attempt still has the job. Every transaction that
// changes anything for a job begins with it. So a process that was suspended for longer than its
// attempts last writes nothing when it wakes.
func (j *Attempt) Guard() fencing.Guard { return j.Key().Guard() }

// Key returns the attempt's key, as in its guard and the queue row.
func (j *Attempt) Key() fencing.AttemptOf {
	return fencing.AttemptOf{ID: j.ID, AttemptedAt: j.AttemptedAt}
}

// Origin returns a job, without arguments, that this one queues: same run, linked to this trace.
func (j *Attempt) Origin(ctx context.Context) jobqueue.Job {
	return jobqueue.Job{RunID: j.RunID, RequestedBy: j.RequestedBy, TraceParent: spansrepo.TraceParent(ctx)}
}

// Source returns the job as receipts name it.
func (j *Attempt) Source() fencing.Source {
	return fencing.Source{JobID: j.ID, Worker: j.Kind, RequestedBy: j.RequestedBy}
}

// Decode decodes the job's arguments.
func Decode[T jobqueue.Args](j *Attempt) (args T, err error) {
	if err = json.Unmarshal(j.Args, &args); err != nil {
		err = fmt.Errorf("cannot read the arguments of job %d: %w", j.ID, err)
	}
	return args, err
}

// JobKinds returns the kinds of job that this process can run.
func (p *Pool) JobKinds() []string { return slices.Sorted(maps.Keys(p.Kinds)) }

// WorkJob does one attempt of a job, in a trace of its own that is linked to the span that queued
// it. The queue retries an error with back-off. An error of a cancelled context is no failure.
func (p *Pool) WorkJob(ctx context.Context, r Request) (Result, error) {
	j := &Attempt{Request: r, Log: p.Logger.With("kind", r.Kind, "job_id", r.ID), loads: p.Loads, started: time.Now()}
	j.currentHold = func() *hold { return p.holdReason(ctx, j) }
	if j.held() {
		// No trace: the queue offers a held job again and again.
		result := j.heldBy.postpone(Result{Took: time.Since(j.started)})
		p.reportJob(ctx, j, result, nil)
		return result, nil
	}
	traced, span := p.startJob(ctx, r)
	defer span.End()
	result, err := p.attempt(traced, j)
	result.Attributes = withArguments(result.Attributes, j.Args)
	result.traced = p.Kinds[j.Kind].Traced
	if errors.Is(err, dberr.ErrJobCancelled) {
		result, err = p.cancelled(ctx, j, result)
	}
	if err != nil && result.Reason == "" {
		result.Reason = fault.ReasonOf(err)
	}
	result.Took = time.Since(j.started)
	result.Attributes = append(result.Attributes, p.outcome(ctx, j, result, err)...)
	p.reportJob(traced, j, result, err)
	if id := span.SpanContext().TraceID(); id.IsValid() {
		result.TraceID = id.String()
	}
	if span.SpanContext().IsSampled() {
		result.TraceParent = spansrepo.TraceParent(traced)
	}
	return result, err
}

// attempt does the work of a job's kind. A panic becomes an error.
func (p *Pool) attempt(ctx context.Context, j *Attempt) (result Result, err error) {
	work := p.Kinds[j.Kind].Work
	if work == nil {
		return Result{}, &fault.FailedError{Text: fmt.Sprintf("this version of caretaker does not know the job "+
			"kind %q", j.Kind)}
	}
	defer func() {
		if p := recover(); p != nil {
			result, err = Result{}, fault.NewPanicError(p)
		}
	}()
	result, err = work(spansrepo.WithWork(ctx, j.Kind), j)
	if err == nil && result.Snooze > 0 && j.heldBy != nil {
		result = j.heldBy.postpone(result)
	}
	return result, err
}

// cancelled returns the end of a job that an operator cancelled: its work is kept.
func (p *Pool) cancelled(ctx context.Context, j *Attempt, r Result) (Result, error) {
	text, err := p.Main.Jobs.JobCancelled(ctx, j.ID)
	r.Outcome, r.Reason, r.Message, r.Snooze = Cancelled, reasons.Cancelled, text, 0
	return r, err
}

// outcome returns the log attributes of all attempts at the job's last end, and nil at other ends.
func (p *Pool) outcome(ctx context.Context, j *Attempt, r Result, err error) []any {
	goesOn := r.Snooze > 0 || err != nil && j.Attempt < j.MaxAttempts
	if goesOn || errors.Is(err, dberr.ErrJobLost) || ctx.Err() != nil {
		return nil
	}
	attrs := []any{"worked_seconds", (j.Worked + r.Took).Seconds()}
	done, err := p.Main.Jobs.JobChanges(ctx, j.ID)
	if err != nil {
		// The job has ended all the same, and ReadJob has these.
		return attrs
	}
	tables := make(map[string]map[string]int64, len(done.Tables))
	for _, t := range done.Tables {
		tables[t.Table] = map[string]int64{"deleted": t.Deleted, "updated": t.Updated}
	}
	return append(attrs, "tables", tables, "outside", done.Outside.All)
}

// reportJob writes the job's one log line, counts it and ends its span.
func (p *Pool) reportJob(ctx context.Context, j *Attempt, r Result, err error) {
	// 1. Choose the level and the outcome. A lost or interrupted attempt is no failure.
	lost := errors.Is(err, dberr.ErrJobLost)
	interrupted := err != nil && !lost && errors.Is(ctx.Err(), context.Canceled)
	level, end := slog.LevelInfo, r.Outcome
	switch {
	case lost:
		level, end, r.Reason = slog.LevelWarn, spans.OutcomeLost, fault.ReasonJobLost
	case interrupted:
		level, end, r.Reason = slog.LevelDebug, spans.OutcomeInterrupted, fault.ReasonInterrupted
	case err != nil && j.Attempt >= j.MaxAttempts:
		level, end = slog.LevelError, Discarded
	case err != nil:
		level, end = slog.LevelError, Failed
	case r.Snooze > 0:
		level, end = slog.LevelDebug, spans.OutcomeSnoozed
	case r.LogAtDebug:
		level = slog.LevelDebug
	case end == Refused:
		level = slog.LevelWarn
	}
	// 2. Collect the attributes of the line.
	attrs := append([]any{
		"outcome", end, "reason", r.Reason, "attempt", j.Attempt, "run_id", j.RunID,
		"duration_seconds", r.Took.Seconds(),
	}, r.Attributes...)
	if err != nil {
		attrs = append(attrs, "error", redacted(err))
	}
	// 3. Record the end on the span, write the line and count the job.
	recordJob(ctx, r, end, err)
	switch {
	case interrupted:
		j.Log.Log(ctx, level, "job interrupted", attrs...)
	case lost:
		j.Log.Log(ctx, level, "job lost, attempt stopped", attrs...)
	case r.Snooze > 0:
		if j.heldBy != nil {
			p.Metrics.AddHold(ctx, j.Kind, j.heldBy.reason)
		}
		j.Log.Log(ctx, level, "job snoozed", append(attrs, "snooze", r.Snooze.String())...)
	default:
		j.Log.Log(ctx, level, "job finished", attrs...)
		p.Metrics.AddJob(ctx, j.Kind, end)
	}
}

// redactedError is an error with another text.
type redactedError struct {
	error
	text string
}

// Error returns the text for the log, which identifies no person.
func (e *redactedError) Error() string { return e.text }

// Unwrap returns the original error, so that errors.Is and errors.As still find its kind.
func (e *redactedError) Unwrap() error { return e.error }

// redacted returns an error of a job for the log, which must not identify a person. The error of a
// database that does not answer is not secret.
func redacted(err error) error {
	refused, ok := errors.AsType[*dberr.Error](err)
	if !ok || errors.Is(refused, dberr.ErrUnreachable) {
		return err
	}
	return &redactedError{err, strings.ReplaceAll(err.Error(), refused.Error(), refused.Public())}
}

// PublicError returns a job's error text that is fit for clients and for the queue's table.
func PublicError(err error) error {
	return errors.New(strings.ReplaceAll(fault.PublicText(err), "this run", "this job"))
}

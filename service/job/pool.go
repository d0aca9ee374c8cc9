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

// Deferred jobs: whatever the queue is, it calls WorkJob, and WorkJob is the one place where a
// job's end is logged and counted. What a job does is in the package of its worker, or in deletion.

// Outcomes of a job; a job that returned an error is failed, or discarded by the queue.
const (
	Succeeded = "succeeded"
	Skipped   = "skipped"
	Refused   = "refused"
	Restored  = "restored"
	Cancelled = "cancelled"
	Failed    = "failed"
	Discarded = "discarded"
)

// JobSlice is how long an attempt works before it snoozes and goes on later.
const JobSlice = 45 * time.Second

// TransactionTime is how long a transaction of a job may take: less than an attempt, which is given
// up after 60 s.
const TransactionTime = 30 * time.Second

// Request is a job that the queue hands over.
type Request struct {
	ID                   int64
	Kind                 string
	Args                 json.RawMessage
	Attempt, MaxAttempts int
	// AttemptedAt is when the attempt began by the clock of main, as the queue's row has it: its
	// guard checks that.
	AttemptedAt time.Time
	// RunID is the run that queued it, "" if none did; TraceParent (W3C) is its span.
	RunID, TraceParent string
	// RequestedBy is who asked for that run, "" if it is not known.
	RequestedBy string
	// Worked is how long the attempts before this one took together, without those whose process died.
	Worked time.Duration
	// QueuedAt is when the job was queued.
	QueuedAt time.Time
	// Stopping, if not nil, closes when attempts at work should snooze, because the process is
	// about to end.
	Stopping <-chan struct{}
}

// Result is how an attempt ended.
type Result struct {
	// Outcome is one of the constants above; empty with Snooze.
	Outcome string
	// Reason is typed: TARGET_GONE and so on.
	Reason string
	// Message is what a refusal says besides its reason, fit for clients.
	Message string
	// Snooze postpones the job for so long without using up an attempt.
	Snooze time.Duration
	// LogAtDebug lowers the level of the log line, of an end that is of no interest.
	LogAtDebug bool
	// Attributes are added to the job's log line: user_id, group_id, counts.
	Attributes []any
	// TraceParent (W3C) is the attempt's span, "" if that is not exported. WorkJob sets it.
	TraceParent string
	// Took is how long the attempt took. WorkJob sets it.
	Took time.Duration
	// traced are the kind's.
	traced []string
	// TraceID is the attempt's trace, also if that is not exported: lines of the log bear it.
	// WorkJob sets it.
	TraceID string
}

// Work does an attempt of one kind of job. args are decoded by it.
type Work func(ctx context.Context, j *Attempt) (Result, error)

// Pool works deferred jobs, and lists them. Its methods may be called from any goroutine.
type Pool struct {
	*run.Runner
	Kinds map[string]Kind
}

// New has no kinds of job yet.
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
	// Plan adds to a plan what the job would do with its target; nil: jobs of this kind destroy nothing
	// by themselves.
	Plan run.Planner
	// Traced are the attributes of its results that spans have besides ids: nothing that names
	// anybody. A key has one type in all kinds, as there are backends that refuse another one.
	Traced []string
	// Owner is the worker with whose pause a job waits, by its arguments; nil: jobs wait with the
	// pause of all workers alone.
	Owner func(json.RawMessage) string
	// Worker is the worker that the jobs belong to where Owner is nil: a client that is limited to
	// some workers may cancel and retry the jobs of these. The jobs look at its pause themselves.
	Worker string
	// Uses are what its attempts do with the application's tables of a database, besides what the
	// workers do that queue it; nil: nothing.
	Uses func(database string) []catalog.Use
}

// Attempt is an attempt at work.
type Attempt struct {
	Request
	Log     *slog.Logger
	loads   *load.Loads
	started time.Time
	// currentHold says what holds the job at this moment, nil: nothing; heldBy is what did.
	currentHold func() *hold
	heldBy      *hold
}

// Left is the time until the attempt must snooze; none when the process is about to end, or the job
// is held.
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

// Guard lets a transaction write only while the job is still this attempt's: every one that changes
// anything for a job begins with it. A process that was paused for longer than its attempts last
// writes nothing when it wakes.
func (j *Attempt) Guard() fencing.Guard { return j.Key().Guard() }

// Key names the attempt as its guard and the queue's row do.
func (j *Attempt) Key() fencing.AttemptOf {
	return fencing.AttemptOf{ID: j.ID, AttemptedAt: j.AttemptedAt}
}

// Origin is a job that this one queues, without arguments: of the same run, its trace leads back to
// here.
func (j *Attempt) Origin(ctx context.Context) jobqueue.Job {
	return jobqueue.Job{RunID: j.RunID, RequestedBy: j.RequestedBy, TraceParent: spansrepo.TraceParent(ctx)}
}

// Source is the job, as receipts name it.
func (j *Attempt) Source() fencing.Source {
	return fencing.Source{JobID: j.ID, Worker: j.Kind, RequestedBy: j.RequestedBy}
}

// Decode reads the job's arguments.
func Decode[T jobqueue.JobArgs](j *Attempt) (args T, err error) {
	if err = json.Unmarshal(j.Args, &args); err != nil {
		err = fmt.Errorf("arguments of job %d: %w", j.ID, err)
	}
	return args, err
}

// JobKinds are the kinds of job that this process can work.
func (p *Pool) JobKinds() []string { return slices.Sorted(maps.Keys(p.Kinds)) }

// WorkJob does one attempt of a job, in a trace of its own that is linked to the span that queued
// it. An error is to be retried by the queue with back-off; one whose context was cancelled is no
// failure.
func (p *Pool) WorkJob(ctx context.Context, r Request) (Result, error) {
	j := &Attempt{Request: r, Log: p.Logger.With("kind", r.Kind, "job_id", r.ID), loads: p.Loads, started: time.Now()}
	j.currentHold = func() *hold { return p.holdReason(ctx, j) }
	if j.held() {
		// No trace: it will be asked for again and again.
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

// attempt does the work of a job's kind; a panic is an error.
func (p *Pool) attempt(ctx context.Context, j *Attempt) (result Result, err error) {
	work := p.Kinds[j.Kind].Work
	if work == nil {
		return Result{}, &fault.FailedError{Text: fmt.Sprintf("this version of caretaker knows no kind %q", j.Kind)}
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

// cancelled is the end of a job that an operator has cancelled: what it did stays.
func (p *Pool) cancelled(ctx context.Context, j *Attempt, r Result) (Result, error) {
	words, err := p.Main.Jobs.JobCancelled(ctx, j.ID)
	r.Outcome, r.Reason, r.Message, r.Snooze = Cancelled, reasons.ReasonCancelled, words, 0
	return r, err
}

// outcome is what the log says at the end of a job of all its attempts; nothing at the end of others.
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

// reportJob is the job's one log line, its metric and its span's end.
func (p *Pool) reportJob(ctx context.Context, j *Attempt, r Result, err error) {
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
	attrs := append([]any{
		"outcome", end, "reason", r.Reason, "attempt", j.Attempt, "run_id", j.RunID,
		"duration_seconds", r.Took.Seconds(),
	}, r.Attributes...)
	if err != nil {
		attrs = append(attrs, "error", redacted(err))
	}
	recordJob(ctx, r, end, err)
	switch {
	case interrupted:
		j.Log.Log(ctx, level, "job interrupted, it will be worked again", attrs...)
	case lost:
		j.Log.Log(ctx, level, "job lost, this attempt was taken for dead and writes nothing more", attrs...)
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

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.error }

// redacted is an error of a job as the log may have it, which names nobody: jobs are about people. What a database that
// does not answer says is no secret.
func redacted(err error) error {
	refused, ok := errors.AsType[*dberr.Error](err)
	if !ok || errors.Is(refused, dberr.ErrUnreachable) {
		return err
	}
	return &redactedError{err, strings.ReplaceAll(err.Error(), refused.Error(), refused.Public())}
}

// PublicError is a job's error in words fit for clients and for the queue's table.
func PublicError(err error) error {
	return errors.New(strings.ReplaceAll(fault.PublicText(err), "this run", "this job"))
}

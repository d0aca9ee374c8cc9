package run

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
)

// execute is the one loop around every worker: steps 4 and 5 of the package comment.
func (r *Runner) execute(ctx context.Context, x *Execution) {
	defer r.unregister(x)
	defer r.Prune(context.WithoutCancel(ctx))
	defer close(x.Done)
	x.recordStart()
	close(x.begun)
	run := x.Snapshot()
	x.Log.InfoContext(ctx, "run started", "trigger", run.Trigger, "started_at", run.StartedAt)
	// 4. The worker works, while its leases and its record are kept alive.
	background, stopBackground := context.WithCancel(ctx)
	ended := r.keepAlive(background, x)
	working := repo.ReadBy(repo.WithWork(ctx, x.Worker.Name), x.reader)
	err := r.checkCandidates(working, x)
	if err == nil {
		close(x.planned)
		err = RecoverPanic(func() error { return x.Worker.Work(working, x) })
	}
	stopBackground()
	<-ended
	if x.leases != nil {
		err = errors.Join(err, x.leases.close())
		if x.leases.expired() {
			x.cancel(repo.ErrLeaseLost)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	// 5. The leases are released, then the end is recorded and reported.
	if x.leases != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeaseMargin)
		if err := retryUnreachable(clean, func() error { return x.reader.SavePosition(clean) }); err != nil {
			x.Log.WarnContext(ctx, "replica position not stored, the next run waits for the replica", "error", err)
		}
		if err := x.leases.release(clean); err != nil {
			x.Log.WarnContext(ctx, "lease not released, it expires by itself", "error", err)
		}
		cancel()
	}
	x.ended = time.Now()
	run = x.Snapshot()
	x.keepCandidates(context.WithoutCancel(ctx), &run, err == nil)
	conclude(&run, err)
	r.record(context.WithoutCancel(ctx), x, run, err)
	r.Backlogs.forget(x.Worker, x.Database)
	x.cancel(nil)
}

// RecoverPanic calls do; a panic is an error: it ends the run, not the server.
func RecoverPanic(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = NewPanicError(p)
		}
	}()
	return do()
}

// report is the run's one wide log line, its span's end, its metrics.
func (r *Runner) report(ctx context.Context, x *Execution, run Run, err error) {
	x.recordEnd(ctx, x.Span, &run, err)
	duration := x.ended.Sub(x.started)
	attrs := lineOf(run, duration)
	if _, paused := x.throttle.state(); paused > 0 {
		attrs = append(attrs, "rested_seconds", paused.Seconds())
	}
	if from, _ := x.reader.Source(); from != "" {
		attrs = append(attrs, "read_from", from)
		x.Span.SetAttributes(attribute.String("maintenance.read_from", from))
	}
	x.Span.End(trace.WithTimestamp(x.ended))
	level := slog.LevelInfo
	switch {
	case run.State == repo.RunFailed:
		level = slog.LevelError
		attrs = append(attrs, "error", err)
	case run.State == repo.RunSkipped && run.Error != "":
		attrs = append(attrs, "why", run.Error)
	}
	x.Log.Log(ctx, level, runFinished, attrs...)
	r.Metrics.addRun(ctx, run, duration)
	if x.Worker.Sli {
		r.Metrics.addSLI(ctx, run)
	}
}

// runFinished is the message of the line that every run has at its end.
const runFinished = "run finished"

// lineOf is what that line says, besides which run it is.
func lineOf(run Run, duration time.Duration) []any {
	attrs := []any{
		"trigger", run.Trigger, "outcome", run.State, "reason", run.Reason,
		"over_limit", run.OverLimit, "turbo_mode", run.TurboMode, "lease_epoch", run.LeaseEpoch,
		"duration_seconds", duration.Seconds(), "tables", run.Tables,
	}
	for key, n := range run.Counts {
		attrs = append(attrs, key, n)
	}
	return attrs
}

// newID is a UUID version 7 of a time of main's clock, so that ids are in the order of the runs on whatever replica.
// The microseconds stand where RFC 9562 (6.2, method 3) wants them.
func newID(at time.Time) string {
	id := uuid.New()
	fraction := uint64(at.Nanosecond()%1_000_000) << 12 / 1_000_000 //nolint:gosec // nanoseconds are not negative
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|7<<12|fraction)
	return id.String()
}

// PanicError is a panic that was recovered from.
type PanicError struct {
	value   any
	callers []uintptr
}

// maxPanicStack is how deep the stack of a panic is kept.
const maxPanicStack = 64

// NewPanicError is the error of what recover has returned; the log of it has the stack. To be called by the deferred function.
func NewPanicError(value any) error {
	callers := make([]uintptr, maxPanicStack)
	// Without this function and the runtime's own.
	return &PanicError{value, callers[:runtime.Callers(2, callers)]}
}

// Error has what was thrown.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// Callers are the program counters of the stack.
func (e *PanicError) Callers() []uintptr { return e.callers }

// SkippedError ends a run as SKIPPED: there is nothing it could do.
type SkippedError struct {
	// Reason is typed, text says what to do, if there is something.
	Reason, Text string
}

func (e *SkippedError) Error() string { return e.Reason }

// FailedError ends a run as FAILED although it did all it could: its text is fit for clients.
type FailedError struct {
	Text string
	// Reason is typed, Redacted the text without values of rows: "" where there is none, and where the text has none.
	Reason, Redacted string
}

func (e *FailedError) Error() string { return e.Text }

// Public says that the text is fit for clients.
func (e *FailedError) Public() {}

// TypedReason is "" where there is none.
func (e *FailedError) TypedReason() string { return e.Reason }

// ItemsFailedError is a [FailedError] of a run that went on to its end although some of what it had to
// do failed. Class is the one of all failures, "_OTHER" if they differ; Reason is typed, "" where there
// is none.
type ItemsFailedError struct {
	Text, Class, Reason string
}

func (e *ItemsFailedError) Error() string { return e.Text }

// Unwrap lets it be one.
func (e *ItemsFailedError) Unwrap() error { return &FailedError{Text: e.Text, Reason: e.Reason} }

// conclude sets the state, reason and error of a run by what its work returned.
func conclude(run *Run, workErr error) {
	var skipped *SkippedError
	var stopped StopError
	_, hasFailed := errors.AsType[*FailedError](workErr)
	switch {
	case errors.Is(workErr, repo.ErrLeaseLost):
		run.State, run.Reason = repo.RunFailed, ReasonLeaseLost
		run.Error = "the lease was lost; what was committed before stays, the next run goes on"
	case errors.As(workErr, &skipped):
		run.State, run.Reason, run.Error = repo.RunSkipped, skipped.Reason, skipped.Text
	case errors.As(workErr, &stopped) && stopped.Early && !hasFailed:
		run.State, run.OverLimit = repo.RunSucceeded, true
		if run.Reason == ReasonContinuation || run.Reason == reasonAfterLoad {
			run.Reason = ""
		}
		run.Reason = strings.TrimSuffix(stopped.Reason.String()+"; "+run.Reason, "; ")
	case errors.As(workErr, &stopped) && !stopped.Early:
		run.State, run.Reason, run.Error = repo.RunCancelled, stopped.Reason.String(), stopped.Message
	case workErr != nil:
		run.State, run.Error = repo.RunFailed, PublicText(workErr)
		run.OverLimit = run.OverLimit || stopped.Early
		if reason := ReasonOf(workErr); reason != repo.ReasonKeyMismatch || run.Reason == "" {
			run.Reason = cmp.Or(reason, run.Reason)
		}
	default:
		run.State = repo.RunSucceeded
	}
	run.Unsettled = !run.DryRun && (run.State == repo.RunFailed || errors.Is(workErr, repo.ErrUnreachable))
}

// EndsEarly reports whether an error ends a run on purpose: it succeeds unless some of its items failed.
func EndsEarly(err error) bool {
	stopped, ok := errors.AsType[StopError](err)
	return ok && stopped.Early
}

// ReasonedError is a typed reason with words for it, fit for clients.
type ReasonedError struct{ Reason, Text string }

func (e *ReasonedError) Error() string { return e.Reason + ": " + e.Text }

// Public says that the text is fit for clients.
func (e *ReasonedError) Public() {}

// TypedReason is never "".
func (e *ReasonedError) TypedReason() string { return e.Reason }

// ReasonOf is the typed reason of an error, "" if it has none.
func ReasonOf(err error) string {
	var typed interface{ TypedReason() string }
	if errors.As(err, &typed) {
		return typed.TypedReason()
	}
	return ""
}

// maxText is how long an error may be on record.
const maxText = 64 << 10

// Shorten truncates text to that many bytes, and says how many more there are, and where.
func Shorten(text string, most int, where string) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return fmt.Sprintf("%s… (%d bytes more: %s)", text[:most], len(text)-most, where)
}

// PublicText is an error in words fit for clients: SQLSTATE and condition, never the driver's text, values or SQL.
func PublicText(err error) string { return Shorten(inWords(err), maxText, "the log has them") }

func inWords(err error) string {
	var refused *repo.Error
	var stopped StopError
	switch {
	case err == nil:
		return ""
	case fitForClients(err) != nil:
		return fitForClients(err).Error()
	case errors.As(err, &refused):
		return refused.Public()
	case errors.Is(err, repo.ErrUnreachable):
		return "a database is unreachable; the log of this run names it"
	case errors.Is(err, repo.ErrLeaseLost):
		return repo.ErrLeaseLost.Error()
	case errors.Is(err, repo.ErrJobLost):
		return "job lost: the attempt was taken for dead, the job is worked by another one"
	case errors.As(err, &stopped):
		return strings.ToLower(stopped.Reason.String())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "stopped before its end"
	}
	return "internal error; the log of this run has it"
}

// redactedText is a run's error in words fit for traces, which have no values of rows; err is what it was made of.
func redactedText(text string, err error) string {
	if failed, ok := errors.AsType[*FailedError](err); ok && failed.Redacted != "" {
		return failed.Redacted
	}
	return text
}

// briefText is PublicText without what was tried and what to do: for remarks.
func briefText(err error) string {
	if refused, ok := errors.AsType[*repo.Error](err); ok {
		return refused.Condition()
	}
	return PublicText(err)
}

// fitForClients is the error within err, if there is one, that says by a method Public or Details that its text
// is made for clients.
func fitForClients(err error) error {
	type public interface {
		error
		Public()
	}
	type detailed interface {
		error
		Details() (reason string, metadata map[string]string)
	}
	if e, ok := errors.AsType[public](err); ok {
		return e
	}
	if e, ok := errors.AsType[detailed](err); ok {
		return e
	}
	if errors.Is(err, repo.ErrForbidden) {
		return err
	}
	return nil
}

// SkipReason is why a fire gets no run; the zero Reason for other errors.
func SkipReason(err error) repo.Reason {
	var held *LeaseHeldError
	var paused *WorkerPausedError
	var unconfigured *NotConfiguredError
	switch {
	case errors.As(err, &held):
		return repo.Reason{Code: reasonLeaseHeld}
	case errors.As(err, &paused):
		return repo.Reason{Code: ReasonPaused, Detail: err.Error()}
	case errors.As(err, &unconfigured):
		return repo.Reason{Code: "WORKER_NOT_CONFIGURED", Detail: err.Error()}
	}
	return repo.Reason{}
}

// EndedEarly reports whether a run with this reason ended before its time because of the load or a full queue.
func EndedEarly(reason string) bool {
	code := repo.ReadReason(reason).Code
	return code == ReasonThrottled || code == ReasonQueueFull
}

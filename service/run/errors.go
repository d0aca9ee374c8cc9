package run

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/caretaker-go/caretaker/repo"
)

// Errors of the methods of [Runner], besides [InvalidArgumentError], [WorkerPausedError],
// [NotConfiguredError], [LeaseHeldError] and [RefusedError].
var (
	// ErrUnknownWorker, ErrUnknownDatabase, ErrUnknownRun, ErrUnknownJob and ErrUnknownFlag: there is nothing of that name or id.
	// Each is found in a [RefusedError].
	ErrUnknownWorker   = errors.New("unknown worker")
	ErrUnknownDatabase = errors.New("unknown database")
	ErrUnknownRun      = errors.New("unknown run")
	ErrUnknownJob      = errors.New("unknown job")
	ErrUnknownFlag     = errors.New("unknown flag")
	// ErrStopping means that the server takes no new runs because it is shutting down.
	ErrStopping = errors.New("the server is stopping")
	// ErrUnreachable means that a database that is needed for the answer does not answer.
	ErrUnreachable = repo.ErrUnreachable
)

// RefusedError is a call that is refused.
type RefusedError struct {
	// Reason and Metadata are for programs, Text is for people and fit for clients.
	Reason, Text string
	Metadata     map[string]string
	// Retry is when to try again; 0: not before something has changed.
	Retry time.Duration
	// What is the error that it is for [errors.Is], nil for none.
	What error
}

// Error is the text.
func (e *RefusedError) Error() string { return e.Text }

// Details are the reason and the metadata that clients get.
func (e *RefusedError) Details() (string, map[string]string) { return e.Reason, e.Metadata }

// RetryAfter is when to try again.
func (e *RefusedError) RetryAfter() time.Duration { return e.Retry }

// Unwrap returns what it is.
func (e *RefusedError) Unwrap() error { return e.What }

// Unknown is the error that there is nothing of a name or id. what begins with unknown, key is that of the name in the
// metadata.
func Unknown(what error, key, name, text string) error {
	_, kind, _ := strings.Cut(what.Error(), " ")
	return &RefusedError{
		Reason: "UNKNOWN_" + strings.ToUpper(kind), Text: text, What: what,
		Metadata: map[string]string{key: name},
	}
}

// UnknownDatabase is the error that a name is none of these databases'.
func UnknownDatabase(name string, all []*repo.Database) error {
	text := fmt.Sprintf("unknown database %q: configured are %s", name, DatabaseNames(all))
	return Unknown(ErrUnknownDatabase, "database", name, text)
}

// UnreachableDatabase is the name of the database that an [ErrUnreachable] is about, and why it cannot work; "" if the
// error does not say.
func UnreachableDatabase(err error) (name, why string) {
	if refused, ok := errors.AsType[*repo.Error](err); ok {
		return refused.Database, refused.Why()
	}
	return "", ""
}

// PrivilegeMissing returns which privilege is missing and what to grant. It returns false for every other error.
func PrivilegeMissing(err error) (text string, ok bool) {
	if Forbidden(err) || errors.Is(err, repo.ErrForbidden) {
		return PublicText(err), true
	}
	return "", false
}

// SchemaMissing returns which database misses tables or columns of caretaker's own. It returns false
// for every other error. Runs report missing tables of the application themselves.
func SchemaMissing(err error) (text string, ok bool) {
	refused, ok := errors.AsType[*repo.Error](err)
	if !ok || !slices.Contains([]string{"42P01", "42703", "3F000"}, refused.SQLState) {
		return "", false
	}
	return "database " + refused.Database + " lacks tables or columns of this version: run caretaker migrate", true
}

// LeaseHeldError reports who holds the lease.
type LeaseHeldError = repo.LeaseHeldError

// InvalidArgumentError names the field of a request that is wrong, and what is allowed.
type InvalidArgumentError struct{ Field, Description string }

// Error names the field first.
func (e *InvalidArgumentError) Error() string { return e.Field + ": " + e.Description }

// Details are the reason that clients get.
func (e *InvalidArgumentError) Details() (string, map[string]string) { return "INVALID_ARGUMENT", nil }

// maxReason is the length of a reason in characters.
const maxReason = 500

// CheckReason refuses a reason, of whatever is to have one, that is missing or too long.
func CheckReason(reason string) error {
	switch n := len([]rune(reason)); {
	case n == 0:
		return &InvalidArgumentError{Field: "reason", Description: "is required: say why, for those who find it"}
	case n > maxReason:
		return &InvalidArgumentError{Field: "reason", Description: fmt.Sprintf("at most %d characters", maxReason)}
	}
	return nil
}

// requestReused is the error that a request id has started a run of something else: of another worker, on another database,
// or as a dry run.
func requestReused(first Run) error {
	what := first.Worker
	if first.Database != "" {
		what += " on " + first.Database
	}
	if first.DryRun {
		what += " (dry run)"
	}
	return &RefusedError{
		Reason: "REQUEST_ID_REUSED",
		Text:   fmt.Sprintf("this request_id has started run %s of %s: choose another one for another request", first.ID, what),
		Metadata: map[string]string{
			"run_id": first.ID, "worker": first.Worker, "database": first.Database,
			"dry_run": strconv.FormatBool(first.DryRun),
		},
	}
}

// WorkerPausedError reports that a worker, or [AllWorkers], is paused: new runs are refused until the pause ends.
type WorkerPausedError struct {
	Worker string
	Pause  repo.Pause
}

// what is paused.
func (e *WorkerPausedError) what() string {
	if e.Pause.Worker == AllWorkers {
		return "all workers are"
	}
	return e.Worker + " is"
}

// Error returns what is paused, by whom, since when and why, and how to end the pause.
func (e *WorkerPausedError) Error() string {
	how := "ResumeWorker (caretaker resume " + e.Worker + ")"
	if e.Pause.Worker == AllWorkers {
		how = "ResumeWorker * (caretaker resume --all)"
	}
	span := "since " + e.Pause.Since.UTC().Format(time.RFC3339)
	if !e.Pause.Until.IsZero() {
		span += " until " + e.Pause.Until.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s paused by %s %s: %s; end the pause with %s", e.what(), e.Pause.By, span, e.Pause.Reason, how)
}

// Details are the reason and the metadata that clients get.
func (e *WorkerPausedError) Details() (string, map[string]string) {
	metadata := map[string]string{
		"worker": e.Worker, "by": e.Pause.By, "reason": e.Pause.Reason, "paused": e.Pause.Worker,
	}
	if !e.Pause.Until.IsZero() {
		metadata["until"] = e.Pause.Until.UTC().Format(time.RFC3339Nano)
	}
	return ReasonPaused, metadata
}

// NotConfiguredError reports what configuration a worker misses, and what to do.
type NotConfiguredError struct{ Worker, Missing string }

// Error names what is missing.
func (e *NotConfiguredError) Error() string { return e.Worker + " is not configured: " + e.Missing }

// Details are the reason and the metadata that clients get.
func (e *NotConfiguredError) Details() (string, map[string]string) {
	return "WORKER_NOT_CONFIGURED", map[string]string{"worker": e.Worker}
}

// unknownWorker lists the names there are.
func (r *Runner) unknownWorker(name string) error {
	names := make([]string, 0, len(r.Workers))
	for _, w := range r.Workers {
		names = append(names, w.Name)
	}
	advice := "there are " + strings.Join(names, ", ")
	if slices.Contains(r.LeftOut, name) {
		advice = "it is for GitLab's tables, which use: loose_foreign_keys leaves out: set use: gitlab in " +
			"the configuration and run caretaker migrate, or take one of: " + strings.Join(names, ", ")
	}
	return Unknown(ErrUnknownWorker, "worker", name, fmt.Sprintf("unknown worker %q: %s", name, advice))
}

// Forbidden reports whether our role lacks a privilege, or row-level security keeps rows from it.
func Forbidden(err error) bool {
	refused, ok := errors.AsType[*repo.Error](err)
	return ok && refused.SQLState == "42501"
}

// IsTemporary reports whether a run did not start for a reason that goes away by itself.
func IsTemporary(err error) bool {
	var held *LeaseHeldError
	var paused *WorkerPausedError
	return errors.As(err, &held) || errors.As(err, &paused) || errors.Is(err, ErrStopping)
}

// Typed reasons of runs, jobs and groups. What repo finds out in a transaction it names
// itself.
const (
	ReasonTargetGone     = repo.ReasonTargetGone
	ReasonSettingOff     = repo.ReasonSettingOff
	ReasonSettingInvalid = "SETTING_INVALID"

	ReasonLeaseLost = "LEASE_LOST"
	ReasonJobLost   = "JOB_LOST"
	reasonLeaseHeld = "LEASE_HELD"
	// reasonRequestKnown: the request id has started a run before.
	reasonRequestKnown = "REQUEST_KNOWN"
	// ReasonThrottled and ReasonQueueFull begin the reasons of runs that have ended early: because of
	// the load, and because too many users wait for their deletion. ReasonPaused is that of jobs that
	// wait for the end of a pause.
	ReasonThrottled = "THROTTLED"
	ReasonQueueFull = "QUEUE_FULL"
	ReasonPaused    = "WORKER_PAUSED"
	// ReasonDisabled is that of a continuation whose worker is not enabled here.
	ReasonDisabled = "DISABLED"
	// ReasonSliceUsed and ReasonTargetBusy are those of jobs that are continued later: their attempt
	// has worked as long as it may, another one is at work on the same.
	ReasonSliceUsed  = "SLICE_USED"
	ReasonTargetBusy = "TARGET_BUSY"

	ReasonInternalUser     = repo.ReasonInternalUser
	ReasonPersonalProjects = "PERSONAL_PROJECTS"

	ReasonStillReferenced = "STILL_REFERENCED"
	reasonKeptByTrigger   = repo.ReasonKeptByTrigger
	ReasonNotAPlaceholder = "NOT_A_PLACEHOLDER"
	ReasonNoLongerMarked  = "NO_LONGER_MARKED"

	ReasonRightsMissing      = "RIGHTS_MISSING"
	ReasonUserMissing        = "DELETING_USER_MISSING"
	ReasonDeletionInProgress = "DELETION_IN_PROGRESS"
	ReasonScheduleLost       = "SCHEDULE_LOST"
)

// The reasons of runs that continue what another has left, besides the schedule. One after the load
// does whatever the schedule's would: the other may not even have begun.
const (
	ReasonContinuation = "continuation"
	reasonAfterLoad    = "after the load"
)

// Pluralize is a number with its noun, in the plural unless it is 1: 1 user, 2 users.
func Pluralize[N ~int | ~int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Misleading reports whether a character can make a name look like another one, or like a part of what
// stands around it: control characters, and those that change the direction of the text or end its line.
func Misleading(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// Tone is how a state is shown: as bad, as warn if an operator may have to act, as busy, good or off.
func Tone(state string) string {
	switch state {
	case "failed", "failing", "discarded", "error":
		return "bad"
	case "paused", "throttled", "lease held elsewhere", "hold", "retryable", "missed", "cancelled",
		"refused", "warning":
		return "warn"
	case "running":
		return "busy"
	case "succeeded", "idle", "completed", "ran":
		return "good"
	}
	return "off"
}

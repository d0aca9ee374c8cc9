package run

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// Errors of the methods of [Runner], besides [InvalidArgumentError], [WorkerPausedError],
// [NotConfiguredError], [LeaseHeldError] and [RequestReusedError].
var (
	// ErrUnknownWorker, ErrUnknownDatabase, ErrUnknownRun, ErrUnknownJob and ErrUnknownFlag: there is nothing of that name or id.
	// They are found in an [UnknownError].
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

// UnknownError says which name or id there is nothing of.
type UnknownError struct {
	// What is one of the errors above.
	What error
	// Name is what was asked for, as it was asked for.
	Name string
	// Text says so, and what there is.
	Text string
}

// Error is the text.
func (e *UnknownError) Error() string { return e.Text }

// Unwrap says of what kind the name is.
func (e *UnknownError) Unwrap() error { return e.What }

// unknown says that there is nothing of a name, and what to do.
func unknown(what error, name, advice string) error {
	return &UnknownError{what, name, fmt.Sprintf("%s %q: %s", what, name, advice)}
}

// UnreachableDatabase is the name of the database that an [ErrUnreachable] is about, and why it cannot work; "" if the
// error does not say.
func UnreachableDatabase(err error) (name, why string) {
	if refused, ok := errors.AsType[*repo.Error](err); ok {
		return refused.Database, refused.Explanation()
	}
	return "", ""
}

// PrivilegeMissing says which right the role of a database lacks, and what to grant; false if an error is about something
// else.
func PrivilegeMissing(err error) (text string, ok bool) {
	if Forbidden(err) || errors.Is(err, repo.ErrForbidden) {
		return PublicText(err), true
	}
	return "", false
}

// SchemaMissing says which database lacks tables or columns of caretaker's own; false if an error is
// about something else. Runs report what they miss of the application themselves.
func SchemaMissing(err error) (text string, ok bool) {
	refused, ok := errors.AsType[*repo.Error](err)
	if !ok || !slices.Contains([]string{"42P01", "42703", "3F000"}, refused.SQLState) {
		return "", false
	}
	return "database " + refused.Database + " lacks tables or columns of this version: run caretaker migrate", true
}

// LeaseHeldError says who is doing this work already.
type LeaseHeldError = repo.LeaseHeldError

// InvalidArgumentError names the field of a request that is wrong, and what is allowed.
type InvalidArgumentError struct{ Field, Description string }

// Error names the field first.
func (e *InvalidArgumentError) Error() string { return e.Field + ": " + e.Description }

// Public says that the text is fit for clients.
func (e *InvalidArgumentError) Public() {}

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

// RequestReusedError says that a request id has started a run of something else: of another worker, on another database,
// or as a dry run.
type RequestReusedError struct{ First Run }

// Error names the run.
func (e *RequestReusedError) Error() string {
	what := e.First.Worker
	if e.First.Database != "" {
		what += " on " + e.First.Database
	}
	if e.First.DryRun {
		what += " (dry run)"
	}
	return fmt.Sprintf("this request_id has started run %s of %s: choose another one for another request", e.First.ID, what)
}

// Public says that the text is fit for clients.
func (e *RequestReusedError) Public() {}

// WorkerPausedError says that a worker takes no new runs until it, or [AllWorkers], whichever the pause is of, is resumed.
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

// Error says what is paused, by whom, since when, why, and how to end that.
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

// Public says that the text is fit for clients.
func (e *WorkerPausedError) Public() {}

// NotConfiguredError says what a worker lacks, and what to do about it.
type NotConfiguredError struct{ Worker, Missing string }

// Error names what is missing.
func (e *NotConfiguredError) Error() string { return e.Worker + " is not configured: " + e.Missing }

// Public says that the text is fit for clients.
func (e *NotConfiguredError) Public() {}

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
	return unknown(ErrUnknownWorker, name, advice)
}

// Forbidden says whether our role lacks a privilege, or row-level security keeps rows from it.
func Forbidden(err error) bool {
	refused, ok := errors.AsType[*repo.Error](err)
	return ok && refused.SQLState == "42501"
}

// IsTemporary says whether a run did not start for a reason that goes away by itself.
func IsTemporary(err error) bool {
	var held *LeaseHeldError
	var paused *WorkerPausedError
	return errors.As(err, &held) || errors.As(err, &paused) || errors.Is(err, ErrStopping)
}

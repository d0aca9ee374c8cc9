package service

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/caretaker-go/caretaker/repo"
)

// skippedError ends a run as SKIPPED: there is nothing it could do.
type skippedError struct{ reason string }

func (e *skippedError) Error() string { return e.reason }

// failedError ends a run as FAILED although it did all it could: its text is fit for clients.
type failedError struct{ text string }

func (e *failedError) Error() string { return e.text }

// reasonLeaseLost is a typed reason of runs (spec/README.md section 4).
const reasonLeaseLost = "LEASE_LOST"

// conclude sets the state, reason and error of a run by what its work returned and why it was stopped.
func conclude(run *Run, workErr, stopped error) {
	var skipped *skippedError
	switch {
	case errors.Is(workErr, repo.ErrLeaseLost):
		run.State, run.Reason = repo.RunFailed, reasonLeaseLost
		run.Error = "the lease was lost; what was committed before stays, the next run goes on"
	case errors.As(workErr, &skipped):
		run.State, run.Reason = repo.RunSkipped, skipped.reason
	case workErr != nil && stopped != nil && errors.Is(workErr, stopped):
		run.State, run.Reason = repo.RunCancelled, stopped.Error()
	case workErr != nil:
		run.State, run.Error = repo.RunFailed, publicText(workErr)
	default:
		run.State = repo.RunSucceeded
	}
}

// publicText is an error in words fit for clients: SQLSTATE and condition, never the driver's text, values or SQL.
func publicText(err error) string {
	var failed *failedError
	var refused *repo.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &failed):
		return failed.text
	case errors.As(err, &refused):
		return fmt.Sprintf("%s on %s: %s", refused.Operation, refused.Database, refused.Condition())
	case errors.Is(err, repo.ErrUnreachable):
		return "a database is unreachable; the log of this run names it"
	case errors.Is(err, repo.ErrLeaseLost), errors.Is(err, errCancelled), errors.Is(err, errShutdown), errors.Is(err, errPaused):
		return strings.ToLower(err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "stopped before its end"
	}
	return "internal error; the log of this run has it"
}

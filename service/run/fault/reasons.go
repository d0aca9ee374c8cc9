package fault

import (
	"errors"

	"github.com/caretaker-go/caretaker/repo/reasons"
)

// Typed reasons of runs, jobs and groups. Those that repo finds out in a transaction are repo's, those
// of one worker alone are in its package.
const (
	ReasonSettingInvalid  = "SETTING_INVALID"
	ReasonStillReferenced = "STILL_REFERENCED"

	ReasonLeaseLost = "LEASE_LOST"
	ReasonLeaseHeld = "LEASE_HELD"
	ReasonJobLost   = "JOB_LOST"
	// ReasonInterrupted says that the process or the queue has ended the work.
	ReasonInterrupted = "INTERRUPTED"
	// ReasonThrottled and ReasonQueueFull begin the reasons of runs that have ended early: because of
	// the load, and because too many users wait for their deletion. ReasonPaused is that of jobs that
	// wait for the end of a pause.
	ReasonThrottled = "THROTTLED"
	ReasonQueueFull = "QUEUE_FULL"
	ReasonPaused    = "WORKER_PAUSED"
	// ReasonTargetBusy is that of jobs that are continued later: another one works on the same.
	ReasonTargetBusy = "TARGET_BUSY"
	// ReasonPlanChanged is that of runs that found other candidates than those expected.
	ReasonPlanChanged = "PLAN_CHANGED"
	// JobWaits is the reason of candidates that need no job of their own.
	JobWaits = "JOB_WAITING: a job for it waits already"
)

// ReasonOf is the typed reason of an error, "" if it has none.
func ReasonOf(err error) string {
	var typed interface{ TypedReason() string }
	if errors.As(err, &typed) {
		return typed.TypedReason()
	}
	return ""
}

// SkipReason is why a fire gets no run; the zero Reason for other errors.
func SkipReason(err error) reasons.Reason {
	var held *LeaseHeldError
	var paused *WorkerPausedError
	var unconfigured *NotConfiguredError
	switch {
	case errors.As(err, &held):
		return reasons.Reason{Code: ReasonLeaseHeld}
	case errors.As(err, &paused):
		return reasons.Reason{Code: ReasonPaused, Detail: err.Error()}
	case errors.As(err, &unconfigured):
		return reasons.Reason{Code: "WORKER_NOT_CONFIGURED", Detail: err.Error()}
	}
	return reasons.Reason{}
}

// EndedEarly reports whether a run with this reason ended before its time because of the load or a full queue.
func EndedEarly(reason string) bool {
	code := reasons.ReadReason(reason).Code
	return code == ReasonThrottled || code == ReasonQueueFull
}

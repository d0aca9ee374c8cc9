package fault

import (
	"errors"

	"github.com/caretaker-go/caretaker/repo/reasons"
)

// Typed reasons of runs, jobs and groups. Package repo has those that a transaction finds. A reason
// of one worker alone is in its package.
const (
	ReasonSettingInvalid  = "SETTING_INVALID"
	ReasonStillReferenced = "STILL_REFERENCED"

	ReasonLeaseLost = "LEASE_LOST"
	ReasonLeaseHeld = "LEASE_HELD"
	ReasonJobLost   = "JOB_LOST"
	// ReasonInterrupted means that the process or the queue has ended the work.
	ReasonInterrupted = "INTERRUPTED"
	// ReasonThrottled and ReasonQueueFull start the reasons of runs that ended early: because of
	// the load, or because too many users wait for their deletion. ReasonPaused belongs to jobs
	// that wait for the end of a pause.
	ReasonThrottled = "THROTTLED"
	ReasonQueueFull = "QUEUE_FULL"
	ReasonPaused    = "WORKER_PAUSED"
	// ReasonTargetBusy belongs to jobs that continue later: another job works on the same target.
	ReasonTargetBusy = "TARGET_BUSY"
	// ReasonPlanChanged belongs to runs that found unexpected candidates.
	ReasonPlanChanged = "PLAN_CHANGED"
	// JobWaits is the reason of candidates that need no job of their own.
	JobWaits = "JOB_WAITING: a job for this candidate is already waiting"
)

// ReasonOf returns the typed reason of an error, or "".
func ReasonOf(err error) string {
	var typed interface{ TypedReason() string }
	if errors.As(err, &typed) {
		return typed.TypedReason()
	}
	return ""
}

// SkipReason returns why a fire gets no run, or the zero Reason for other errors.
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

// EndedEarly reports whether the reason means an early end because of the load or a full queue.
func EndedEarly(reason string) bool {
	code := reasons.Read(reason).Code
	return code == ReasonThrottled || code == ReasonQueueFull
}

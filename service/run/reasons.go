package run

import "github.com/caretaker-go/caretaker/repo"

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

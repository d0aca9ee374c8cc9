package service

import "github.com/caretaker-go/caretaker/repo"

// Typed reasons of runs, jobs and groups (spec/README.md section 4). What repo finds out in a transaction it names
// itself.
const (
	reasonTargetGone     = repo.ReasonTargetGone
	reasonSettingOff     = repo.ReasonSettingOff
	reasonSettingInvalid = "SETTING_INVALID"

	reasonLeaseLost = "LEASE_LOST"
	reasonJobLost   = "JOB_LOST"
	reasonLeaseHeld = "LEASE_HELD"
	// reasonRequestKnown: the request id has started a run before.
	reasonRequestKnown = "REQUEST_KNOWN"
	// reasonThrottled and reasonQueueFull begin the reasons of runs that have ended early: to spare a database, and because
	// too many users wait for their deletion. reasonPaused is that of jobs that wait for the end of a pause.
	reasonThrottled = "THROTTLED"
	reasonQueueFull = "QUEUE_FULL"
	reasonPaused    = "WORKER_PAUSED"
	// reasonDisabled is that of a continuation whose worker is not enabled here.
	reasonDisabled = "DISABLED"
	// reasonSliceUsed and reasonTargetBusy are those of jobs that go on later: their attempt has worked as long as it may,
	// another one is at work on the same.
	reasonSliceUsed  = "SLICE_USED"
	reasonTargetBusy = "TARGET_BUSY"

	reasonInternalUser     = repo.ReasonInternalUser
	reasonPersonalProjects = "PERSONAL_PROJECTS"

	reasonStillReferenced = "STILL_REFERENCED"
	reasonKeptByTrigger   = repo.ReasonKeptByTrigger
	reasonNotAPlaceholder = "NOT_A_PLACEHOLDER"
	reasonNoLongerMarked  = "NO_LONGER_MARKED"

	reasonRightsMissing      = "RIGHTS_MISSING"
	reasonUserMissing        = "DELETING_USER_MISSING"
	reasonDeletionInProgress = "DELETION_IN_PROGRESS"
	reasonScheduleLost       = "SCHEDULE_LOST"
)

// The reasons of runs that go on with what another has left, besides the schedule. That of a run that the load has ended
// does whatever the schedule's would: the other may not even have begun.
const (
	reasonContinuation = "continuation"
	reasonAfterLoad    = "after the load"
)

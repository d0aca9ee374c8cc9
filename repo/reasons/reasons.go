// Package reasons holds the typed reasons of runs and jobs that the database decides.
package reasons

import "strings"

// Reason is a typed reason of a run or a job: a code in capitals and an optional detail. A reason
// without a code is text alone.
type Reason struct{ Code, Detail string }

// String returns the reason as a record stores it, in one text.
func (r Reason) String() string {
	if r.Code == "" || r.Detail == "" {
		return r.Code + r.Detail
	}
	return r.Code + ": " + r.Detail
}

// Read parses a reason from the text of a record.
func Read(text string) Reason {
	code, detail, _ := strings.Cut(text, ": ")
	if strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return Reason{Detail: text}
	}
	return Reason{code, detail}
}

// Typed reasons found in the transaction that would delete a user.
const (
	TargetGone              = "TARGET_GONE"
	InternalUser            = "INTERNAL_USER"
	NotABot                 = "NOT_A_BOT"
	SettingOff              = "SETTING_OFF"
	TokenActive             = "TOKEN_ACTIVE"
	NotAuthorized           = "NOT_AUTHORIZED"
	SoleOwnerOfGroup        = "SOLE_OWNER_OF_GROUP"
	SoleOwnerOfOrganization = "SOLE_OWNER_OF_ORGANIZATION"
)

// ProcessGone is the reason of an attempt that was presumed dead. ProcessGoneText is its
// text.
const (
	ProcessGone     = "PROCESS_GONE"
	ProcessGoneText = "the process of this attempt died or lost its database connection"
)

// KeptByTrigger is the reason of the rows of a [rowset.KeptError].
const KeptByTrigger = "KEPT_BY_TRIGGER"

// Typed reasons of skipped or refused work.
const (
	Protected = "PROTECTED"
	Cancelled = "CANCELLED"
)

// Typed reasons of items that no run processes before the operator decides.
const (
	// ScheduleLost is the reason of a group that looks marked for deletion, but has no mark.
	ScheduleLost = "SCHEDULE_LOST"
	// DeletingUserMissing is the reason of a group whose mark names no existing user.
	DeletingUserMissing = "DELETING_USER_MISSING"
	// DeadRecord is the reason of a dead record.
	DeadRecord = "DEAD_RECORD"
)

// KeyReused replaces the SQLSTATE of records that are held because their key is used again.
// KeyApproved replaces it if the next run cleans their children all the same.
const (
	KeyReused   = "KEY_REUSED"
	KeyApproved = "KEY_REUSED_CLEAN"
)

// KeyMismatch replaces the SQLSTATE of records with a [lfk.KeyMismatchError].
const KeyMismatch = "KEY_MISMATCH"

// QueueMoved is the reason of a [lfk.QueueMovedError].
const QueueMoved = "QUEUE_MOVED"

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

// ReadReason parses a reason from the text of a record.
func ReadReason(text string) Reason {
	code, detail, _ := strings.Cut(text, ": ")
	if strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return Reason{Detail: text}
	}
	return Reason{code, detail}
}

// Typed reasons found in the transaction that would delete a user.
const (
	ReasonTargetGone              = "TARGET_GONE"
	ReasonInternalUser            = "INTERNAL_USER"
	ReasonNotABot                 = "NOT_A_BOT"
	ReasonSettingOff              = "SETTING_OFF"
	ReasonTokenActive             = "TOKEN_ACTIVE"
	ReasonNotAuthorized           = "NOT_AUTHORIZED"
	ReasonSoleOwnerOfGroup        = "SOLE_OWNER_OF_GROUP"
	ReasonSoleOwnerOfOrganization = "SOLE_OWNER_OF_ORGANIZATION"
)

// ReasonProcessGone is the reason of an attempt that was presumed dead. ProcessGoneText is its
// text.
const (
	ReasonProcessGone = "PROCESS_GONE"
	ProcessGoneText   = "the process that worked it has died or lost the database"
)

// ReasonKeptByTrigger is the reason of the rows of a [rowset.KeptError].
const ReasonKeptByTrigger = "KEPT_BY_TRIGGER"

// Typed reasons of skipped or refused work.
const (
	ReasonProtected = "PROTECTED"
	ReasonCancelled = "CANCELLED"
)

// ReasonKeyReused replaces the SQLSTATE of records that are held because their key is used again.
// ReasonKeyApproved replaces it if the next run cleans their children all the same.
const (
	ReasonKeyReused   = "KEY_REUSED"
	ReasonKeyApproved = "KEY_REUSED_CLEAN"
)

// ReasonKeyMismatch replaces the SQLSTATE of records with a [lfk.KeyMismatchError].
const ReasonKeyMismatch = "KEY_MISMATCH"

// ReasonQueueMoved is the reason of a [lfk.QueueMovedError].
const ReasonQueueMoved = "QUEUE_MOVED"

// Package reasons has the typed reasons of runs and jobs that the database decides.
package reasons

import "strings"

// Reason is a typed reason of a run or a job: a code in capitals, and a detail in words or none. A
// reason without a code is words alone.
type Reason struct{ Code, Detail string }

// String is the reason as a record keeps it, in one text.
func (r Reason) String() string {
	if r.Code == "" || r.Detail == "" {
		return r.Code + r.Detail
	}
	return r.Code + ": " + r.Detail
}

// ReadReason is a reason from the text of a record.
func ReadReason(text string) Reason {
	code, detail, _ := strings.Cut(text, ": ")
	if strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return Reason{Detail: text}
	}
	return Reason{code, detail}
}

// Typed reasons that are found out in the transaction in which a user would be deleted.
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

// ReasonProcessGone is that of an attempt that was taken for dead, ProcessGoneText the same in
// words.
const (
	ReasonProcessGone = "PROCESS_GONE"
	ProcessGoneText   = "the process that worked it has died or lost the database"
)

// ReasonKeptByTrigger is that of rows which a [rowset.KeptError] is about.
const ReasonKeptByTrigger = "KEPT_BY_TRIGGER"

// Typed reasons of what is passed over or refused.
const (
	ReasonProtected = "PROTECTED"
	ReasonCancelled = "CANCELLED"
)

// ReasonKeyReused stands for the SQLSTATE of records that are held because their key is used again,
// ReasonKeyApproved for that of records whose children the next run cleans all the same.
const (
	ReasonKeyReused   = "KEY_REUSED"
	ReasonKeyApproved = "KEY_REUSED_CLEAN"
)

// ReasonKeyMismatch stands for the SQLSTATE of a [lfk.KeyMismatchError].
const ReasonKeyMismatch = "KEY_MISMATCH"

// ReasonQueueMoved is that of a [lfk.QueueMovedError].
const ReasonQueueMoved = "QUEUE_MOVED"

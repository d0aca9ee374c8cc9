package repo

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

// ReasonProcessGone is that of an attempt that was taken for dead, ProcessGoneText the same in words.
const (
	ReasonProcessGone = "PROCESS_GONE"
	ProcessGoneText   = "the process that worked it has died or lost the database"
)

// ReasonKeptByTrigger is that of rows which a [KeptError] is about.
const ReasonKeptByTrigger = "KEPT_BY_TRIGGER"

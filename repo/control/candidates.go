package control

// Kinds of candidates. Users and groups can be protected, a placeholder as a user.
const (
	KindUser        = "user"
	KindGroup       = "group"
	KindPlaceholder = "placeholder"
)

// Candidate is something that a run would work on: its kind, id and name, the action and its
// reason.
type Candidate struct {
	Kind string `json:"kind"`
	ID   int64  `json:"id"`
	// Name is a username or a full path, "" for neither.
	Name   string `json:"name"`
	Action string `json:"action"`
	// Reason is a typed reason, optionally with a text. "" means that the action needs none.
	Reason string `json:"reason"`
}

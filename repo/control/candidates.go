package control

// Kinds of what a run works on. Users and groups can be protected, a placeholder as a user.
const (
	KindUser        = "user"
	KindGroup       = "group"
	KindPlaceholder = "placeholder"
)

// Candidate is something that a run would work on: its kind, id and name, what would be done, and why.
type Candidate struct {
	Kind string `json:"kind"`
	ID   int64  `json:"id"`
	// Name is a username or a full path, "" where there is none.
	Name   string `json:"name"`
	Action string `json:"action"`
	// Reason is a typed reason, perhaps with words, "" where the action says all.
	Reason string `json:"reason"`
}

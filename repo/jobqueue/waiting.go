package jobqueue

import "time"

// Waiting is an item that a worker will not process now, as the backlog counts it. It is deferred
// to a later time, or dead until the operator decides.
type Waiting struct {
	// Kind and ID identify it: a group, user, placeholder or record.
	Kind string
	ID   int64
	// Name is a path, username or table with key, "" for none.
	Name string
	// Since is when it was recorded. Zero means unknown.
	Since time.Time
	// Until is when it is due. Zero means after the operator's decision.
	Until time.Time
	// Reason is a text, without driver text or values.
	Reason string
}

// WaitingShown is the maximum number of items in one answer.
const WaitingShown = 100

// WaitingRow is the result of a statement for [Waiting].
type WaitingRow struct {
	ID     int64
	Name   *string
	Since  time.Time
	Until  time.Time
	Reason string
}

// ReadWaiting converts rows into items of one kind.
func ReadWaiting(kind string, rows []WaitingRow) []Waiting {
	list := make([]Waiting, len(rows))
	for i, r := range rows {
		list[i] = Waiting{Kind: kind, ID: r.ID, Since: r.Since, Until: r.Until, Reason: r.Reason}
		if r.Name != nil {
			list[i].Name = *r.Name
		}
	}
	return list
}

package jobqueue

import "time"

// Waiting is something that a worker will not work on now, as the backlog counts it: it is deferred
// to a later time, or dead, which somebody has to decide about.
type Waiting struct {
	// Kind and ID say what it is: a group, user, placeholder or record.
	Kind string
	ID   int64
	// Name is a path, username or table with key; "": it has none.
	Name string
	// Since is when it was recorded; zero: that is not known.
	Since time.Time
	// Until is when it is due; zero: when somebody has decided.
	Until time.Time
	// Reason in words; never driver text or values.
	Reason string
}

// WaitingShown is how many there are in one answer.
const WaitingShown = 100

// WaitingRow is the result of a statement for [Waiting].
type WaitingRow struct {
	ID     int64
	Name   *string
	Since  time.Time
	Until  time.Time
	Reason string
}

// ReadWaiting makes rows a list of things of one kind.
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

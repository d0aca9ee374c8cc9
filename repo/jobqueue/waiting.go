package jobqueue

import (
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo/reasons"
)

// Waiting is an item that a worker will not process now: deferred, or dead until the operator decides.
type Waiting struct {
	// Kind and ID identify it: a group, user, placeholder or record.
	Kind string
	ID   int64
	// Name is a path, username or table with key, "" for none.
	Name string
	// Since is when it was recorded, zero if unknown. Until is when it is due, zero for after the
	// operator's decision.
	Since, Until time.Time
	// Reason is a text, without driver text or values. Code is its typed reason, "" for none.
	Reason, Code string
	// Job is the cancelled job for the reason CANCELLED, otherwise 0.
	Job int64
}

// WaitingShown is the maximum number of items in one answer.
const WaitingShown = 100

// WaitingRow is the result of a statement for [Waiting].
type WaitingRow struct {
	ID           int64
	Name         *string
	Since, Until time.Time
	Reason       string
}

// ReadWaiting converts rows into items of one kind.
func ReadWaiting(kind string, rows []WaitingRow) []Waiting {
	list := make([]Waiting, len(rows))
	for i, r := range rows {
		code := reasons.Read(r.Reason).Code
		list[i] = Waiting{Kind: kind, ID: r.ID, Since: r.Since, Until: r.Until, Reason: r.Reason, Code: code}
		_, _ = fmt.Sscanf(r.Reason, reasons.Cancelled+": job %d", &list[i].Job)
		if r.Name != nil {
			list[i].Name = *r.Name
		}
	}
	return list
}

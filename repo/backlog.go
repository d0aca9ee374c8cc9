package repo

import "time"

// Backlog is what waits for a worker in one database.
type Backlog struct {
	Pending, Due, Deferred, Dead int64
	// OldestAt is zero when nothing waits.
	OldestAt time.Time
	// Partitions of the queue, where it has any.
	Partitions int
	// AtLeast: counting stopped, the figures are lower bounds.
	AtLeast bool
	// ReadAt is when, by the clock of the database.
	ReadAt time.Time
}

// backlogCap is up to where a backlog is counted exactly.
const backlogCap = 1_000_000

// capped turns counts that went beyond the cap into lower bounds.
func (b Backlog) capped() Backlog {
	b.AtLeast = max(b.Pending, b.Due, b.Dead) > backlogCap
	b.Pending, b.Due, b.Dead = min(b.Pending, backlogCap), min(b.Due, backlogCap), min(b.Dead, backlogCap)
	b.Deferred = b.Pending - b.Due
	return b
}

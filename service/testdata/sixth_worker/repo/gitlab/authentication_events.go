package gitlab

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// ExpiredEvents selects at most Limit authentication events from before a time, oldest first.
type ExpiredEvents struct {
	Before time.Time
	Limit  int
}

// AuthenticationEvents returns which table or column is missing in the application schema, or "".
func (u Users) AuthenticationEvents(ctx context.Context) (missing string, err error) {
	essential := catalog.ReferencesOf("authentication_events", "id created_at")
	p, err := catalog.Present(ctx, u.db, essential)
	if err != nil {
		return "", err
	}
	return p.Missing(ctx, essential...), nil
}

// deleteExpiredEventsSQL reads the $2 oldest events and deletes those from before $1. Ids grow with
// time, so later events are younger, and the statement needs no index on the time.
const deleteExpiredEventsSQL = `
WITH {guard},
oldest AS MATERIALIZED (
  SELECT id, created_at FROM authentication_events ORDER BY id LIMIT $2
),
changed AS (
  DELETE FROM authentication_events
  WHERE id = ANY (ARRAY(SELECT id FROM oldest WHERE created_at < $1::timestamptz))
    AND (SELECT held FROM guard) = 1
  RETURNING id AS key
)
SELECT EXISTS (SELECT FROM guard) AND {noted}, (SELECT count(*) FROM changed)`

// DeleteExpiredEvents deletes expired events and returns their number, 0 if none remain.
func (u Users) DeleteExpiredEvents(
	ctx context.Context, p fencing.Permit, e ExpiredEvents,
) (deleted int64, err error) {
	sql := pg.Summary(u.db, stmt.Fill(deleteExpiredEventsSQL, "{noted}", pg.ReceiptSQL), "id", "true")
	q := pg.NewQuery("delete authentication events", sql, e.Before, e.Limit)
	r := pg.Receipt{
		Table: "authentication_events", Action: pg.ReceiptDeleted, Rule: "authentication_events.created_at",
	}
	err = pg.Change(ctx, u.db, p, q, r, &deleted)
	return deleted, err
}

// countExpiredEventsSQL counts those of the $2 oldest events that are from before $1.
const countExpiredEventsSQL = `
SELECT count(*), min(created_at), clock_timestamp()
FROM (SELECT created_at FROM authentication_events ORDER BY id LIMIT $2) oldest
WHERE created_at < $1::timestamptz`

// CountExpiredEvents counts expired events without changing them.
func (u Users) CountExpiredEvents(
	ctx context.Context, e ExpiredEvents, l fencing.Limits,
) (b control.Backlog, err error) {
	var oldest *time.Time
	q := pg.NewQuery("count authentication events", countExpiredEventsSQL, e.Before, e.Limit)
	err = pg.ReadRow(ctx, u.db, l, q, &b.Due, &oldest, &b.ReadAt)
	if oldest != nil {
		b.OldestAt = *oldest
	}
	b.Pending, b.AtLeast = b.Due, b.Due == int64(e.Limit)
	return b, err
}

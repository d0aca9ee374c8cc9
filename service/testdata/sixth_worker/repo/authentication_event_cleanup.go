package repo

import (
	"context"
	"time"
)

// ExpiredEvents are the authentication events from before a time, the oldest first, as many as Limit.
type ExpiredEvents struct {
	Before time.Time
	Limit  int
}

// AuthenticationEvents says what is missing in the application schema, "" if nothing is.
func (d *Database) AuthenticationEvents(ctx context.Context) (missing string, err error) {
	essential := referencesOf("authentication_events", "id created_at")
	p, err := d.presence(ctx, essential)
	if err != nil {
		return "", err
	}
	return p.missing(ctx, essential...), nil
}

// deleteExpiredEventsSQL looks at the $2 oldest events and deletes those from before $1. Ids grow with
// time, so nothing behind a page without such an event is old enough: no index on the time is needed.
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

// DeleteExpiredEvents deletes expired events and says how many; 0: there are no more.
func (d *Database) DeleteExpiredEvents(
	ctx context.Context, p Permit, e ExpiredEvents,
) (deleted int64, err error) {
	sql := d.summary(fill(deleteExpiredEventsSQL, "{noted}", receiptSQL), "id", "true")
	q := newQuery("delete authentication events", sql, e.Before, e.Limit)
	r := receipt{"authentication_events", receiptDeleted, "authentication_events.created_at"}
	err = d.change(ctx, p, q, r, &deleted)
	return deleted, err
}

const countExpiredEventsSQL = `
SELECT count(*), min(created_at), clock_timestamp()
FROM (SELECT created_at FROM authentication_events ORDER BY id LIMIT $2) oldest
WHERE created_at < $1::timestamptz`

// CountExpiredEvents counts expired events and writes nothing.
func (d *Database) CountExpiredEvents(
	ctx context.Context, e ExpiredEvents, l Limits,
) (b Backlog, err error) {
	var oldest *time.Time
	q := newQuery("count authentication events", countExpiredEventsSQL, e.Before, e.Limit)
	err = d.readRow(ctx, l, q, &b.Due, &oldest, &b.ReadAt)
	if oldest != nil {
		b.OldestAt = *oldest
	}
	b.Pending, b.AtLeast = b.Due, b.Due == int64(e.Limit)
	return b, err
}

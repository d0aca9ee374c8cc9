package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
)

// Outcomes of a fire, as maintenance.fires stores them.
const (
	// FireRan has a run.
	FireRan = "ran"
	// FireSkipped was to have no run. Its reason explains why.
	FireSkipped = "skipped"
	// FireMissed: no server ran it in time.
	FireMissed = "missed"
)

// Fire is a row of maintenance.fires: a time at which a worker's schedule has a run, and its
// outcome.
type Fire struct {
	Worker string
	// Time is when it was due.
	Time            time.Time
	Outcome, Reason string
	// RunID is its run, including a run recorded as skipped. ClaimedBy is the replica that claimed the
	// fire. Both may be empty.
	RunID, ClaimedBy string
	// ClaimedAt and StartedAt, the start of its run, are zero if it has none.
	ClaimedAt, StartedAt time.Time
}

// Late returns the delay of the fire's run, 0 without a run.
func (f *Fire) Late() time.Duration {
	if f.StartedAt.IsZero() {
		return 0
	}
	return max(0, f.StartedAt.Sub(f.Time))
}

// orNull returns nil for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// $4 is compared only together with $3.
const listFiresSQL = `
SELECT worker, fire_time, outcome, reason, coalesce(run_id::text, ''), claimed_by, claimed_at, started_at FROM maintenance.fires
WHERE ($1 = '' OR worker = $1) AND ($2 = '' OR outcome = $2)
  AND ($3::timestamptz IS NULL OR (fire_time, worker) < ($3::timestamptz, $4))
ORDER BY fire_time DESC, worker DESC LIMIT $5`

// FireFilter selects fires: of one worker, with one outcome, after the fire of AfterWorker at After
// in the list. Each zero value selects all.
type FireFilter struct {
	Worker, Outcome string
	After           time.Time
	AfterWorker     string
	// Limit is the maximum number of fires.
	Limit int
}

// ListFires reads fires, the newest first.
func (d Fires) ListFires(ctx context.Context, f FireFilter) ([]Fire, error) {
	q := pg.NewQuery("list fires", listFiresSQL, stmt.CustomPlan,
		f.Worker, f.Outcome, orNull(f.After), f.AfterWorker, f.Limit)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[Fire])
}

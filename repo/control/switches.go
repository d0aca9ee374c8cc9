package control

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/internal/pg"
)

// Pause keeps a worker from running. See maintenance.pauses.
type Pause struct {
	// Worker is * for all workers.
	Worker, Reason, By string
	Since              time.Time
	// Until is zero for a pause without an end.
	Until time.Time
}

// pausesSQL reads the pauses that have not expired, by main's clock.
const pausesSQL = `
SELECT worker, reason, paused_by, since, until FROM maintenance.pauses
WHERE until IS NULL OR until > clock_timestamp() ORDER BY worker`

// Pauses reads the pauses in force.
func (d Flags) Pauses(ctx context.Context) ([]Pause, error) {
	q := pg.NewQuery("read pauses", pausesSQL)
	return pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[Pause])
}

// pauseSQL computes the end by main's clock.
const pauseSQL = `
INSERT INTO maintenance.pauses (worker, reason, paused_by, until)
VALUES ($1, $2, $3, CASE WHEN $4::interval > interval '0' THEN clock_timestamp() + $4::interval END)
ON CONFLICT (worker) DO UPDATE
SET reason = EXCLUDED.reason, paused_by = EXCLUDED.paused_by, since = EXCLUDED.since,
  until = EXCLUDED.until`

// Pause pauses a worker for ttl. 0 means without an end. It replaces a pause in force.
func (d Flags) Pause(ctx context.Context, worker, reason, by string, ttl time.Duration) error {
	_, err := pg.Exec(ctx, d.db, "pause the worker", pauseSQL, worker, reason, by, ttl)
	return err
}

// resumeSQL keeps an expired pause: nothing reads it.
const resumeSQL = `
DELETE FROM maintenance.pauses
WHERE worker = $1 AND (until IS NULL OR until > clock_timestamp())`

// Resume ends a worker's pause, and reports whether one was in force.
func (d Flags) Resume(ctx context.Context, worker string) (ended bool, err error) {
	n, err := pg.Exec(ctx, d.db, "resume the worker", resumeSQL, worker)
	return n > 0, err
}

// featureFlagsSQL reads the flags that have a row.
const featureFlagsSQL = `SELECT name, enabled FROM maintenance.feature_flags`

// FeatureFlags reads all flags that have been set.
func (d Flags) FeatureFlags(ctx context.Context) (map[string]bool, error) {
	type flag struct {
		Name    string
		Enabled bool
	}
	q := pg.NewQuery("read feature flags", featureFlagsSQL)
	flags, err := pg.Collect(ctx, d.db, q, pgx.RowToStructByPos[flag])
	out := make(map[string]bool, len(flags))
	for _, f := range flags {
		out[f.Name] = f.Enabled
	}
	return out, err
}

// setFeatureFlagSQL inserts a flag, or changes it.
const setFeatureFlagSQL = `
INSERT INTO maintenance.feature_flags (name, enabled) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET enabled = EXCLUDED.enabled`

// SetFeatureFlag sets a flag.
func (d Flags) SetFeatureFlag(ctx context.Context, name string, enabled bool) error {
	_, err := pg.Exec(ctx, d.db, "set the feature flag", setFeatureFlagSQL, name, enabled)
	return err
}

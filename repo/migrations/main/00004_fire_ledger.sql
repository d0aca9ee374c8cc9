-- +goose Up
-- The defaults are for running servers of an older version, which claim a fire to run it.
ALTER TABLE maintenance.fires
  ADD COLUMN outcome text NOT NULL DEFAULT 'ran' CHECK (outcome IN ('claimed', 'ran', 'skipped', 'missed')),
  ADD COLUMN reason text NOT NULL DEFAULT '',
  ADD COLUMN started_at timestamptz,
  ALTER COLUMN claimed_at DROP NOT NULL;
COMMENT ON TABLE maintenance.fires IS 'A row for each due or past fire of a schedule, with its outcome: https://github.com/caretaker-go/caretaker/blob/main/docs/concepts/scheduling.md';
CREATE INDEX fires_by_time ON maintenance.fires (fire_time DESC, worker DESC);
CREATE INDEX fires_claimed ON maintenance.fires (worker) WHERE outcome = 'claimed';

CREATE TABLE maintenance.schedules (
  worker text PRIMARY KEY,
  cron text NOT NULL,
  accounted_until timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE maintenance.schedules IS 'Schedules of workers. Every fire up to accounted_until has a row in maintenance.fires.';

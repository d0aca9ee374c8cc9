-- +goose Up
-- The defaults are for servers that are older than this migration and still at work: they claim a fire to run it.
ALTER TABLE maintenance.fires
  ADD COLUMN outcome text NOT NULL DEFAULT 'ran' CHECK (outcome IN ('claimed', 'ran', 'skipped', 'missed')),
  ADD COLUMN reason text NOT NULL DEFAULT '',
  ADD COLUMN started_at timestamptz,
  ALTER COLUMN claimed_at DROP NOT NULL;
COMMENT ON TABLE maintenance.fires IS 'A row for each fire of a schedule that is due or past, with what became of it: docs/concepts/scheduling.md.';
CREATE INDEX fires_by_time ON maintenance.fires (fire_time DESC, worker DESC);
CREATE INDEX fires_claimed ON maintenance.fires (worker) WHERE outcome = 'claimed';

CREATE TABLE maintenance.schedules (
  worker text PRIMARY KEY,
  cron text NOT NULL,
  accounted_until timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE maintenance.schedules IS 'Up to accounted_until every fire of the worker has its row in maintenance.fires.';

-- +goose Up
CREATE TABLE maintenance.runs (
  id uuid PRIMARY KEY,
  worker text NOT NULL,
  database text NOT NULL DEFAULT '',
  trigger text NOT NULL,
  state text NOT NULL,
  reason text NOT NULL DEFAULT '',
  dry_run boolean NOT NULL DEFAULT false,
  request_id text,
  requested_by text NOT NULL DEFAULT '',
  replica text NOT NULL DEFAULT '',
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  heartbeat_ttl interval NOT NULL,
  finished_at timestamptz,
  cancel_requested_at timestamptz,
  over_limit boolean NOT NULL DEFAULT false,
  turbo_mode boolean NOT NULL DEFAULT false,
  lease_epoch bigint NOT NULL DEFAULT 0,
  trace_id text NOT NULL DEFAULT '',
  error text NOT NULL DEFAULT '',
  counts jsonb NOT NULL DEFAULT '{}',
  tables jsonb NOT NULL DEFAULT '[]',
  definitions jsonb NOT NULL DEFAULT '[]',
  CHECK (state IN ('running', 'succeeded', 'failed', 'cancelled', 'skipped')),
  CHECK (trigger IN ('schedule', 'request'))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX runs_by_request ON maintenance.runs (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX runs_by_worker ON maintenance.runs (worker, id DESC);
CREATE INDEX runs_by_database ON maintenance.runs (worker, database, id DESC);
CREATE INDEX runs_by_state ON maintenance.runs (worker, state, id DESC);
CREATE INDEX runs_at_work ON maintenance.runs (id) WHERE state = 'running';

CREATE TABLE maintenance.fires (
  worker text NOT NULL,
  fire_time timestamptz NOT NULL,
  claimed_by text NOT NULL,
  claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  run_id uuid,
  PRIMARY KEY (worker, fire_time)
);
COMMENT ON TABLE maintenance.fires IS 'Fires of schedules. A fire belongs to the replica that inserted its row.';

CREATE TABLE maintenance.pauses (
  worker text PRIMARY KEY,
  reason text NOT NULL,
  paused_by text NOT NULL,
  since timestamptz NOT NULL DEFAULT clock_timestamp(),
  until timestamptz
);

CREATE TABLE maintenance.feature_flags (
  name text PRIMARY KEY,
  enabled boolean NOT NULL
);

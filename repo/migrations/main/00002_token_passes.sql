-- +goose Up
CREATE TABLE maintenance.token_passes (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  started_at timestamptz NOT NULL,
  cut_off timestamptz NOT NULL,
  today date NOT NULL,
  cursor bigint NOT NULL DEFAULT 0,
  examined bigint NOT NULL DEFAULT 0,
  scheduled bigint NOT NULL DEFAULT 0,
  finished_at timestamptz
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX token_passes_unfinished ON maintenance.token_passes ((true)) WHERE finished_at IS NULL;
COMMENT ON TABLE maintenance.token_passes IS 'Passes of inactive_token_deletion over all project bots. cursor is the highest bot that is done.';

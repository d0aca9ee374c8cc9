-- +goose Up
CREATE TABLE maintenance.receipts (
  sequence bigint PRIMARY KEY,
  at timestamptz NOT NULL,
  run_id uuid,
  job_id bigint,
  worker text NOT NULL,
  "table" text NOT NULL,
  action text NOT NULL,
  rule text NOT NULL,
  rows bigint NOT NULL,
  lowest_key text,
  highest_key text,
  keys_digest bytea NOT NULL,
  keys text[],
  requested_by text NOT NULL,
  hash bytea NOT NULL
);
COMMENT ON TABLE maintenance.receipts IS 'Deleted, updated and nullified rows, one row for each committed batch, written in its transaction. Each hash covers the row and the previous hash: see caretaker receipts verify.';
CREATE INDEX receipts_by_table ON maintenance.receipts ("table", sequence);
CREATE INDEX receipts_by_run ON maintenance.receipts (run_id, sequence) WHERE run_id IS NOT NULL;
CREATE INDEX receipts_by_job ON maintenance.receipts (job_id, sequence) WHERE job_id IS NOT NULL;

CREATE TABLE maintenance.receipt_head (
  only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
  sequence bigint NOT NULL,
  hash bytea NOT NULL,
  pruned_sequence bigint NOT NULL,
  pruned_hash bytea NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE maintenance.receipt_head IS 'The newest receipt, and the newest pruned receipt.';
INSERT INTO maintenance.receipt_head (sequence, hash, pruned_sequence, pruned_hash) VALUES (0, '', 0, '');

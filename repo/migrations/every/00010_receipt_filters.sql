-- +goose Up
CREATE INDEX receipts_by_time ON maintenance.receipts (at);
CREATE INDEX receipts_by_worker ON maintenance.receipts (worker, sequence);

-- +goose Up
CREATE INDEX receipts_by_table_and_worker ON maintenance.receipts ("table", worker, sequence);

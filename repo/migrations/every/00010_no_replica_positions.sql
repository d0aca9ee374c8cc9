-- +goose Up
DROP TABLE maintenance.replica_positions;

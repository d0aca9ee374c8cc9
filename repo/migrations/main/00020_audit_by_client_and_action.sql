-- +goose Up
CREATE INDEX audit_by_client_and_action ON maintenance.audit (by, action, at, id);

-- +goose Up
CREATE INDEX audit_by_client ON maintenance.audit (by, at, id);
CREATE INDEX audit_by_action ON maintenance.audit (action, at, id);

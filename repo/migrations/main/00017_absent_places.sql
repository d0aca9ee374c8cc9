-- +goose Up
ALTER TABLE maintenance.absent_children
  ADD COLUMN database text NOT NULL DEFAULT '',
  DROP CONSTRAINT absent_children_pkey,
  ADD PRIMARY KEY (child, database);
COMMENT ON TABLE maintenance.absent_children IS 'Child tables of loose foreign keys that an operator has accepted as absent: their definitions are skipped. A run that finds such a table there deletes its row.';
COMMENT ON COLUMN maintenance.absent_children.database IS 'The configured database that no longer has the table, while others have it; empty: no configured database has it.';

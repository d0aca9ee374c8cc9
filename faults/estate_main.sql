-- Tables of main besides the estate of the model, created before the rules.

-- Existing parents with records of a deletion. The application moves those with odd ids in one transaction, and
-- deletes the old copy of the others. It does so once each, because a second record would name a newer row.
CREATE TABLE shelves (id bigint PRIMARY KEY, moved boolean NOT NULL DEFAULT false);
CREATE TABLE shelves_copy (id bigint PRIMARY KEY);
CREATE TABLE books (id bigserial PRIMARY KEY, shelf_id bigint NOT NULL);
CREATE INDEX ON books (shelf_id);
INSERT INTO shelves SELECT generate_series(1, 4000);
INSERT INTO shelves_copy SELECT id FROM shelves WHERE id % 2 = 0;
INSERT INTO books (shelf_id) SELECT id FROM shelves, generate_series(1, 3);
CREATE TRIGGER shelves_loose_fk_trigger AFTER DELETE ON shelves REFERENCING OLD TABLE AS old_table
  FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();
CREATE TRIGGER shelves_copy_loose_fk_trigger AFTER DELETE ON shelves_copy REFERENCING OLD TABLE AS old_table
  FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table('shelves');

-- A cascade of PostgreSQL leads from a child of a loose foreign key to a protected user, at the desk of depot 1.
CREATE TABLE depots (id bigint PRIMARY KEY);
CREATE TABLE desks (id bigint PRIMARY KEY, depot_id bigint NOT NULL);
CREATE INDEX ON desks (depot_id);
ALTER TABLE users ADD desk_id bigint REFERENCES desks ON DELETE CASCADE;
CREATE INDEX ON users (desk_id);
INSERT INTO depots SELECT generate_series(1, 20);
INSERT INTO desks SELECT n, 1 + n % 20 FROM generate_series(20, 200) n;
UPDATE users SET desk_id = 20 WHERE id IN (SELECT id FROM maintenance.protected_targets WHERE kind = 'user');
CREATE TRIGGER depots_loose_fk_trigger AFTER DELETE ON depots REFERENCING OLD TABLE AS old_table
  FOR EACH STATEMENT EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();
DELETE FROM depots;

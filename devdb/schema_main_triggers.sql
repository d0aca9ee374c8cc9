-- Reference schema, database main: triggers. Like those of GitLab, they fire for origin only.

CREATE FUNCTION insert_namespace_details() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO namespace_details (namespace_id, created_at, updated_at)
    VALUES (NEW.id, NEW.created_at AT TIME ZONE 'UTC', NEW.updated_at AT TIME ZONE 'UTC')
    ON CONFLICT (namespace_id) DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER namespaces_insert_details AFTER INSERT ON namespaces
    FOR EACH ROW EXECUTE FUNCTION insert_namespace_details();

CREATE FUNCTION delete_project_namespace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM namespaces WHERE namespaces.id = OLD.project_namespace_id AND namespaces.type = 'Project';
    RETURN NULL;
END
$$;
CREATE TRIGGER projects_delete_namespace AFTER DELETE ON projects
    FOR EACH ROW EXECUTE FUNCTION delete_project_namespace();

CREATE TRIGGER users_loose_fk_trigger AFTER DELETE ON users
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();

CREATE TRIGGER namespaces_loose_fk_trigger AFTER DELETE ON namespaces
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();

CREATE TRIGGER projects_loose_fk_trigger AFTER DELETE ON projects
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();

CREATE TRIGGER merge_requests_loose_fk_trigger AFTER DELETE ON merge_requests
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();

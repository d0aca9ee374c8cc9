-- Reference schema, database main: the tables that all others refer to.
CREATE TABLE organizations (
    id bigserial PRIMARY KEY, name text NOT NULL DEFAULT '', path text NOT NULL, visibility_level smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX index_organizations_on_path ON organizations (path);

CREATE TABLE users (
    id bigserial PRIMARY KEY, email varchar NOT NULL DEFAULT '', encrypted_password varchar NOT NULL DEFAULT '', name varchar, username varchar, admin boolean NOT NULL DEFAULT false,
    projects_limit integer NOT NULL, state varchar, user_type smallint DEFAULT 0, organization_id bigint NOT NULL REFERENCES organizations,
    created_by_id bigint, note text, external boolean DEFAULT false, private_profile boolean NOT NULL DEFAULT false, confirmed_at timestamp,
    hide_no_ssh_key boolean DEFAULT false, hide_no_password boolean DEFAULT false, project_view smallint DEFAULT 0, notified_of_own_activity boolean DEFAULT false,
    color_scheme_id bigint NOT NULL DEFAULT 1, color_mode_id smallint NOT NULL DEFAULT 1, last_activity_on date, created_at timestamp, updated_at timestamp,
    CHECK (user_type IS NOT NULL), CHECK (hide_no_ssh_key IS NOT NULL), CHECK (hide_no_password IS NOT NULL),
    CHECK (project_view IS NOT NULL), CHECK (notified_of_own_activity IS NOT NULL)
);
CREATE UNIQUE INDEX index_users_on_username ON users (username);
CREATE UNIQUE INDEX index_users_on_email ON users (email);
CREATE INDEX index_users_on_user_type_and_id ON users (user_type, id);
CREATE INDEX index_users_on_organization_id ON users (organization_id);
CREATE INDEX index_users_on_state ON users (state);

CREATE TABLE namespaces (
    id bigserial PRIMARY KEY, name varchar NOT NULL, path varchar NOT NULL, owner_id bigint, type varchar NOT NULL DEFAULT 'User', parent_id bigint REFERENCES namespaces, traversal_ids bigint[] NOT NULL DEFAULT '{}',
    visibility_level integer NOT NULL DEFAULT 20, organization_id bigint NOT NULL REFERENCES organizations, state smallint DEFAULT 0, created_at timestamp, updated_at timestamp,
    CHECK (state IS NOT NULL)
);
CREATE UNIQUE INDEX index_namespaces_on_name_and_parent_id_and_type ON namespaces (name, parent_id, type);
CREATE INDEX index_namespaces_on_parent_id_and_id ON namespaces (parent_id, id);
CREATE INDEX index_namespaces_on_owner_id ON namespaces (owner_id);
CREATE INDEX index_namespaces_on_type_and_id ON namespaces (type, id);
CREATE INDEX index_namespaces_on_traversal_ids ON namespaces USING gin (traversal_ids);

CREATE TABLE projects (
    id bigserial PRIMARY KEY, name varchar, path varchar, description text, creator_id bigint REFERENCES users ON DELETE SET NULL, namespace_id bigint NOT NULL REFERENCES namespaces, project_namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    organization_id bigint NOT NULL REFERENCES organizations, visibility_level integer NOT NULL DEFAULT 0, archived boolean NOT NULL DEFAULT false, pending_delete boolean DEFAULT false,
    marked_for_deletion_at date, marked_for_deletion_by_user_id bigint REFERENCES users ON DELETE SET NULL, hidden boolean NOT NULL DEFAULT false, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_projects_on_namespace_id_and_id ON projects (namespace_id, id);
CREATE UNIQUE INDEX index_projects_on_project_namespace_id ON projects (project_namespace_id);
CREATE INDEX index_projects_on_creator_id ON projects (creator_id);
CREATE INDEX index_projects_on_marked_for_deletion_by_user_id ON projects (marked_for_deletion_by_user_id);
CREATE INDEX index_projects_on_organization_id ON projects (organization_id);

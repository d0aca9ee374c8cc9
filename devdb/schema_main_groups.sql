-- Reference schema, database main: groups, members, projects.
CREATE TABLE namespace_details (
    namespace_id bigint PRIMARY KEY REFERENCES namespaces ON DELETE CASCADE, description text, creator_id bigint REFERENCES users ON DELETE SET NULL, state_metadata jsonb NOT NULL DEFAULT '{}', deletion_scheduled_at timestamptz,
    created_at timestamptz, updated_at timestamptz,
    CHECK (jsonb_typeof(state_metadata) = 'object')
);
CREATE INDEX index_namespace_details_on_creator_id ON namespace_details (creator_id);
CREATE INDEX index_namespace_details_on_deletion_scheduled_at ON namespace_details (deletion_scheduled_at) WHERE deletion_scheduled_at IS NOT NULL;

CREATE TABLE group_deletion_schedules (
    group_id bigint PRIMARY KEY REFERENCES namespaces ON DELETE CASCADE, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, marked_for_deletion_on date NOT NULL
);
CREATE INDEX index_group_deletion_schedules_on_user_id ON group_deletion_schedules (user_id);
CREATE INDEX index_group_deletion_schedules_on_marked_for_deletion_on ON group_deletion_schedules (marked_for_deletion_on);

CREATE TABLE routes (
    id bigserial PRIMARY KEY, source_id bigint NOT NULL, source_type varchar NOT NULL, path varchar NOT NULL, name varchar, namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, created_at timestamp, updated_at timestamp
);
CREATE UNIQUE INDEX index_routes_on_path ON routes (path);
CREATE UNIQUE INDEX index_routes_on_source_type_and_source_id ON routes (source_type, source_id);
CREATE INDEX index_routes_on_lower_path ON routes (lower(path));
CREATE INDEX index_routes_on_path_text_pattern_ops ON routes (path text_pattern_ops);
CREATE INDEX index_routes_on_namespace_id ON routes (namespace_id);

CREATE TABLE redirect_routes (
    id bigserial PRIMARY KEY, source_id bigint NOT NULL, source_type varchar NOT NULL, path varchar NOT NULL, namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE UNIQUE INDEX index_redirect_routes_on_path ON redirect_routes (path);
CREATE INDEX index_redirect_routes_on_source_type_and_source_id ON redirect_routes (source_type, source_id);
CREATE INDEX index_redirect_routes_on_namespace_id ON redirect_routes (namespace_id);

CREATE TABLE members (
    id bigserial PRIMARY KEY, access_level integer NOT NULL, source_id bigint NOT NULL, source_type varchar NOT NULL, user_id bigint REFERENCES users ON DELETE CASCADE, notification_level integer NOT NULL DEFAULT 3, type varchar,
    created_by_id bigint, invite_email varchar, invite_token varchar, invite_accepted_at timestamp, requested_at timestamp, expires_at date,
    ldap boolean NOT NULL DEFAULT false, override boolean NOT NULL DEFAULT false, state smallint DEFAULT 0, member_namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, member_role_id bigint, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_members_on_user_id_and_access_level ON members (user_id, access_level);
CREATE INDEX index_members_on_source_id_and_source_type ON members (source_id, source_type);
CREATE UNIQUE INDEX index_members_on_invite_token ON members (invite_token);
CREATE INDEX index_members_on_member_namespace_id ON members (member_namespace_id);

CREATE TABLE group_group_links (
    id bigserial PRIMARY KEY, shared_group_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, shared_with_group_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, group_access smallint NOT NULL DEFAULT 30, expires_at date, member_role_id bigint, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX idx_group_group_links_shared_group_id_shared_with_group_id ON group_group_links (shared_group_id, shared_with_group_id);
CREATE INDEX index_group_group_links_on_shared_with_group_id ON group_group_links (shared_with_group_id);

CREATE TABLE project_group_links (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, group_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, group_access integer NOT NULL DEFAULT 30, expires_at date, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_project_group_links_on_project_id ON project_group_links (project_id);
CREATE INDEX index_project_group_links_on_group_id ON project_group_links (group_id);

CREATE TABLE members_deletion_schedules (
    id bigserial PRIMARY KEY, namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, scheduled_by_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX index_members_deletion_schedules_on_namespace_id_and_user_id ON members_deletion_schedules (namespace_id, user_id);
CREATE INDEX index_members_deletion_schedules_on_user_id ON members_deletion_schedules (user_id);
CREATE INDEX index_members_deletion_schedules_on_scheduled_by_id ON members_deletion_schedules (scheduled_by_id);

CREATE TABLE project_repositories (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, shard_id bigint NOT NULL DEFAULT 1, disk_path varchar NOT NULL
);
CREATE UNIQUE INDEX index_project_repositories_on_project_id ON project_repositories (project_id);
CREATE UNIQUE INDEX index_project_repositories_on_disk_path ON project_repositories (disk_path);

CREATE TABLE project_authorizations (
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, access_level integer NOT NULL,
    PRIMARY KEY (user_id, project_id, access_level)
);
CREATE INDEX index_project_authorizations_on_project_id_and_user_id ON project_authorizations (project_id, user_id);

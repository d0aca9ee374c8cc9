-- Reference schema, database main: imports, exports, packages, signatures.
CREATE TABLE bulk_import_exports (
    id bigserial PRIMARY KEY, group_id bigint REFERENCES namespaces ON DELETE CASCADE, project_id bigint REFERENCES projects ON DELETE CASCADE, user_id bigint REFERENCES users ON DELETE CASCADE, relation text NOT NULL, status smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_bulk_import_exports_on_user_id ON bulk_import_exports (user_id);
CREATE INDEX index_bulk_import_exports_on_group_id ON bulk_import_exports (group_id);
CREATE INDEX index_bulk_import_exports_on_project_id ON bulk_import_exports (project_id);

CREATE TABLE import_offline_exports (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, organization_id bigint NOT NULL, status smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_import_offline_exports_on_user_id ON import_offline_exports (user_id);

CREATE TABLE csv_issue_imports (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_csv_issue_imports_on_user_id ON csv_issue_imports (user_id);
CREATE INDEX index_csv_issue_imports_on_project_id ON csv_issue_imports (project_id);

CREATE TABLE group_import_states (
    group_id bigint PRIMARY KEY REFERENCES namespaces ON DELETE CASCADE, user_id bigint REFERENCES users ON DELETE CASCADE, status smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_group_import_states_on_user_id ON group_import_states (user_id);

CREATE TABLE import_failures (
    id bigserial PRIMARY KEY, user_id bigint, project_id bigint REFERENCES projects ON DELETE CASCADE, group_id bigint REFERENCES namespaces ON DELETE CASCADE, exception_class varchar, created_at timestamptz NOT NULL
);
CREATE INDEX index_import_failures_on_user_id ON import_failures (user_id);
CREATE INDEX index_import_failures_on_project_id ON import_failures (project_id);
CREATE INDEX index_import_failures_on_group_id ON import_failures (group_id);

CREATE TABLE jira_imports (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, user_id bigint REFERENCES users ON DELETE SET NULL, status smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_jira_imports_on_user_id ON jira_imports (user_id);
CREATE INDEX index_jira_imports_on_project_id ON jira_imports (project_id);

CREATE TABLE packages_packages (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, name varchar NOT NULL, version varchar, creator_id bigint REFERENCES users ON DELETE SET NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_packages_packages_on_creator_id ON packages_packages (creator_id);
CREATE INDEX index_packages_packages_on_project_id ON packages_packages (project_id);

CREATE TABLE packages_npm_metadata_caches (
    id bigserial PRIMARY KEY, project_id bigint, package_name text NOT NULL, status smallint NOT NULL DEFAULT 0, file text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_packages_npm_metadata_caches_on_project_id ON packages_npm_metadata_caches (project_id);

CREATE TABLE project_export_jobs (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, user_id bigint REFERENCES users ON DELETE SET NULL, jid varchar NOT NULL, status smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_project_export_jobs_on_user_id ON project_export_jobs (user_id);
CREATE INDEX index_project_export_jobs_on_project_id ON project_export_jobs (project_id);

CREATE TABLE ssh_signatures (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, user_id bigint REFERENCES users ON DELETE SET NULL, key_id bigint REFERENCES keys ON DELETE SET NULL, commit_sha bytea NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_ssh_signatures_on_user_id ON ssh_signatures (user_id);
CREATE INDEX index_ssh_signatures_on_project_id ON ssh_signatures (project_id);
CREATE INDEX index_ssh_signatures_on_key_id ON ssh_signatures (key_id);

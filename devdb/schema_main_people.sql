-- Reference schema, database main: people and their tokens.
CREATE TABLE organization_users (
    id bigserial PRIMARY KEY, organization_id bigint NOT NULL REFERENCES organizations ON DELETE CASCADE, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, access_level smallint NOT NULL DEFAULT 10, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX index_organization_users_on_organization_id_and_user_id ON organization_users (organization_id, user_id);
CREATE INDEX index_organization_users_on_user_id ON organization_users (user_id);

CREATE TABLE user_details (
    user_id bigint PRIMARY KEY REFERENCES users ON DELETE CASCADE, job_title varchar NOT NULL DEFAULT '', bio varchar NOT NULL DEFAULT '', bot_namespace_id bigint REFERENCES namespaces ON DELETE SET NULL
);

CREATE TABLE user_preferences (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE UNIQUE INDEX index_user_preferences_on_user_id ON user_preferences (user_id);

CREATE TABLE emails (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, email varchar NOT NULL, created_at timestamp, updated_at timestamp
);
CREATE UNIQUE INDEX index_emails_on_email ON emails (email);
CREATE INDEX index_emails_on_user_id ON emails (user_id);

CREATE TABLE identities (
    id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, extern_uid varchar, provider varchar, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_identities_on_user_id ON identities (user_id);

CREATE TABLE keys (
    id bigserial PRIMARY KEY, user_id bigint, type varchar, title varchar, key text, fingerprint_sha256 bytea, public boolean NOT NULL DEFAULT false, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_keys_on_user_id ON keys (user_id);

CREATE TABLE gpg_keys (
    id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, key text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_gpg_keys_on_user_id ON gpg_keys (user_id);

CREATE TABLE gpg_key_subkeys (
    id bigserial PRIMARY KEY, gpg_key_id bigint NOT NULL REFERENCES gpg_keys ON DELETE CASCADE, fingerprint bytea
);
CREATE INDEX index_gpg_key_subkeys_on_gpg_key_id ON gpg_key_subkeys (gpg_key_id);

CREATE TABLE personal_access_tokens (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, name varchar NOT NULL, revoked boolean DEFAULT false, expires_at date, created_at timestamp NOT NULL, updated_at timestamp NOT NULL,
    scopes varchar NOT NULL DEFAULT '--- []', impersonation boolean NOT NULL DEFAULT false, token_digest varchar, last_used_at timestamptz,
    expire_notification_delivered boolean NOT NULL DEFAULT false, after_expiry_notification_delivered boolean NOT NULL DEFAULT false,
    previous_personal_access_token_id bigint REFERENCES personal_access_tokens ON DELETE SET NULL, organization_id bigint NOT NULL REFERENCES organizations ON DELETE CASCADE,
    description text, group_id bigint REFERENCES namespaces ON DELETE CASCADE, user_type smallint, granular boolean NOT NULL DEFAULT false, sudo boolean NOT NULL DEFAULT false
);
CREATE INDEX index_personal_access_tokens_on_user_id_and_id ON personal_access_tokens (user_id, id);
CREATE UNIQUE INDEX index_personal_access_tokens_on_token_digest ON personal_access_tokens (token_digest);
CREATE INDEX idx_personal_access_tokens_on_previous_personal_access_token_id ON personal_access_tokens (previous_personal_access_token_id);

CREATE TABLE chat_names (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL, team_id varchar NOT NULL, chat_id varchar NOT NULL, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE INDEX index_chat_names_on_user_id ON chat_names (user_id);

CREATE TABLE oauth_applications (
    id bigserial PRIMARY KEY, name varchar NOT NULL, uid varchar NOT NULL, secret varchar NOT NULL, redirect_uri text NOT NULL, owner_id bigint, owner_type varchar, created_at timestamp, updated_at timestamp
);
CREATE UNIQUE INDEX index_oauth_applications_on_uid ON oauth_applications (uid);
CREATE INDEX index_oauth_applications_on_owner_id_and_owner_type ON oauth_applications (owner_id, owner_type);

CREATE TABLE oauth_access_tokens (
    id bigserial PRIMARY KEY, resource_owner_id bigint, application_id bigint REFERENCES oauth_applications ON DELETE CASCADE, token varchar NOT NULL, created_at timestamp NOT NULL
);
CREATE UNIQUE INDEX index_oauth_access_tokens_on_token ON oauth_access_tokens (token);
CREATE INDEX index_oauth_access_tokens_on_resource_owner_id ON oauth_access_tokens (resource_owner_id);

CREATE TABLE spam_logs (
    id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE CASCADE, title varchar, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE INDEX index_spam_logs_on_user_id ON spam_logs (user_id);

CREATE TABLE users_star_projects (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, created_at timestamp, updated_at timestamp
);
CREATE UNIQUE INDEX index_users_star_projects_on_user_id_and_project_id ON users_star_projects (user_id, project_id);
CREATE INDEX index_users_star_projects_on_project_id ON users_star_projects (project_id);

CREATE TABLE subscriptions (
    id bigserial PRIMARY KEY, user_id bigint, subscribable_id bigint, subscribable_type varchar, subscribed boolean, project_id bigint REFERENCES projects ON DELETE CASCADE, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_subscriptions_on_user_id ON subscriptions (user_id);
CREATE INDEX index_subscriptions_on_subscribable_id_and_subscribable_type ON subscriptions (subscribable_id, subscribable_type);
CREATE INDEX index_subscriptions_on_project_id ON subscriptions (project_id);

CREATE TABLE authentication_events (
    id bigserial PRIMARY KEY, user_id bigint REFERENCES users ON DELETE SET NULL, result smallint NOT NULL, user_name text NOT NULL, created_at timestamptz NOT NULL
);
CREATE INDEX index_authentication_events_on_user_id ON authentication_events (user_id);

CREATE TABLE ghost_user_migrations (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, initiator_user_id bigint, hard_delete boolean NOT NULL DEFAULT false, consume_after timestamptz NOT NULL DEFAULT now(), user_type smallint, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX index_ghost_user_migrations_on_user_id ON ghost_user_migrations (user_id);
CREATE INDEX index_ghost_user_migrations_on_consume_after_and_id ON ghost_user_migrations (consume_after, id);
CREATE INDEX idx_ghost_user_migrations_on_user_type_and_consume_after_and_id ON ghost_user_migrations (user_type, consume_after, id);

CREATE TABLE import_placeholder_user_details (
    id bigserial PRIMARY KEY, placeholder_user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, namespace_id bigint REFERENCES namespaces ON DELETE SET NULL, deletion_attempts integer NOT NULL DEFAULT 0,
    organization_id bigint NOT NULL REFERENCES organizations ON DELETE CASCADE, last_deletion_attempt_at timestamptz, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX idx_impor_place_user_detai_deletion_attempts_and_last_deletion_ ON import_placeholder_user_details (deletion_attempts, last_deletion_attempt_at, id) WHERE namespace_id IS NULL;
CREATE INDEX index_import_placeholder_user_details_on_namespace_id ON import_placeholder_user_details (namespace_id);
CREATE INDEX index_import_placeholder_user_details_on_organization_id ON import_placeholder_user_details (organization_id);
CREATE INDEX index_import_placeholder_user_details_on_placeholder_user_id ON import_placeholder_user_details (placeholder_user_id);

CREATE TABLE import_source_users (
    id bigserial PRIMARY KEY, placeholder_user_id bigint REFERENCES users ON DELETE SET NULL, reassign_to_user_id bigint REFERENCES users ON DELETE SET NULL, reassigned_by_user_id bigint REFERENCES users ON DELETE SET NULL,
    namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, status smallint NOT NULL DEFAULT 0, source_user_identifier text NOT NULL, source_hostname text NOT NULL, import_type text NOT NULL,
    source_username text, source_name text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_import_source_users_on_placeholder_user_id ON import_source_users (placeholder_user_id);
CREATE INDEX index_import_source_users_on_reassign_to_user_id ON import_source_users (reassign_to_user_id);
CREATE INDEX index_import_source_users_on_reassigned_by_user_id ON import_source_users (reassigned_by_user_id);
CREATE INDEX index_import_source_users_on_namespace_id ON import_source_users (namespace_id);

CREATE TABLE application_settings (
    id bigserial PRIMARY KEY, deletion_adjourned_period integer NOT NULL DEFAULT 30, resource_access_tokens_settings jsonb NOT NULL DEFAULT '{}', delay_user_account_self_deletion boolean NOT NULL DEFAULT false, created_at timestamp, updated_at timestamp
);

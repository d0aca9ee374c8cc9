-- Reference schema, database sec.
CREATE TABLE vulnerabilities (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL, author_id bigint NOT NULL, updated_by_id bigint, last_edited_by_id bigint, resolved_by_id bigint, dismissed_by_id bigint, confirmed_by_id bigint,
    title varchar NOT NULL, state smallint NOT NULL DEFAULT 1, severity smallint NOT NULL DEFAULT 5, report_type smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_vulnerabilities_on_author_id_and_id ON vulnerabilities (author_id, id);
CREATE INDEX index_vulnerabilities_on_project_id ON vulnerabilities (project_id);
CREATE INDEX index_vulnerabilities_on_resolved_by_id ON vulnerabilities (resolved_by_id);
CREATE INDEX index_vulnerabilities_on_dismissed_by_id ON vulnerabilities (dismissed_by_id);
CREATE INDEX index_vulnerabilities_on_confirmed_by_id ON vulnerabilities (confirmed_by_id);
CREATE INDEX index_vulnerabilities_on_updated_by_id ON vulnerabilities (updated_by_id);
CREATE INDEX index_vulnerabilities_on_last_edited_by_id ON vulnerabilities (last_edited_by_id);

CREATE TABLE vulnerability_feedback (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL, author_id bigint NOT NULL, comment_author_id bigint, feedback_type smallint NOT NULL, category smallint NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_vulnerability_feedback_on_author_id ON vulnerability_feedback (author_id);
CREATE INDEX index_vulnerability_feedback_on_comment_author_id ON vulnerability_feedback (comment_author_id);
CREATE INDEX index_vulnerability_feedback_on_project_id ON vulnerability_feedback (project_id);

CREATE TABLE vulnerability_external_issue_links (
    id bigserial PRIMARY KEY, vulnerability_id bigint NOT NULL REFERENCES vulnerabilities ON DELETE CASCADE, author_id bigint NOT NULL, link_type smallint NOT NULL DEFAULT 1, external_issue_key text NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_vulnerability_external_issue_links_on_author_id ON vulnerability_external_issue_links (author_id);
CREATE INDEX index_vulnerability_external_issue_links_on_vulnerability_id ON vulnerability_external_issue_links (vulnerability_id);

CREATE TRIGGER vulnerabilities_loose_fk_trigger AFTER DELETE ON vulnerabilities
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();

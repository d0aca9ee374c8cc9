-- Reference schema, database main: content.
CREATE TABLE issues (
    id bigserial PRIMARY KEY, title varchar, author_id bigint REFERENCES users ON DELETE SET NULL, project_id bigint REFERENCES projects ON DELETE CASCADE, namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, iid integer,
    updated_by_id bigint REFERENCES users ON DELETE SET NULL, last_edited_by_id bigint, closed_by_id bigint REFERENCES users ON DELETE SET NULL, work_item_type_id bigint NOT NULL DEFAULT 1, state_id smallint NOT NULL DEFAULT 1,
    confidential boolean NOT NULL DEFAULT false, lock_version integer DEFAULT 0, description text, closed_at timestamptz, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_issues_on_author_id_and_id ON issues (author_id, id);
CREATE INDEX index_issues_on_updated_by_id ON issues (updated_by_id);
CREATE INDEX index_issues_on_last_edited_by_id ON issues (last_edited_by_id);
CREATE INDEX index_issues_on_closed_by_id ON issues (closed_by_id);
CREATE INDEX index_issues_on_project_id ON issues (project_id);
CREATE UNIQUE INDEX index_issues_on_namespace_id_and_iid ON issues (namespace_id, iid);

CREATE TABLE issue_assignees (
    user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, issue_id bigint NOT NULL REFERENCES issues ON DELETE CASCADE, namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE,
    PRIMARY KEY (issue_id, user_id)
);
CREATE INDEX index_issue_assignees_on_user_id ON issue_assignees (user_id);
CREATE INDEX index_issue_assignees_on_namespace_id ON issue_assignees (namespace_id);

CREATE TABLE merge_requests (
    id bigserial PRIMARY KEY, title varchar, target_branch varchar NOT NULL, source_branch varchar NOT NULL, source_project_id bigint REFERENCES projects ON DELETE SET NULL, target_project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE,
    author_id bigint REFERENCES users ON DELETE SET NULL, assignee_id bigint REFERENCES users ON DELETE SET NULL, updated_by_id bigint REFERENCES users ON DELETE SET NULL, merge_user_id bigint REFERENCES users ON DELETE SET NULL, last_edited_by_id bigint,
    iid integer, state_id smallint NOT NULL DEFAULT 1, merge_status varchar NOT NULL DEFAULT 'unchecked', head_pipeline_id bigint, description text, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_merge_requests_on_author_id_and_id ON merge_requests (author_id, id);
CREATE INDEX index_merge_requests_on_assignee_id ON merge_requests (assignee_id);
CREATE INDEX index_merge_requests_on_updated_by_id ON merge_requests (updated_by_id);
CREATE INDEX index_merge_requests_on_merge_user_id ON merge_requests (merge_user_id);
CREATE INDEX index_merge_requests_on_last_edited_by_id ON merge_requests (last_edited_by_id);
CREATE INDEX index_merge_requests_on_source_project_id ON merge_requests (source_project_id);
CREATE INDEX index_merge_requests_on_head_pipeline_id ON merge_requests (head_pipeline_id);
CREATE UNIQUE INDEX index_merge_requests_on_target_project_id_and_iid ON merge_requests (target_project_id, iid);

CREATE TABLE merge_request_metrics (
    id bigserial PRIMARY KEY, merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE, merged_by_id bigint REFERENCES users ON DELETE SET NULL, latest_closed_by_id bigint REFERENCES users ON DELETE SET NULL, target_project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE UNIQUE INDEX index_merge_request_metrics_on_merge_request_id ON merge_request_metrics (merge_request_id);
CREATE INDEX index_merge_request_metrics_on_merged_by_id ON merge_request_metrics (merged_by_id);
CREATE INDEX index_merge_request_metrics_on_latest_closed_by_id ON merge_request_metrics (latest_closed_by_id);
CREATE INDEX index_merge_request_metrics_on_target_project_id ON merge_request_metrics (target_project_id);

CREATE TABLE merge_request_assignees (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE, project_id bigint NOT NULL, created_at timestamptz
);
CREATE UNIQUE INDEX index_merge_request_assignees_on_merge_request_id_and_user_id ON merge_request_assignees (merge_request_id, user_id);
CREATE INDEX index_merge_request_assignees_on_user_id ON merge_request_assignees (user_id);

CREATE TABLE merge_request_reviewers (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE, project_id bigint NOT NULL, state smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX index_merge_request_reviewers_on_merge_request_id_and_user_id ON merge_request_reviewers (merge_request_id, user_id);
CREATE INDEX index_merge_request_reviewers_on_user_id ON merge_request_reviewers (user_id);

CREATE TABLE approvals (
    id bigserial PRIMARY KEY, merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE, user_id bigint NOT NULL, project_id bigint NOT NULL, created_at timestamp, updated_at timestamp
);
CREATE UNIQUE INDEX index_approvals_on_user_id_and_merge_request_id ON approvals (user_id, merge_request_id);
CREATE INDEX index_approvals_on_merge_request_id ON approvals (merge_request_id);

CREATE TABLE reviews (
    id bigserial PRIMARY KEY, author_id bigint REFERENCES users ON DELETE SET NULL, merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, created_at timestamptz NOT NULL
);
CREATE INDEX index_reviews_on_author_id ON reviews (author_id);
CREATE INDEX index_reviews_on_merge_request_id ON reviews (merge_request_id);
CREATE INDEX index_reviews_on_project_id ON reviews (project_id);

CREATE TABLE notes (
    id bigserial PRIMARY KEY, note text, noteable_type varchar NOT NULL, noteable_id bigint, author_id bigint, project_id bigint REFERENCES projects ON DELETE CASCADE, namespace_id bigint, organization_id bigint,
    updated_by_id bigint, resolved_by_id bigint, resolved_at timestamp, review_id bigint REFERENCES reviews ON DELETE SET NULL, system boolean NOT NULL DEFAULT false, internal boolean NOT NULL DEFAULT false,
    type varchar, discussion_id varchar, created_at timestamp, updated_at timestamp,
    CHECK (num_nonnulls(project_id, namespace_id, organization_id) >= 1)
);
CREATE INDEX index_notes_on_author_id_and_id ON notes (author_id, id);
CREATE INDEX index_notes_on_noteable_id_and_noteable_type ON notes (noteable_id, noteable_type);
CREATE INDEX index_notes_on_project_id ON notes (project_id);
CREATE INDEX index_notes_on_review_id ON notes (review_id);
CREATE INDEX index_notes_on_updated_by_id ON notes (updated_by_id);
CREATE INDEX index_notes_on_resolved_by_id ON notes (resolved_by_id);

CREATE TABLE draft_notes (
    id bigserial PRIMARY KEY, merge_request_id bigint NOT NULL REFERENCES merge_requests ON DELETE CASCADE, author_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, note text NOT NULL, project_id bigint NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_draft_notes_on_author_id ON draft_notes (author_id);
CREATE INDEX index_draft_notes_on_merge_request_id ON draft_notes (merge_request_id);

CREATE TABLE award_emoji (
    id bigserial PRIMARY KEY, name varchar, user_id bigint, awardable_id bigint, awardable_type varchar, namespace_id bigint, organization_id bigint, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_award_emoji_on_user_id_and_name ON award_emoji (user_id, name);
CREATE INDEX index_award_emoji_on_awardable_type_and_awardable_id ON award_emoji (awardable_type, awardable_id);

CREATE TABLE todos (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, project_id bigint REFERENCES projects ON DELETE CASCADE, group_id bigint REFERENCES namespaces ON DELETE CASCADE, organization_id bigint, target_id bigint, target_type varchar NOT NULL,
    author_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, action integer NOT NULL, state varchar NOT NULL, note_id bigint REFERENCES notes ON DELETE CASCADE, created_at timestamp, updated_at timestamp,
    CHECK (num_nonnulls(project_id, group_id, organization_id) = 1)
);
CREATE INDEX index_todos_on_user_id_and_id ON todos (user_id, id);
CREATE INDEX index_todos_on_author_id_and_id ON todos (author_id, id);
CREATE INDEX index_todos_on_project_id_and_id ON todos (project_id, id);
CREATE INDEX index_todos_on_group_id ON todos (group_id);
CREATE INDEX index_todos_on_target_type_and_target_id ON todos (target_type, target_id);
CREATE INDEX index_todos_on_note_id ON todos (note_id);

CREATE TABLE events (
    id bigserial PRIMARY KEY, author_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, action smallint NOT NULL, target_type varchar, target_id bigint, project_id bigint REFERENCES projects ON DELETE CASCADE, group_id bigint REFERENCES namespaces ON DELETE CASCADE,
    personal_namespace_id bigint, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL,
    CHECK (num_nonnulls(project_id, group_id, personal_namespace_id) >= 1)
);
CREATE INDEX index_events_on_author_id_and_id ON events (author_id, id);
CREATE INDEX index_events_on_project_id_and_id ON events (project_id, id);
CREATE INDEX index_events_on_group_id ON events (group_id);
CREATE INDEX index_events_on_target_type_and_target_id ON events (target_type, target_id);

CREATE TABLE snippets (
    id bigserial PRIMARY KEY, title varchar, content text, author_id bigint NOT NULL, project_id bigint REFERENCES projects ON DELETE CASCADE, organization_id bigint, type varchar, visibility_level integer NOT NULL DEFAULT 0, created_at timestamp, updated_at timestamp,
    CHECK (num_nonnulls(project_id, organization_id) = 1)
);
CREATE INDEX index_snippets_on_author_id_and_id ON snippets (author_id, id);
CREATE INDEX index_snippets_on_project_id ON snippets (project_id);

CREATE TABLE snippet_repositories (
    snippet_id bigint PRIMARY KEY REFERENCES snippets ON DELETE CASCADE, shard_id bigint NOT NULL DEFAULT 1, disk_path text NOT NULL
);
CREATE UNIQUE INDEX index_snippet_repositories_on_disk_path ON snippet_repositories (disk_path);

CREATE TABLE releases (
    id bigserial PRIMARY KEY, tag varchar, name varchar, author_id bigint REFERENCES users ON DELETE SET NULL, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, released_at timestamptz NOT NULL, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE INDEX index_releases_on_author_id_and_id ON releases (author_id, id);
CREATE UNIQUE INDEX index_releases_on_project_id_and_tag ON releases (project_id, tag);

CREATE TABLE timelogs (
    id bigserial PRIMARY KEY, time_spent integer NOT NULL, user_id bigint NOT NULL, issue_id bigint REFERENCES issues ON DELETE CASCADE, merge_request_id bigint REFERENCES merge_requests ON DELETE CASCADE, project_id bigint, spent_at timestamp, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE INDEX index_timelogs_on_user_id ON timelogs (user_id);
CREATE INDEX index_timelogs_on_issue_id ON timelogs (issue_id);
CREATE INDEX index_timelogs_on_merge_request_id ON timelogs (merge_request_id);

CREATE TABLE abuse_reports (
    id bigserial PRIMARY KEY, reporter_id bigint, user_id bigint, resolved_by_id bigint REFERENCES users ON DELETE SET NULL, message text, status smallint NOT NULL DEFAULT 1, organization_id bigint, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_abuse_reports_on_reporter_id ON abuse_reports (reporter_id);
CREATE INDEX index_abuse_reports_on_user_id ON abuse_reports (user_id);
CREATE INDEX index_abuse_reports_on_resolved_by_id ON abuse_reports (resolved_by_id);

CREATE TABLE abuse_report_events (
    id bigserial PRIMARY KEY, abuse_report_id bigint NOT NULL REFERENCES abuse_reports ON DELETE CASCADE, user_id bigint REFERENCES users ON DELETE SET NULL, action smallint NOT NULL DEFAULT 1, created_at timestamptz NOT NULL
);
CREATE INDEX index_abuse_report_events_on_user_id ON abuse_report_events (user_id);
CREATE INDEX index_abuse_report_events_on_abuse_report_id ON abuse_report_events (abuse_report_id);

CREATE TABLE achievements (
    id bigserial PRIMARY KEY, namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, name text NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_achievements_on_namespace_id ON achievements (namespace_id);

CREATE TABLE user_achievements (
    id bigserial PRIMARY KEY, achievement_id bigint NOT NULL REFERENCES achievements ON DELETE CASCADE, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, awarded_by_user_id bigint REFERENCES users ON DELETE SET NULL, revoked_by_user_id bigint REFERENCES users ON DELETE SET NULL,
    namespace_id bigint NOT NULL, revoked_at timestamptz, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_user_achievements_on_user_id ON user_achievements (user_id);
CREATE INDEX index_user_achievements_on_awarded_by_user_id ON user_achievements (awarded_by_user_id);
CREATE INDEX index_user_achievements_on_revoked_by_user_id ON user_achievements (revoked_by_user_id);
CREATE INDEX index_user_achievements_on_achievement_id ON user_achievements (achievement_id);

CREATE TABLE boards (
    id bigserial PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE, group_id bigint REFERENCES namespaces ON DELETE CASCADE, name varchar NOT NULL DEFAULT 'Development', created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_boards_on_project_id ON boards (project_id);
CREATE INDEX index_boards_on_group_id ON boards (group_id);

CREATE TABLE lists (
    id bigserial PRIMARY KEY, board_id bigint NOT NULL REFERENCES boards ON DELETE CASCADE, user_id bigint REFERENCES users ON DELETE CASCADE, list_type integer NOT NULL DEFAULT 1, position integer, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_lists_on_board_id ON lists (board_id);
CREATE INDEX index_lists_on_user_id ON lists (user_id);

CREATE TABLE list_user_preferences (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, list_id bigint NOT NULL REFERENCES lists ON DELETE CASCADE, collapsed boolean, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX index_list_user_preferences_on_user_id_and_list_id ON list_user_preferences (user_id, list_id);
CREATE INDEX index_list_user_preferences_on_list_id ON list_user_preferences (list_id);

CREATE TABLE board_group_recent_visits (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, board_id bigint NOT NULL REFERENCES boards ON DELETE CASCADE, group_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_board_group_recent_visits_on_user_id ON board_group_recent_visits (user_id);
CREATE INDEX index_board_group_recent_visits_on_board_id ON board_group_recent_visits (board_id);
CREATE INDEX index_board_group_recent_visits_on_group_id ON board_group_recent_visits (group_id);

CREATE TABLE board_project_recent_visits (
    id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, board_id bigint NOT NULL REFERENCES boards ON DELETE CASCADE, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_board_project_recent_visits_on_user_id ON board_project_recent_visits (user_id);
CREATE INDEX index_board_project_recent_visits_on_board_id ON board_project_recent_visits (board_id);
CREATE INDEX index_board_project_recent_visits_on_project_id ON board_project_recent_visits (project_id);

CREATE TABLE saved_views (
    id bigserial PRIMARY KEY, namespace_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, name text NOT NULL, created_by_id bigint REFERENCES users ON DELETE SET NULL, updated_by_id bigint REFERENCES users ON DELETE SET NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL
);
CREATE INDEX index_saved_views_on_namespace_id ON saved_views (namespace_id);
CREATE INDEX index_saved_views_on_created_by_id ON saved_views (created_by_id);
CREATE INDEX index_saved_views_on_updated_by_id ON saved_views (updated_by_id);

CREATE TABLE resource_label_events (
    id bigserial PRIMARY KEY, action integer NOT NULL, user_id bigint REFERENCES users ON DELETE SET NULL, issue_id bigint REFERENCES issues ON DELETE CASCADE, merge_request_id bigint REFERENCES merge_requests ON DELETE CASCADE, label_id bigint, created_at timestamptz NOT NULL
);
CREATE INDEX index_resource_label_events_on_user_id ON resource_label_events (user_id);
CREATE INDEX index_resource_label_events_on_issue_id ON resource_label_events (issue_id);
CREATE INDEX index_resource_label_events_on_merge_request_id ON resource_label_events (merge_request_id);

CREATE TABLE resource_milestone_events (
    id bigserial PRIMARY KEY, action smallint NOT NULL, user_id bigint REFERENCES users ON DELETE SET NULL, issue_id bigint REFERENCES issues ON DELETE CASCADE, merge_request_id bigint REFERENCES merge_requests ON DELETE CASCADE, milestone_id bigint, created_at timestamptz NOT NULL
);
CREATE INDEX index_resource_milestone_events_on_user_id ON resource_milestone_events (user_id);
CREATE INDEX index_resource_milestone_events_on_issue_id ON resource_milestone_events (issue_id);
CREATE INDEX index_resource_milestone_events_on_merge_request_id ON resource_milestone_events (merge_request_id);

CREATE TABLE resource_state_events (
    id bigserial PRIMARY KEY, state smallint NOT NULL, user_id bigint REFERENCES users ON DELETE SET NULL, issue_id bigint REFERENCES issues ON DELETE CASCADE, merge_request_id bigint REFERENCES merge_requests ON DELETE CASCADE, created_at timestamptz NOT NULL
);
CREATE INDEX index_resource_state_events_on_user_id ON resource_state_events (user_id);
CREATE INDEX index_resource_state_events_on_issue_id ON resource_state_events (issue_id);
CREATE INDEX index_resource_state_events_on_merge_request_id ON resource_state_events (merge_request_id);

CREATE TABLE resource_iteration_events (
    id bigserial PRIMARY KEY, action smallint NOT NULL, user_id bigint REFERENCES users ON DELETE SET NULL, issue_id bigint REFERENCES issues ON DELETE CASCADE, merge_request_id bigint REFERENCES merge_requests ON DELETE CASCADE, created_at timestamptz NOT NULL
);
CREATE INDEX index_resource_iteration_events_on_user_id ON resource_iteration_events (user_id);
CREATE INDEX index_resource_iteration_events_on_issue_id ON resource_iteration_events (issue_id);
CREATE INDEX index_resource_iteration_events_on_merge_request_id ON resource_iteration_events (merge_request_id);

CREATE TABLE resource_link_events (
    id bigserial PRIMARY KEY, action smallint NOT NULL, user_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, issue_id bigint NOT NULL REFERENCES issues ON DELETE CASCADE, child_work_item_id bigint NOT NULL REFERENCES issues ON DELETE CASCADE, created_at timestamptz NOT NULL
);
CREATE INDEX index_resource_link_events_on_user_id ON resource_link_events (user_id);
CREATE INDEX index_resource_link_events_on_issue_id ON resource_link_events (issue_id);
CREATE INDEX index_resource_link_events_on_child_work_item_id ON resource_link_events (child_work_item_id);

CREATE TABLE design_management_versions (
    id bigserial PRIMARY KEY, sha bytea, issue_id bigint REFERENCES issues ON DELETE CASCADE, author_id bigint REFERENCES users ON DELETE SET NULL, created_at timestamptz NOT NULL
);
CREATE INDEX index_design_management_versions_on_author_id ON design_management_versions (author_id);
CREATE INDEX index_design_management_versions_on_issue_id ON design_management_versions (issue_id);

CREATE TABLE protected_branches (
    id bigserial PRIMARY KEY, project_id bigint REFERENCES projects ON DELETE CASCADE, name varchar NOT NULL, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_protected_branches_on_project_id ON protected_branches (project_id);

CREATE TABLE protected_branch_merge_access_levels (
    id bigserial PRIMARY KEY, protected_branch_id bigint NOT NULL REFERENCES protected_branches ON DELETE CASCADE, access_level integer DEFAULT 40, user_id bigint REFERENCES users ON DELETE CASCADE, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE INDEX idx_protected_branch_merge_access_levels_on_protected_branch_id ON protected_branch_merge_access_levels (protected_branch_id);
CREATE INDEX index_protected_branch_merge_access_levels_on_user_id ON protected_branch_merge_access_levels (user_id);

CREATE TABLE protected_branch_push_access_levels (
    id bigserial PRIMARY KEY, protected_branch_id bigint NOT NULL REFERENCES protected_branches ON DELETE CASCADE, access_level integer DEFAULT 40, user_id bigint REFERENCES users ON DELETE CASCADE, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE INDEX idx_protected_branch_push_access_levels_on_protected_branch_id ON protected_branch_push_access_levels (protected_branch_id);
CREATE INDEX index_protected_branch_push_access_levels_on_user_id ON protected_branch_push_access_levels (user_id);

CREATE TABLE protected_tags (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL REFERENCES projects ON DELETE CASCADE, name varchar NOT NULL, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE INDEX index_protected_tags_on_project_id ON protected_tags (project_id);

CREATE TABLE protected_tag_create_access_levels (
    id bigserial PRIMARY KEY, protected_tag_id bigint NOT NULL REFERENCES protected_tags ON DELETE CASCADE, access_level integer DEFAULT 40, user_id bigint REFERENCES users ON DELETE CASCADE, created_at timestamp NOT NULL, updated_at timestamp NOT NULL
);
CREATE INDEX index_protected_tag_create_access_levels_on_protected_tag_id ON protected_tag_create_access_levels (protected_tag_id);
CREATE INDEX index_protected_tag_create_access_levels_on_user_id ON protected_tag_create_access_levels (user_id);

CREATE TABLE epics (
    id bigserial PRIMARY KEY, group_id bigint NOT NULL REFERENCES namespaces ON DELETE CASCADE, iid integer NOT NULL, title varchar NOT NULL, author_id bigint NOT NULL REFERENCES users ON DELETE CASCADE, assignee_id bigint REFERENCES users ON DELETE SET NULL, updated_by_id bigint,
    last_edited_by_id bigint, closed_by_id bigint REFERENCES users ON DELETE SET NULL, created_at timestamp, updated_at timestamp
);
CREATE UNIQUE INDEX index_epics_on_group_id_and_iid ON epics (group_id, iid);
CREATE INDEX index_epics_on_author_id ON epics (author_id);
CREATE INDEX index_epics_on_assignee_id ON epics (assignee_id);
CREATE INDEX index_epics_on_last_edited_by_id ON epics (last_edited_by_id);
CREATE INDEX index_epics_on_closed_by_id ON epics (closed_by_id);
CREATE INDEX index_epics_on_updated_by_id ON epics (updated_by_id);

-- Reference schema, database ci. The ids of the partitioned tables have no
-- default: a writer takes them from these sequences.
CREATE SEQUENCE ci_pipelines_id_seq;
CREATE SEQUENCE ci_builds_id_seq;

CREATE TABLE p_ci_pipelines (
    id bigint NOT NULL, partition_id bigint NOT NULL, project_id bigint NOT NULL, user_id bigint, merge_request_id bigint, trigger_id bigint, ref varchar, sha varchar,
    status varchar, source integer, created_at timestamp, updated_at timestamp,
    PRIMARY KEY (id, partition_id)
) PARTITION BY LIST (partition_id);
CREATE TABLE gitlab_partitions_dynamic.ci_pipelines_100 PARTITION OF p_ci_pipelines FOR VALUES IN (100);
CREATE TABLE gitlab_partitions_dynamic.ci_pipelines_101 PARTITION OF p_ci_pipelines FOR VALUES IN (101);
CREATE TABLE gitlab_partitions_dynamic.ci_pipelines_102 PARTITION OF p_ci_pipelines FOR VALUES IN (102);
CREATE INDEX index_p_ci_pipelines_on_user_id_and_id ON p_ci_pipelines (user_id, id);
CREATE INDEX index_p_ci_pipelines_on_project_id_and_id ON p_ci_pipelines (project_id, id);
CREATE INDEX index_p_ci_pipelines_on_merge_request_id ON p_ci_pipelines (merge_request_id);
CREATE INDEX index_p_ci_pipelines_on_trigger_id ON p_ci_pipelines (trigger_id);

CREATE TABLE p_ci_builds (
    id bigint NOT NULL, partition_id bigint NOT NULL, commit_id bigint, project_id bigint NOT NULL, user_id bigint, erased_by_id bigint, runner_id bigint, name varchar, type varchar DEFAULT 'Ci::Build',
    status varchar, created_at timestamp, updated_at timestamp,
    PRIMARY KEY (id, partition_id)
) PARTITION BY LIST (partition_id);
CREATE TABLE gitlab_partitions_dynamic.ci_builds_100 PARTITION OF p_ci_builds FOR VALUES IN (100);
CREATE TABLE gitlab_partitions_dynamic.ci_builds_101 PARTITION OF p_ci_builds FOR VALUES IN (101);
CREATE TABLE gitlab_partitions_dynamic.ci_builds_102 PARTITION OF p_ci_builds FOR VALUES IN (102);
CREATE INDEX index_p_ci_builds_on_user_id_and_id ON p_ci_builds (user_id, id);
CREATE INDEX index_p_ci_builds_on_erased_by_id ON p_ci_builds (erased_by_id);
CREATE INDEX index_p_ci_builds_on_project_id_and_id ON p_ci_builds (project_id, id);
CREATE INDEX index_p_ci_builds_on_commit_id ON p_ci_builds (commit_id);

CREATE TABLE ci_pipeline_schedules (
    id bigserial PRIMARY KEY, description varchar, ref varchar, cron varchar, cron_timezone varchar, next_run_at timestamp, project_id bigint NOT NULL, owner_id bigint, active boolean DEFAULT true, created_at timestamp, updated_at timestamp
);
CREATE INDEX index_ci_pipeline_schedules_on_owner_id ON ci_pipeline_schedules (owner_id);
CREATE INDEX index_ci_pipeline_schedules_on_project_id ON ci_pipeline_schedules (project_id);

CREATE TABLE ci_triggers (
    id bigserial PRIMARY KEY, token varchar, project_id bigint NOT NULL, owner_id bigint NOT NULL, created_at timestamp, updated_at timestamp
);
CREATE UNIQUE INDEX index_ci_triggers_on_token ON ci_triggers (token);
CREATE INDEX index_ci_triggers_on_owner_id ON ci_triggers (owner_id);
CREATE INDEX index_ci_triggers_on_project_id ON ci_triggers (project_id);

CREATE TABLE ci_pipeline_metadata (
    pipeline_id bigint PRIMARY KEY, partition_id bigint NOT NULL DEFAULT 100, project_id bigint NOT NULL, name text
);
CREATE INDEX index_ci_pipeline_metadata_on_project_id ON ci_pipeline_metadata (project_id);

CREATE TABLE ci_namespace_mirrors (
    id bigserial PRIMARY KEY, namespace_id bigint NOT NULL, traversal_ids bigint[] NOT NULL DEFAULT '{}'
);
CREATE UNIQUE INDEX index_ci_namespace_mirrors_on_namespace_id ON ci_namespace_mirrors (namespace_id);

CREATE TABLE ci_project_mirrors (
    id bigserial PRIMARY KEY, project_id bigint NOT NULL, namespace_id bigint NOT NULL
);
CREATE UNIQUE INDEX index_ci_project_mirrors_on_project_id ON ci_project_mirrors (project_id);
CREATE INDEX index_ci_project_mirrors_on_namespace_id ON ci_project_mirrors (namespace_id);

ALTER SEQUENCE ci_pipelines_id_seq OWNED BY p_ci_pipelines.id;
ALTER SEQUENCE ci_builds_id_seq OWNED BY p_ci_builds.id;

CREATE TRIGGER ci_triggers_loose_fk_trigger AFTER DELETE ON ci_triggers
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records();

CREATE TRIGGER p_ci_pipelines_loose_fk_trigger AFTER DELETE ON p_ci_pipelines
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table('p_ci_pipelines');
CREATE TRIGGER ci_pipelines_100_loose_fk_trigger AFTER DELETE ON gitlab_partitions_dynamic.ci_pipelines_100
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table('p_ci_pipelines');
CREATE TRIGGER ci_pipelines_101_loose_fk_trigger AFTER DELETE ON gitlab_partitions_dynamic.ci_pipelines_101
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table('p_ci_pipelines');
CREATE TRIGGER ci_pipelines_102_loose_fk_trigger AFTER DELETE ON gitlab_partitions_dynamic.ci_pipelines_102
    REFERENCING OLD TABLE AS old_table FOR EACH STATEMENT
    EXECUTE FUNCTION insert_into_loose_foreign_keys_deleted_records_override_table('p_ci_pipelines');

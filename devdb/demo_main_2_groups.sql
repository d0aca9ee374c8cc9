-- Demo data, database main: groups 1-10 on the first level, 11-25 on the second,
-- 26-40 on the third. 9, 10 and their descendants belong to the second
-- organization. Each group has three projects. The last part deletes
-- groups 41-60 and projects 121-160. Namespaces 1000 + user are personal ones,
-- 2000 + project belong to projects.

INSERT INTO namespaces (id, name, path, type, parent_id, organization_id, created_at, updated_at)
SELECT g.id, initcap(g.path), g.path, 'Group', g.parent_id, CASE WHEN g.id IN (9, 10, 19, 20, 34, 35) THEN 2 ELSE 1 END,
       now() - interval '1 year' + g.id * interval '1 hour', now() - interval '60 days'
FROM (SELECT id,
             CASE WHEN id <= 10 THEN (ARRAY['atlas', 'beacon', 'cargo', 'delta', 'ember', 'forge', 'garden', 'harbor', 'island', 'jetty'])[id]
                  WHEN id <= 25 THEN 'team-' || id WHEN id <= 40 THEN 'area-' || id ELSE 'former-group-' || id END,
             CASE WHEN id BETWEEN 11 AND 25 THEN (id - 11) % 10 + 1 WHEN id BETWEEN 26 AND 40 THEN id - 15 END
      FROM generate_series(1, 60) AS id) AS g (id, path, parent_id)
ORDER BY g.id;

-- Marked groups, and the one that lost its mark, carry their id in name and path.
UPDATE namespaces SET path = path || '-deletion_scheduled-' || id, name = name || '-deletion_scheduled-' || id, state = 2
WHERE id IN (8, 12, 13, 14, 15, 18, 24, 25, 26, 34);

INSERT INTO namespaces (id, name, path, type, owner_id, organization_id, created_at, updated_at)
SELECT 1000 + id, username, username, 'User', id, organization_id, created_at, created_at
FROM users WHERE user_type = 0 AND id <= 200;

INSERT INTO namespaces (id, name, path, type, parent_id, organization_id, created_at, updated_at)
SELECT 2000 + p, 'Project ' || p, 'project-' || p, 'Project', g.id, g.organization_id, now() - interval '300 days', now() - interval '30 days'
FROM generate_series(1, 160) AS p JOIN namespaces g ON g.id = (p - 1) % 40 + 1;

WITH RECURSIVE tree (id, ids) AS (
    SELECT id, ARRAY[id] FROM namespaces WHERE parent_id IS NULL
    UNION ALL
    SELECT n.id, t.ids || n.id FROM namespaces n JOIN tree t ON n.parent_id = t.id)
UPDATE namespaces n SET traversal_ids = t.ids FROM tree t WHERE t.id = n.id;

INSERT INTO projects (id, name, path, creator_id, namespace_id, project_namespace_id, organization_id, created_at, updated_at)
SELECT id - 2000, name, path, (id - 2000) % 130 + 21, parent_id, id, organization_id, created_at, updated_at
FROM namespaces WHERE type = 'Project';
INSERT INTO project_repositories (project_id, disk_path)
SELECT id, '@hashed/' || substr(md5(id::text), 1, 2) || '/' || md5(id::text) FROM projects;

WITH RECURSIVE tree (id, path, name) AS (
    SELECT id, path::text, name::text FROM namespaces WHERE parent_id IS NULL
    UNION ALL
    SELECT n.id, t.path || '/' || n.path, t.name || ' / ' || n.name FROM namespaces n JOIN tree t ON n.parent_id = t.id)
INSERT INTO routes (source_id, source_type, path, name, namespace_id, created_at, updated_at)
SELECT coalesce(p.id, t.id), CASE WHEN p.id IS NULL THEN 'Namespace' ELSE 'Project' END, t.path, t.name, t.id, now(), now()
FROM tree t LEFT JOIN projects p ON p.project_namespace_id = t.id
WHERE t.id NOT BETWEEN 41 AND 60 AND t.id NOT BETWEEN 2121 AND 2160;

-- Owners on every level. 26 has no owner of its own, 12 also has a blocked one.
INSERT INTO members (source_id, source_type, type, user_id, access_level, member_namespace_id, created_at, updated_at)
SELECT m.group_id, 'Namespace', 'GroupMember', m.user_id, m.access_level, m.group_id, now() - interval '200 days', now() - interval '200 days'
FROM (SELECT id, CASE WHEN organization_id = 1 THEN 20 + id ELSE 160 + id END, 50 FROM namespaces WHERE id <= 40 AND id <> 26
      UNION ALL SELECT id, CASE WHEN organization_id = 1 THEN 60 + id ELSE 180 + id % 9 END, 50 FROM namespaces WHERE id <= 10
      UNION ALL SELECT id, CASE WHEN organization_id = 1 THEN 70 + id ELSE 181 + id % 8 END, 40 FROM namespaces WHERE id <= 40
      UNION ALL SELECT id, 110 + id, 30 FROM namespaces WHERE id <= 40
      UNION ALL SELECT 12, 11, 50) AS m (group_id, user_id, access_level);
INSERT INTO members (source_id, source_type, type, user_id, access_level, member_namespace_id, created_at, updated_at)
SELECT p.id, 'Project', 'ProjectMember', 21 + (p.id * 7 + n) % 130, 30 + 10 * n, p.project_namespace_id, now() - interval '150 days', now() - interval '150 days'
FROM projects p, generate_series(0, 1) AS n WHERE p.id <= 120;
INSERT INTO project_authorizations (user_id, project_id, access_level)
SELECT DISTINCT m.user_id, p.id, 50 FROM projects p JOIN members m ON m.source_type = 'Namespace' AND m.source_id = p.namespace_id
WHERE m.access_level = 50 AND p.id <= 120;

INSERT INTO group_group_links (shared_group_id, shared_with_group_id, group_access, expires_at, created_at, updated_at)
VALUES (2, 3, 50, NULL, now(), now()), (4, 5, 40, NULL, now(), now()), (6, 7, 50, current_date - 1, now(), now());
INSERT INTO users_star_projects (user_id, project_id, created_at, updated_at)
SELECT u, u % 120 + 1, now(), now() FROM generate_series(1, 200) AS u;

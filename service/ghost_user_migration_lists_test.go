package service_test

import (
	"testing"
)

func TestGhostUserMigration_AuthorAndEditorOfAnIssueAreTheGhost(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	g.exec("main", `INSERT INTO issues (id, author_id, last_edited_by_id, project_id, namespace_id, iid) VALUES (2, 10, 10, 1, 101, 2), (3, 7, 10, 1, 101, 3)`)
	r := g.run(g.service(), "migrated_users=1 moved_rows=3 deleted_rows=2")
	g.want("main", `SELECT string_agg(concat_ws(' ', id, author_id, last_edited_by_id), ', ' ORDER BY id) FROM issues`, "1 7, 2 5 5, 3 7 5")
	g.wantGone(10)
	if r.OverLimit || r.Reason != "" {
		t.Errorf("over limit %t, reason %q", r.OverLimit, r.Reason)
	}
	g.want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.users' AND primary_key_value = 10`, "1")
	g.want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.namespaces' AND primary_key_value = 10`, "1")
	g.wantLog(1, `"msg":"user migrated"`, `"user_id":10`, `"issues":{"move":3}`)
}

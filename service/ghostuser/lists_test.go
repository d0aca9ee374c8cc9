package ghostuser_test

import (
	"fmt"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// wantGhostRows fails the test for each row that is not as its action leaves it.
func wantGhostRows(g *servicetest.Ghosts, rows []servicetest.GhostRow, hardDelete bool) {
	g.T.Helper()
	for _, r := range rows {
		action := r.Normal
		if hardDelete {
			action = r.Hard
		}
		want := map[string]string{"G": "5", "N": "null", "D": "gone", "K": "10"}[action]
		got := g.Value(r.Database, fmt.Sprintf(`SELECT coalesce((SELECT coalesce(%[2]s::text, 'null') FROM %[1]s t WHERE to_jsonb(t) - '%[2]s' = $1::jsonb), 'gone')`,
			r.Table, r.Column), r.Rest)
		if got != want {
			g.T.Errorf("%s: %s, want %s", r.Line, got, want)
		}
	}
}

func TestGhostUserMigration_DoesWithEveryColumnWhatItsListSays(t *testing.T) {
	t.Parallel()
	for _, three := range []bool{false, true} {
		for _, hard := range []bool{false, true} {
			t.Run(fmt.Sprintf("databases apart %t, hard delete %t", three, hard), func(t *testing.T) {
				t.Parallel()
				g := servicetest.NewGhosts(t)
				if three {
					g = servicetest.NewThreeGhosts(t)
				}
				for name := range g.SQL {
					g.Exec(name, `SET session_replication_role = replica`)
				}
				rows := g.InsertRows()
				for name := range g.SQL {
					g.Exec(name, `RESET session_replication_role`)
				}
				g.Doomed(10)
				g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1`, hard)
				s := g.Service()
				dry := g.Runs(s, true)
				servicetest.WantState(t, dry, "succeeded")
				r := g.Run(s, "")
				wantGhostRows(g, rows, hard)
				g.WantGone(10)
				if fmt.Sprint(r.Counts, r.Tables) != fmt.Sprint(dry.Counts, dry.Tables) {
					t.Errorf("the dry run counted %v %v, the run %v %v", dry.Counts, dry.Tables, r.Counts, r.Tables)
				}
				want := map[string]int64{"moved_rows": 27, "nullified_rows": 37}
				if hard {
					want = map[string]int64{"moved_rows": 6, "nullified_rows": 37 + 11}
				}
				for key, n := range want {
					if r.Counts[key] != n {
						t.Errorf("%s = %d, want %d", key, r.Counts[key], n)
					}
				}
				again := g.Run(s, "")
				servicetest.WantCounts(t, again, "")
			})
		}
	}
}

func TestGhostUserMigration_AuthorAndEditorOfAnIssueAreTheGhost(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Exec("main", `INSERT INTO issues (id, author_id, last_edited_by_id, project_id, namespace_id, iid) VALUES (2, 10, 10, 1, 101, 2), (3, 7, 10, 1, 101, 3)`)
	r := g.Run(g.Service(), "migrated_users=1 moved_rows=3 deleted_rows=4")
	g.Want("main", `SELECT string_agg(concat_ws(' ', id, author_id, last_edited_by_id), ', ' ORDER BY id) FROM issues`, "1 7, 2 5 5, 3 7 5")
	g.WantGone(10)
	if r.OverLimit || r.Reason != "" {
		t.Errorf("over limit %t, reason %q", r.OverLimit, r.Reason)
	}
	g.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.users' AND primary_key_value = 10`, "1")
	g.Want("main", `SELECT count(*) FROM loose_foreign_keys_deleted_records WHERE fully_qualified_table_name = 'public.namespaces' AND primary_key_value = 10`, "1")
	g.WantLog(1, `"msg":"user migrated"`, `"user_id":10`, `"issues":{"move":3}`)
}

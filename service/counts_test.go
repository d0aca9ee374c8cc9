package service_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// rowsSQL counts the rows of the application, but for the records of what was deleted.
const rowsSQL = `
CREATE OR REPLACE FUNCTION pg_temp.rows() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint; total bigint := 0; r regclass;
BEGIN
  FOR r IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'loose_foreign_keys_deleted_records' LOOP
    EXECUTE 'SELECT count(*) FROM ' || r INTO n;
    total := total + n;
  END LOOP;
  RETURN total;
END $$`

// rows are those of all databases.
func rows(e *servicetest.Estate) (total int) {
	e.T.Helper()
	for name := range e.SQL {
		e.Exec(name, rowsSQL)
		n := servicetest.Must(strconv.Atoi(e.Value(name, `pg_temp.rows()`)))(e.T)
		total += n
	}
	return total
}

func TestGhostUserMigration_DeletedRowsAreAllThatAreGoneButTheQueues(t *testing.T) {
	t.Parallel()
	for _, hard := range []bool{false, true} {
		t.Run(fmt.Sprintf("hard delete %t", hard), func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewThreeGhosts(t)
			for name := range g.SQL {
				g.Exec(name, `SET session_replication_role = replica`)
			}
			g.InsertRows()
			for name := range g.SQL {
				g.Exec(name, `RESET session_replication_role`)
			}
			g.Doomed(10)
			g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1`, hard)
			before := rows(g.Estate)
			r := g.Run(g.Service(), "")
			if gone, counted := before-rows(g.Estate)-1, r.Counts["deleted_rows"]; int64(gone) != counted {
				t.Errorf("%d rows are gone, deleted_rows is %d", gone, counted)
			}
			g.WantGone(10)
			tables := map[string]int64{}
			for _, table := range r.Tables {
				tables[table.Table] = table.Deleted
			}
			if tables["users"] != 1 || tables["namespaces"] != 1 {
				t.Errorf("tables %v", r.Tables)
			}
		})
	}
}

func TestDestroyGroup_LoggedRowsAreAllThatAreGone(t *testing.T) {
	t.Parallel()
	// The namespaces of projects go by a trigger of the application, where there is one.
	for trigger, byItself := range map[string]int{"ENABLE": 3, "DISABLE": 0} {
		t.Run(trigger, func(t *testing.T) {
			t.Parallel()
			g := servicetest.NewGroups(t)
			g.Owned(10, 15)
			g.Group(11, 10, "sub")
			for _, id := range []int{2, 3, 4} {
				g.Project(id, 10+id%2, fmt.Sprint("p", id))
				g.Content(id)
			}
			g.GroupContent(10)
			g.GroupContent(11)
			g.Exec("main", `ALTER TABLE projects `+trigger+` TRIGGER projects_delete_namespace`)
			before := rows(g.Estate)
			g.Run("scheduled_jobs=1")
			g.Attempt("completed succeeded")
			g.WantLog(1, "job finished", "outcome=succeeded", fmt.Sprintf(" rows=%d ", before-rows(g.Estate)-byItself))
		})
	}
}

func TestPlaceholderUserCleanup_TablesHaveTheAttempts(t *testing.T) {
	t.Parallel()
	e := servicetest.NewPlaceholders(t)
	for id := range 5 {
		e.Detail(7+id, 0, `NULL`)
	}
	s := e.Service("", e.WithQueue)
	for _, dry := range []bool{true, false} {
		r := servicetest.RunPlaceholders(t, s, dry)
		if want := (repo.TableCount{Table: "import_placeholder_user_details", Updated: 5}); len(r.Tables) != 1 || r.Tables[0] != want {
			t.Errorf("dry %t: tables %v, want %v", dry, r.Tables, want)
		}
	}
}

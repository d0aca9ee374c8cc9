package ghostuser_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/service/servicetest"
)

// spySQL notes how many rows each statement changes.
const spySQL = `CREATE TABLE spied (n serial, what text, rows bigint);
	CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO spied (what, rows) SELECT TG_TABLE_NAME || ' ' || TG_OP, count(*) FROM changed; RETURN NULL; END $$`

// spy watches the statements on some tables, and on users.
func spy(g *servicetest.Ghosts, tables ...string) {
	g.T.Helper()
	g.Exec("main", spySQL)
	for _, table := range append(tables, "users") {
		for _, event := range []string{"DELETE", "UPDATE"} {
			g.Exec("main", fmt.Sprintf(`CREATE TRIGGER spy_%[2]s AFTER %[2]s ON %[1]s REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION spy()`, table, event))
		}
	}
}

// wantBounded fails the test unless so many rows were changed, "table ACTION=rows", and no statement changed more than it
// may, the user last of all.
func wantBounded(g *servicetest.Ghosts, want ...string) {
	g.T.Helper()
	g.Want("main", `SELECT string_agg(what || '=' || rows, ' ' ORDER BY what) FROM (SELECT what, sum(rows) AS rows FROM spied WHERE rows > 0 GROUP BY what) s`,
		strings.Join(append(want, "users DELETE=1"), " "))
	g.Want("main", `SELECT coalesce(string_agg(what || ' ' || rows, ', '), '') FROM spied WHERE rows > 20000`, "")
	g.Want("main", `SELECT what FROM spied WHERE rows > 0 ORDER BY n DESC LIMIT 1`, "users DELETE")
}

func TestGhostUserMigration_TablesInNoListGoInBoundedStatementsBeforeTheUser(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Exec("main", `CREATE TABLE diaries (id bigserial PRIMARY KEY, keeper_id bigint REFERENCES users ON DELETE CASCADE);
		CREATE TABLE pages (id bigserial PRIMARY KEY, diary_id bigint REFERENCES diaries ON DELETE CASCADE);
		CREATE TABLE badges (id bigserial PRIMARY KEY, holder_id bigint REFERENCES users ON DELETE SET NULL);
		CREATE INDEX ON diaries (keeper_id); CREATE INDEX ON pages (diary_id); CREATE INDEX ON badges (holder_id)`)
	g.Doomed(10)
	g.Fill("main", "diaries", "keeper_id", "CASE WHEN i <= 25000 THEN 10 ELSE 7 END", 25_100)
	g.Fill("main", "pages", "diary_id", "i + 24000", 1100)
	g.Fill("main", "badges", "holder_id", "10", 21_000)
	spy(g, "diaries", "pages", "badges")
	g.Run(g.Service(), "migrated_users=1 deleted_rows=26004 nullified_rows=21000")
	g.WantGone(10)
	wantBounded(g, "badges UPDATE=21000", "diaries DELETE=25000", "pages DELETE=1000")
	g.Want("main", `SELECT (SELECT count(*) FROM diaries WHERE keeper_id = 7) + (SELECT count(*) FROM pages)`, "200")
}

func TestGhostUserMigration_ListedTablesAreWorkedInBoundedStatements(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	g.Fill("main", "issues", "author_id, closed_by_id, updated_by_id, namespace_id", "7, 10, 10, 101", 21_000)
	g.Fill("main", "events", "author_id, project_id, action, created_at, updated_at", "10, 1, 1, now(), now()", 21_000)
	g.Fill("main", "todos", "user_id, author_id, project_id, target_type, action, state, created_at, updated_at", "10, 7, 1, 'Issue', 1, 'pending', now(), now()", 5_000)
	spy(g, "issues", "events", "todos")
	g.Run(g.Service(), "migrated_users=1 deleted_rows=26004 nullified_rows=42000")
	g.WantGone(10)
	wantBounded(g, "events DELETE=21000", "issues UPDATE=42000", "todos DELETE=5000")
	g.Want("main", `SELECT count(*) FROM issues WHERE closed_by_id IS NOT NULL OR updated_by_id IS NOT NULL OR author_id <> 7`, "0")
}

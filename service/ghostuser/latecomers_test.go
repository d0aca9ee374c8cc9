package ghostuser_test

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// waitsSQL says whether a statement on main waits for somebody else's lock.
const waitsSQL = `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

func TestGhostUserMigration_WhatOthersCommitBeforeTheUserGoesIsMovedToo(t *testing.T) {
	t.Parallel()
	g := servicetest.NewThreeGhosts(t)
	g.Doomed(10)
	g.Exec("main", `INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES (2, 'child', 7, 1, 101, 2)`)
	commit := g.HoldThenCommit(`INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (3, 10, 1, 101, 3);
		INSERT INTO notes (noteable_type, noteable_id, author_id, project_id) VALUES ('Issue', 1, 10, 1);
		INSERT INTO todos (user_id, author_id, project_id, target_type, action, state) VALUES (7, 10, 1, 'Issue', 1, 'pending');
		INSERT INTO resource_link_events (action, user_id, issue_id, child_work_item_id, created_at) VALUES (1, 10, 1, 2, now())`)
	pipelines := g.Connect("ci")
	if _, err := pipelines.Exec(context.Background(), `BEGIN; INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 10)`); err != nil {
		t.Fatal(err)
	}
	s := g.Service()
	r := g.Begin(s)
	g.Eventually("main", waitsSQL, "true")
	servicetest.Must(pipelines.Exec(context.Background(), `COMMIT`))(t)
	commit()
	r = g.Settled(s, servicetest.Ended(t, s, r.ID))
	servicetest.WantState(t, r, repo.RunSucceeded)
	servicetest.WantCounts(t, r, "migrated_users=1 moved_rows=5 deleted_rows=4")
	g.WantGone(10)
	g.Want("main", `SELECT concat_ws(' ', (SELECT author_id FROM issues WHERE id = 3), (SELECT author_id FROM notes), (SELECT author_id FROM todos), (SELECT user_id FROM resource_link_events))`, "5 5 5 5")
	g.Want("ci", `SELECT user_id FROM p_ci_pipelines`, "5")
}

func TestGhostUserMigration_AUserWhoIsStillAtWorkIsDeferredOnceTheTimeIsUsedUp(t *testing.T) {
	t.Parallel()
	g := servicetest.NewGhosts(t)
	g.Doomed(10)
	// Each row that is moved is followed by another one.
	g.Exec("main", `CREATE FUNCTION go_on() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO issues (author_id, namespace_id) VALUES (OLD.author_id, 101); RETURN NULL; END $$;
		CREATE TRIGGER go_on AFTER UPDATE ON issues FOR EACH ROW WHEN (OLD.author_id = 10) EXECUTE FUNCTION go_on();
		UPDATE issues SET author_id = 10`)
	if r := g.Run(g.Service(servicetest.Lasting(6*time.Second)), ""); r.Counts["deferred_users"] != 1 || !r.OverLimit {
		t.Errorf("%+v", r)
	}
	g.WantLater(10, 30*time.Second)
	g.Want("main", `SELECT count(*) FROM issues WHERE author_id IS NULL`, "0")
}

func TestGhostUserMigration_AUserWithNothingIsLookedAtInFewStatements(t *testing.T) {
	t.Parallel()
	g := servicetest.NewThreeGhosts(t)
	g.Exec("main", `CREATE EXTENSION pg_stat_statements`)
	g.Doomed(10, 11)
	g.Exec("main", `DELETE FROM namespaces WHERE id IN (10, 11)`)
	g.Run(g.Service(), "migrated_users=2 deleted_rows=2")
	// Twice at all of the more than 100 columns, and once at the namespace alone.
	g.Want("main", `SELECT sum(calls) / 2 <= 5 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query LIKE 'SELECT ARRAY[EXISTS%'`, "true")
}

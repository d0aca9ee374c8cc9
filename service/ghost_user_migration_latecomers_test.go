package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// waitsSQL says whether a statement on main waits for somebody else's lock.
const waitsSQL = `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

func TestGhostUserMigration_WhatOthersCommitBeforeTheUserGoesIsMovedToo(t *testing.T) {
	t.Parallel()
	g := newThreeGhosts(t)
	g.doomed(10)
	g.exec("main", `INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES (2, 'child', 7, 1, 101, 2)`)
	commit := g.holdThenCommit(`INSERT INTO issues (id, author_id, project_id, namespace_id, iid) VALUES (3, 10, 1, 101, 3);
		INSERT INTO notes (noteable_type, noteable_id, author_id, project_id) VALUES ('Issue', 1, 10, 1);
		INSERT INTO todos (user_id, author_id, project_id, target_type, action, state) VALUES (7, 10, 1, 'Issue', 1, 'pending');
		INSERT INTO resource_link_events (action, user_id, issue_id, child_work_item_id, created_at) VALUES (1, 10, 1, 2, now())`)
	pipelines := g.connect("ci")
	if _, err := pipelines.Exec(context.Background(), `BEGIN; INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id) VALUES (1, 100, 1, 10)`); err != nil {
		t.Fatal(err)
	}
	s := g.service()
	r := g.begin(s)
	g.await(waitsSQL)
	if _, err := pipelines.Exec(context.Background(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	commit()
	r = g.settled(s, ended(t, s, r.ID))
	wantState(t, r, repo.RunSucceeded)
	wantCounts(t, r, "migrated_users=1 moved_rows=5 deleted_rows=4")
	g.wantGone(10)
	g.want("main", `SELECT concat_ws(' ', (SELECT author_id FROM issues WHERE id = 3), (SELECT author_id FROM notes), (SELECT author_id FROM todos), (SELECT user_id FROM resource_link_events))`, "5 5 5 5")
	g.want("ci", `SELECT user_id FROM p_ci_pipelines`, "5")
}

func TestGhostUserMigration_AUserWhoIsStillAtWorkIsDeferredOnceTheTimeIsUsedUp(t *testing.T) {
	t.Parallel()
	g := newGhosts(t)
	g.doomed(10)
	// Each row that is moved is followed by another one.
	g.exec("main", `CREATE FUNCTION go_on() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO issues (author_id, namespace_id) VALUES (OLD.author_id, 101); RETURN NULL; END $$;
		CREATE TRIGGER go_on AFTER UPDATE ON issues FOR EACH ROW WHEN (OLD.author_id = 10) EXECUTE FUNCTION go_on();
		UPDATE issues SET author_id = 10`)
	if r := g.run(g.service(lasting(6*time.Second)), ""); r.Counts["deferred_users"] != 1 || !r.OverLimit {
		t.Errorf("%+v", r)
	}
	g.wantLater(10, 30*time.Second)
	g.want("main", `SELECT count(*) FROM issues WHERE author_id IS NULL`, "0")
}

func TestGhostUserMigration_AUserWithNothingIsLookedAtInFewStatements(t *testing.T) {
	t.Parallel()
	g := newThreeGhosts(t)
	g.exec("main", `CREATE EXTENSION pg_stat_statements`)
	g.doomed(10, 11)
	g.exec("main", `DELETE FROM namespaces WHERE id IN (10, 11)`)
	g.run(g.service(), "migrated_users=2 deleted_rows=2")
	// Twice at all of the more than 100 columns, and once at the namespace alone.
	g.want("main", `SELECT sum(calls) / 2 <= 5 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		WHERE query LIKE 'SELECT ARRAY[EXISTS%'`, "true")
}

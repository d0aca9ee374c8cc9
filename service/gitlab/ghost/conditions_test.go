package ghost_test

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// condition is a column by which the worker shows rows that it deletes from rows that it must not,
// and a row to be told.
type condition struct {
	table, column, reference, row string
	hard                          bool
}

// conditions are all of them. The personal namespace and the route of the user, and an issue of theirs, are there.
func conditions() []condition {
	return []condition{
		{"keys", "type", "user_id", `INSERT INTO keys (user_id, title) VALUES ({user}, 'ssh')`, false},
		{"keys", "type", "user_id", `INSERT INTO keys (user_id, title) VALUES ({user}, 'ssh')`, true},
		{"oauth_applications", "owner_type", "owner_id", `INSERT INTO oauth_applications (name, uid, secret, redirect_uri, owner_id)
			VALUES ('a', 'u', 's', 'r', {user})`, false},
		{"snippets", "project_id", "author_id", `INSERT INTO snippets (author_id, organization_id) VALUES ({user}, 1)`, false},
		{"snippets", "project_id", "author_id", `INSERT INTO snippets (author_id, organization_id) VALUES ({user}, 1)`, true},
		{"namespaces", "type", "owner_id", ``, false},
		{"routes", "source_type", "source_id", `UPDATE routes SET namespace_id = 100 WHERE source_id = {user}`, false},
		{"members", "source_type", "source_id", `INSERT INTO members (access_level, source_id, user_id, member_namespace_id) VALUES (50,
			{user}, 7, 100)`, false},
		{"notes", "noteable_type", "noteable_id", `INSERT INTO notes (noteable_id, author_id, project_id) VALUES ({issue}, 7, 1)`, true},
		{"award_emoji", "awardable_type", "awardable_id", `INSERT INTO award_emoji (awardable_id, user_id) VALUES ({issue}, 7)`, true},
		{"todos", "target_type", "target_id", `INSERT INTO todos (target_id, user_id, author_id, project_id, action, state) VALUES ({issue}, 7,
			7, 1, 1, 'pending')`, true},
		{"events", "target_type", "target_id", `INSERT INTO events (target_id, author_id, project_id, action, created_at, updated_at)
			VALUES ({issue}, 7, 1, 1, now(), now())`, true},
		{"subscriptions", "subscribable_type", "subscribable_id", `INSERT INTO subscriptions (subscribable_id, user_id)
			VALUES ({issue}, 7)`, true},
	}
}

// hide renames the column. Rows need no value for it then.
func (c condition) hide(g *servicetest.Ghosts) {
	g.T.Helper()
	g.Exec("main", `ALTER TABLE `+c.table+` RENAME COLUMN `+c.column+` TO hidden;
		ALTER TABLE `+c.table+` ALTER hidden DROP NOT NULL, ALTER hidden DROP DEFAULT`)
}

// debugging logs lines of all levels.
func debugging(g *servicetest.Ghosts) *service.Service {
	return g.Service(func(c *service.Config) {
		c.Logger = slog.New(slog.NewJSONHandler(g.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
}

func TestGhostUserMigration_WithoutTheColumnOfAConditionNothingIsDeletedOrSkipped(t *testing.T) {
	g := servicetest.NewGhosts(servicetest.Parallel(t))
	ran := func(counts string) {
		t.Helper()
		g.Log.Reset()
		s := debugging(g)
		dry, run := g.Runs(s, true), g.Run(s, counts)
		servicetest.WantState(t, dry, control.RunSucceeded)
		assert.That(t, maps.Equal(dry.Counts, run.Counts), "dry run %v, run %v", dry.Counts, run.Counts)
	}
	for i, c := range conditions() {
		user, issue := 10+i, 1000+i
		g.Doomed(user)
		g.Fill("main", "issues", "id, author_id, namespace_id", fmt.Sprintf("%d, %d, 101", issue, user), 1)
		g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1 WHERE user_id = $2`, c.hard, user)
		c.hide(g)
		g.Exec("main", strings.NewReplacer("{user}", strconv.Itoa(user), "{issue}", strconv.Itoa(issue)).Replace(c.row))
		ran("")
		g.WantLog(2, `"level":"DEBUG"`, `"table":"`+c.table+`"`, `"missing":"`+c.column+`"`)
		g.WantLater(user, 30*time.Minute)
		g.WantLog(2, `"level":"ERROR"`, `"reason":"STILL_REFERENCED"`, c.table+"."+c.reference+" may still refer to the target, but "+
			c.table+" has no column "+c.column, `"table":"`+c.table+`","column":"`+c.reference+`"`)
		g.Want("main", fmt.Sprintf(`SELECT count(*) > 0 FROM %s WHERE %s IN (%d, %d)`, c.table, c.reference, user, issue), "true")
		g.Exec("main", `ALTER TABLE `+c.table+` RENAME COLUMN hidden TO `+c.column)
	}

	// Without such rows there is nothing to decide.
	g.Doomed(50, 51)
	g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = true WHERE user_id = 51;
		DELETE FROM routes WHERE source_id IN (50, 51); DELETE FROM namespaces WHERE owner_id IN (50, 51)`)
	all := slices.CompactFunc(conditions(), func(a, b condition) bool { return a.table == b.table })
	for _, c := range all {
		c.hide(g)
	}
	ran("migrated_users=2 deleted_rows=2")
	for _, c := range all {
		g.WantLog(2, `"level":"DEBUG"`, `"table":"`+c.table+`"`, `"missing":"`+c.column+`"`)
	}
	g.Want("main", `SELECT count(*) FROM users WHERE id IN (50, 51)`, "0")
}

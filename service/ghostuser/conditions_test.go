package ghostuser_test

import (
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// TestGhostUserMigration_WithoutTheColumnOfAConditionNothingIsDeletedOrPassedOver has every column by which the worker tells
// rows that it deletes from rows that it must not.
func TestGhostUserMigration_WithoutTheColumnOfAConditionNothingIsDeletedOrPassedOver(t *testing.T) {
	t.Parallel()
	// The personal namespace and the route of user 10, and an issue of theirs, are there in each case.
	for _, test := range []struct {
		table, condition, reference, row string
		hard                             bool
	}{
		{"keys", "type", "user_id", `INSERT INTO keys (user_id, title) VALUES (10, 'ssh')`, false},
		{"keys", "type", "user_id", `INSERT INTO keys (user_id, title) VALUES (10, 'ssh')`, true},
		{"oauth_applications", "owner_type", "owner_id", `INSERT INTO oauth_applications (name, uid, secret, redirect_uri, owner_id) VALUES ('a', 'u', 's', 'r', 10)`, false},
		{"snippets", "project_id", "author_id", `INSERT INTO snippets (author_id, organization_id) VALUES (10, 1)`, false},
		{"snippets", "project_id", "author_id", `INSERT INTO snippets (author_id, organization_id) VALUES (10, 1)`, true},
		{"namespaces", "type", "owner_id", ``, false},
		{"routes", "source_type", "source_id", `UPDATE routes SET namespace_id = 100`, false},
		{"members", "source_type", "source_id", `INSERT INTO members (access_level, source_id, user_id, member_namespace_id) VALUES (50, 10, 7, 100)`, false},
		{"notes", "noteable_type", "noteable_id", `INSERT INTO notes (noteable_id, author_id, project_id) VALUES (20, 7, 1)`, true},
		{"award_emoji", "awardable_type", "awardable_id", `INSERT INTO award_emoji (awardable_id, user_id) VALUES (20, 7)`, true},
		{"todos", "target_type", "target_id", `INSERT INTO todos (target_id, user_id, author_id, project_id, action, state) VALUES (20, 7, 7, 1, 1, 'pending')`, true},
		{"events", "target_type", "target_id", `INSERT INTO events (target_id, author_id, project_id, action, created_at, updated_at) VALUES (20, 7, 1, 1, now(), now())`, true},
		{"subscriptions", "subscribable_type", "subscribable_id", `INSERT INTO subscriptions (subscribable_id, user_id) VALUES (20, 7)`, true},
	} {
		for _, there := range []bool{true, false} {
			t.Run(test.table+"."+test.condition, func(t *testing.T) {
				t.Parallel()
				g := servicetest.NewGhosts(t)
				g.Doomed(10)
				g.Exec("main", `INSERT INTO issues (id, title, author_id, project_id, namespace_id, iid) VALUES (20, 'i', 10, 1, 101, 20)`)
				g.Exec("main", `UPDATE ghost_user_migrations SET hard_delete = $1`, test.hard)
				if there {
					g.Exec("main", `ALTER TABLE `+test.table+` DROP COLUMN `+test.condition+` CASCADE`)
					g.Exec("main", test.row)
				} else {
					// Without such rows there is nothing to decide.
					g.Exec("main", `DELETE FROM routes; DELETE FROM namespaces WHERE owner_id = 10; ALTER TABLE `+test.table+` DROP COLUMN `+test.condition+` CASCADE`)
				}
				s := g.Service(func(c *service.Config) {
					c.Logger = slog.New(slog.NewJSONHandler(g.Log, &slog.HandlerOptions{Level: slog.LevelDebug}))
				})
				dry, run := g.Runs(s, true), g.Run(s, "")
				servicetest.WantState(t, dry, repo.RunSucceeded)
				if !maps.Equal(dry.Counts, run.Counts) {
					t.Errorf("dry run %v, run %v", dry.Counts, run.Counts)
				}
				g.WantLog(2, `"level":"DEBUG"`, `"table":"`+test.table+`"`, `"missing":"`+test.condition+`"`)
				if !there {
					g.Want("main", `SELECT count(*) FROM users WHERE id = 10`, "0")
					return
				}
				g.WantLater(10, 30*time.Minute)
				g.WantLog(2, `"level":"ERROR"`, `"reason":"STILL_REFERENCED"`, test.table+"."+test.reference+" still refers to it, or to something else: "+
					test.table+" has no column "+test.condition, `"table":"`+test.table+`","column":"`+test.reference+`"`)
				g.Want("main", `SELECT count(*) > 0 FROM `+test.table+` WHERE `+test.reference+` IN (10, 20)`, "true")
			})
		}
	}
}

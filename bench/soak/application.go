package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
)

// application makes work for all five workers.
type application struct {
	cancel     context.CancelFunc
	done       sync.WaitGroup
	failed     chan error
	main, shop *pgx.Conn
	orders     int
	every, day time.Duration
}

// startApplication deletes a project with all its rows again and again. It marks a user, a bot, a
// placeholder and a group for deletion.
func (e *estate) startApplication(ctx context.Context) (a *application, err error) {
	a = &application{failed: make(chan error, 1), orders: e.burst, every: e.day / 10, day: e.day}
	if a.main, err = pgx.Connect(ctx, e.cluster.URL("main")); err != nil {
		return nil, err
	}
	if a.shop, err = pgx.Connect(ctx, e.cluster.URL(shop)); err != nil {
		return nil, errors.Join(err, a.main.Close(ctx))
	}
	urls := map[string]string{}
	for _, name := range gitlab {
		urls[name] = e.cluster.URL(name)
	}
	working, cancel := context.WithCancel(ctx)
	a.cancel = cancel
	a.done.Go(func() { devdb.Trickle(working, urls, a.every/3, slog.New(slog.NewTextHandler(e.progress, nil))) })
	a.done.Go(func() {
		if err := a.mark(working); err != nil && working.Err() == nil {
			a.failed <- fmt.Errorf("the application: %w", err)
		}
	})
	return a, nil
}

func (a *application) stop(ctx context.Context) error {
	a.cancel()
	a.done.Wait()
	return errors.Join(a.main.Close(ctx), a.shop.Close(ctx))
}

// mark makes and marks a few of each kind, until the end.
func (a *application) mark(ctx context.Context) error {
	tick := time.NewTicker(a.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, statement := range []string{personSQL, botSQL, placeholderSQL, groupSQL, contributionsSQL} {
			if _, err := a.main.Exec(ctx, statement); err != nil {
				return fmt.Errorf("%.60q: %w", statement, err)
			}
		}
		if _, err := a.main.Exec(ctx, referencesSQL, 2*a.day.Seconds()); err != nil {
			return fmt.Errorf("%.60q: %w", referencesSQL, err)
		}
	}
}

// burst deletes many orders at once.
func (a *application) burst(ctx context.Context) error {
	if _, err := a.shop.Exec(ctx, ordersSQL, a.orders); err != nil {
		return fmt.Errorf("%.60q: %w", ordersSQL, err)
	}
	_, err := a.shop.Exec(ctx, `DELETE FROM orders`)
	return err
}

// Rows of the application have a name that begins with soak-, or the title soak.
const (
	ordersSQL = `
WITH made AS (INSERT INTO orders (customer) SELECT 'soak-' || n FROM generate_series(1, $1::int) n RETURNING id)
INSERT INTO order_items (order_id, product) SELECT id, 'soak' FROM made, generate_series(1, 20)`

	// A person with contributions stands in the queue of the ghost migration, in a while.
	personSQL = `
WITH person AS (
  INSERT INTO users (user_type, username, name, email, state, projects_limit, organization_id, created_at, updated_at)
  SELECT 0, n, n, n || '@example.com', 'blocked', 0, 1, now(), now() FROM (SELECT 'soak-' || gen_random_uuid()) x (n)
  RETURNING id),
issues AS (
  INSERT INTO issues (title, author_id, project_id, namespace_id, created_at, updated_at)
  SELECT 'soak', id, 1, 2001, now(), now() FROM person, generate_series(1, 20)),
keys AS (
  INSERT INTO gpg_keys (user_id, key, created_at, updated_at) SELECT id, 'soak', now(), now() FROM person)
INSERT INTO ghost_user_migrations (user_id, initiator_user_id, user_type, consume_after, created_at, updated_at)
SELECT id, 1, 0, now() + interval '12 hours', now(), now() FROM person`

	// A bot's only token expired today.
	botSQL = `
WITH bot AS (
  INSERT INTO users (user_type, username, name, email, state, projects_limit, organization_id, created_at, updated_at)
  SELECT 6, n, n, n || '@example.com', 'active', 0, 1, now() - interval '1 year', now()
  FROM (SELECT 'soak-' || gen_random_uuid()) x (n)
  RETURNING id, username),
details AS (INSERT INTO user_details (user_id, bot_namespace_id) SELECT id, 1 FROM bot)
INSERT INTO personal_access_tokens (user_id, name, expires_at, token_digest, organization_id, user_type, created_at, updated_at)
SELECT id, 'soak', current_date, username, 1, 6, now() - interval '1 year', now() - interval '1 year' FROM bot`

	// A placeholder is still referred to, so that its deletion has to be tried again.
	placeholderSQL = `
WITH placeholder AS (
  INSERT INTO users (user_type, username, name, email, state, projects_limit, organization_id, created_at, updated_at)
  SELECT 15, n, n, n || '@example.com', 'active', 0, 1, now(), now() FROM (SELECT 'soak-' || gen_random_uuid()) x (n)
  RETURNING id),
reference AS (
  INSERT INTO issues (title, author_id, project_id, namespace_id, created_at, updated_at)
  SELECT 'soak-imported', id, 1, 2001, now(), now() FROM placeholder)
INSERT INTO import_placeholder_user_details (placeholder_user_id, organization_id, created_at, updated_at)
SELECT id, 1, now(), now() FROM placeholder`

	// A group with a project is marked by an admin.
	groupSQL = `
WITH ids AS MATERIALIZED (
  SELECT nextval('namespaces_id_seq') AS g, nextval('namespaces_id_seq') AS p, 'soak-' || gen_random_uuid() AS n),
spaces AS (
  INSERT INTO namespaces (id, name, path, type, parent_id, traversal_ids, state, organization_id, created_at, updated_at)
  SELECT g, n, n, 'Group', NULL, ARRAY[g], 2, 1, now(), now() FROM ids
  UNION ALL SELECT p, n, n, 'Project', g, ARRAY[g, p], 0, 1, now(), now() FROM ids),
project AS (
  INSERT INTO projects (name, path, creator_id, namespace_id, project_namespace_id, organization_id, created_at, updated_at)
  SELECT n, n, 21, g, p, 1, now(), now() FROM ids RETURNING id, project_namespace_id AS p, name),
issues AS (
  INSERT INTO issues (title, author_id, project_id, namespace_id, created_at, updated_at)
  SELECT 'soak', 22, id, p, now(), now() FROM project, generate_series(1, 20)),
repositories AS (INSERT INTO project_repositories (project_id, disk_path) SELECT id, name FROM project)
INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on)
SELECT g, 1, (now() AT TIME ZONE 'UTC')::date FROM ids`

	// References to placeholders are deleted after a while, and so are contributions of the ghost.
	referencesSQL = `
DELETE FROM issues WHERE title = 'soak-imported' AND created_at < now() AT TIME ZONE 'UTC' - make_interval(secs => $1)`
	contributionsSQL = `
DELETE FROM issues i USING users u WHERE i.title = 'soak' AND u.id = i.author_id AND u.user_type = 5`
)

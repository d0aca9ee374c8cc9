package devdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// trickleLimit is the number of pending records from which Trickle adds no more. So the disk does
// not fill if the clean-up is off.
const trickleLimit = 2000

// trickleTimeout bounds a tick that comes more often, and its last deletions.
const trickleTimeout = 10 * time.Second

// Trickle keeps deleting a few parents with children in main, ci and sec. At each tick it deletes
// one project with its users, merge requests and pipelines. All that it adds hangs on that project
// and goes with it once the loose foreign keys are cleaned up. An error is logged, and the next
// tick tries again. urls are those of LoadDemo. It returns when ctx ends.
func Trickle(ctx context.Context, urls map[string]string, every time.Duration, log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// A tick that has started ends, so that no parent remains that nothing deletes.
		if err := trickle(context.WithoutCancel(ctx), urls, every); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "demo deletions failed", "error", err)
		}
	}
}

// trickle is one tick. Once the parents are made they are deleted in any case,
// so that an error that comes back at each tick does not fill main.
func trickle(ctx context.Context, urls map[string]string, every time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, max(every, trickleTimeout))
	defer cancel()
	conns, err := connectAll(ctx, urls)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	if err != nil {
		return err
	}
	if full, err := backlogged(ctx, conns); full || err != nil {
		return err
	}
	var project trickled
	row := conns["main"].QueryRow(ctx, trickleParents)
	if err := row.Scan(&project.id, &project.users, &project.requests); err != nil {
		return fmt.Errorf("cannot create parents in main: %w", err)
	}
	err = project.fill(ctx, conns)
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), trickleTimeout)
	defer cancelLast()
	removeErr := project.remove(last, conns)
	if removeErr != nil {
		removeErr = project.remove(last, conns) // after a deadlock with a worker
	}
	return errors.Join(err, removeErr)
}

// connectAll connects to the three. After an error the result has those that it reached.
func connectAll(ctx context.Context, urls map[string]string) (map[string]*pgx.Conn, error) {
	conns := map[string]*pgx.Conn{}
	for _, name := range []string{"main", "ci", "sec"} {
		conn, err := pgx.Connect(ctx, cmp.Or(urls[name], urls["main"]))
		if err != nil {
			return conns, fmt.Errorf("cannot connect to %s: %w", name, err)
		}
		conns[name] = conn
	}
	return conns, nil
}

// trickled is what one tick makes and deletes.
type trickled struct {
	id                         int64
	users, requests, pipelines []int64
}

// fill makes the children.
func (p *trickled) fill(ctx context.Context, conns map[string]*pgx.Conn) error {
	if err := conns["ci"].QueryRow(ctx, trickleCI, p.id, p.users, p.requests).Scan(&p.pipelines); err != nil {
		return fmt.Errorf("cannot create child rows in database ci: %w", err)
	}
	if _, err := conns["sec"].Exec(ctx, trickleSec, p.id, p.users); err != nil {
		return fmt.Errorf("cannot create child rows in database sec: %w", err)
	}
	if _, err := conns["main"].Exec(ctx, trickleHeads, p.pipelines, p.id); err != nil {
		return fmt.Errorf("cannot create child rows in database main: %w", err)
	}
	return nil
}

const pendingRecords = `SELECT count(*) FROM (SELECT FROM loose_foreign_keys_deleted_records WHERE status = 1 LIMIT $1) AS pending`

func backlogged(ctx context.Context, conns map[string]*pgx.Conn) (bool, error) {
	for name, conn := range conns {
		var pending int
		if err := conn.QueryRow(ctx, pendingRecords, trickleLimit).Scan(&pending); err != nil {
			return false, fmt.Errorf("cannot count the records of %s: %w", name, err)
		}
		if pending >= trickleLimit {
			return true, nil
		}
	}
	return false, nil
}

// trickleParents makes a project in the demo's first group, two users and three
// merge requests.
const trickleParents = `
WITH space AS (
	INSERT INTO namespaces (name, path, type, parent_id, traversal_ids, organization_id, created_at, updated_at)
	SELECT name.it, name.it, 'Project', 1, ARRAY[1], 1, now(), now()
	FROM (SELECT 'short-lived-' || gen_random_uuid()) AS name (it)
	RETURNING id, path),
project AS (
	INSERT INTO projects (name, path, namespace_id, project_namespace_id, organization_id, created_at, updated_at)
	SELECT path, path, 1, id, 1, now(), now() FROM space
	RETURNING id),
people AS (
	INSERT INTO users (user_type, username, name, email, state, projects_limit, organization_id, created_at, updated_at)
	SELECT 0, path || '-' || n, 'Short-lived', path || '-' || n || '@example.com', 'blocked', 0, 1, now(), now()
	FROM space, generate_series(1, 2) AS n
	RETURNING id),
requests AS (
	INSERT INTO merge_requests (title, source_branch, target_branch, target_project_id, iid, created_at, updated_at)
	SELECT 'Short-lived', 'branch-' || n, 'main', project.id, n, now(), now() FROM project, generate_series(1, 3) AS n
	RETURNING id)
SELECT project.id, ARRAY(SELECT id FROM people), ARRAY(SELECT id FROM requests) FROM project`

// trickleCI makes pipelines with builds, and a schedule.
const trickleCI = `
WITH pipelines AS (
	INSERT INTO p_ci_pipelines (id, partition_id, project_id, user_id, merge_request_id, ref, status, source, created_at, updated_at)
	SELECT nextval('ci_pipelines_id_seq'), 100 + n % 3, $1, ($2::bigint[])[n % 2 + 1], ($3::bigint[])[n % 3 + 1], 'main', 'success', 1, now(), now()
	FROM generate_series(1, 6) AS n
	RETURNING id, partition_id, user_id),
builds AS (
	INSERT INTO p_ci_builds (id, partition_id, commit_id, project_id, user_id, name, status, created_at, updated_at)
	SELECT nextval('ci_builds_id_seq'), partition_id, id, $1, user_id, 'job ' || n, 'success', now(), now()
	FROM pipelines, generate_series(1, 2) AS n),
schedules AS (
	INSERT INTO ci_pipeline_schedules (description, ref, cron, cron_timezone, project_id, owner_id, created_at, updated_at)
	VALUES ('Short-lived', 'main', '0 3 * * *', 'UTC', $1, ($2::bigint[])[1], now(), now()))
SELECT array_agg(id) FROM pipelines`

const trickleSec = `
INSERT INTO vulnerabilities (project_id, author_id, resolved_by_id, title, created_at, updated_at)
SELECT $1, 1, ($2::bigint[])[n % 2 + 1], 'Short-lived', now(), now() FROM generate_series(1, 2) AS n`

// trickleHeads points merge requests that stay to pipelines that go.
const trickleHeads = `
UPDATE merge_requests m SET head_pipeline_id = p.id
FROM unnest($1::bigint[]) WITH ORDINALITY AS p (id, n)
WHERE m.id = 1 + ($2 * 2 + p.n) % 3000 AND p.n <= 2`

// remove deletes the parents through the triggers: main's first, with which all
// the others go in the end, then two of the pipelines.
func (p *trickled) remove(ctx context.Context, conns map[string]*pgx.Conn) error {
	batch := &pgx.Batch{} // one transaction
	batch.Queue("DELETE FROM merge_requests WHERE id = ANY ($1)", p.requests)
	batch.Queue("DELETE FROM users WHERE id = ANY ($1)", p.users)
	batch.Queue("DELETE FROM projects WHERE id = $1", p.id)
	if err := conns["main"].SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("cannot delete parents: %w", err)
	}
	if _, err := conns["ci"].Exec(ctx, "DELETE FROM p_ci_pipelines WHERE id = ANY ($1)", p.pipelines[:min(2, len(p.pipelines))]); err != nil {
		return fmt.Errorf("cannot delete pipelines: %w", err)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/service"
)

// The people of (g): the user to be deleted, the ghost, and somebody whose rows lie between the user's.
const (
	ghost   = 1
	leaving = 10
	staying = 11
)

// contribution is a column of (g), with the rows that are made for it.
type contribution struct{ table, column, rows string }

func contributions() []contribution {
	return []contribution{
		{"issues", "author_id", `INSERT INTO issues (author_id, title, project_id, namespace_id, iid, description, created_at, updated_at)
			SELECT %s, 'issue ' || i, 1, 2, i, repeat('description ', 5), now(), now()`},
		{"notes", "author_id", `INSERT INTO notes (author_id, note, noteable_type, noteable_id, project_id, created_at, updated_at)
			SELECT %s, 'note ' || i, 'Issue', i / 5 + 1, 1, now(), now()`},
		{"timelogs", "user_id", `INSERT INTO timelogs (user_id, time_spent, issue_id, project_id, created_at, updated_at)
			SELECT %s, 60, i, 1, now(), now()`},
		{"award_emoji", "user_id", `INSERT INTO award_emoji (user_id, name, awardable_id, awardable_type, created_at, updated_at)
			SELECT %s, 'thumbsup', i, 'Issue', now(), now()`},
	}
}

// groundwork is an organization with people, a group and a project.
func groundwork() []string {
	return []string{
		`INSERT INTO organizations (id, path, created_at, updated_at) VALUES (1, 'bench', now(), now())`,
		fmt.Sprintf(`INSERT INTO users (id, email, username, projects_limit, user_type, state, organization_id)
			SELECT i, i || '@example.com', 'user_' || i, 0, CASE i WHEN %d THEN 5 ELSE 0 END, 'active', 1 FROM generate_series(1, 20) i`, ghost),
		`INSERT INTO namespaces (id, name, path, type, organization_id, parent_id)
			VALUES (1, 'group', 'group', 'Group', 1, NULL), (2, 'project', 'project', 'Project', 1, 1)`,
		`INSERT INTO projects (id, name, path, namespace_id, project_namespace_id, organization_id) VALUES (1, 'project', 'project', 1, 2, 1)`,
	}
}

// contributed are the rows of the user, every second one of each table.
func (l *lab) contributed() []string {
	statements := groundwork()
	for _, c := range contributions() {
		author := fmt.Sprintf("CASE i %% 2 WHEN 0 THEN %d ELSE %d END", leaving, staying)
		statements = append(statements, fmt.Sprintf(c.rows, author)+fmt.Sprintf(` FROM generate_series(1, %d) i`, 2*(l.contributions/4)))
	}
	return statements
}

// readyMigration has a server behind it that has run before, with nothing to do.
func readyMigration(ctx context.Context, d *database) (work, error) {
	s, err := openService(ctx, d, service.Config{GhostUserMigration: service.GhostUserMigrationConfig{MaxRuntime: 10 * time.Minute}})
	if err != nil {
		return nil, err
	}
	if err := runWorker(ctx, s, "ghost_user_migration", map[string]int64{"migrated_users": 0}); err != nil {
		return nil, err
	}
	counts := map[string]int64{"migrated_users": 1, "moved_rows": int64(d.lab.contributions / 4 * 4)}
	return func(ctx context.Context) error { return runWorker(ctx, s, "ghost_user_migration", counts) },
		d.exec(ctx, fmt.Sprintf(`INSERT INTO ghost_user_migrations (user_id, created_at, updated_at) VALUES (%d, now(), now())`, leaving))
}

// readyUpdates is PostgreSQL's own limit: a statement for all rows of a column.
func readyUpdates(_ context.Context, d *database) (work, error) {
	return func(ctx context.Context) error {
		for _, c := range contributions() {
			if err := d.exec(ctx, fmt.Sprintf(`UPDATE %s SET %s = %d WHERE %[2]s = %[4]d`, c.table, c.column, ghost, leaving)); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// readyFifties is the reference: 50 rows a statement until there are none, each a transaction. It is kept on the index,
// as it is in tables of GitLab's size: in one of this size the planner would read the table from its start each time.
func readyFifties(ctx context.Context, d *database) (work, error) {
	far, err := d.lab.connectTo(ctx, d.name, d.url)
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, func() error { return far.conn.Close(context.WithoutCancel(ctx)) })
	return func(ctx context.Context) error {
		for _, c := range contributions() {
			sql := fmt.Sprintf(`UPDATE %s SET %s = %d WHERE id IN (SELECT id FROM %[1]s WHERE %[2]s = %[4]d LIMIT 50)`, c.table, c.column, ghost, leaving)
			for {
				done, err := far.conn.Exec(ctx, sql)
				if err != nil {
					return err
				}
				if done.RowsAffected() == 0 {
					break
				}
			}
		}
		return nil
	}, far.exec(ctx, `SET enable_seqscan = off`)
}

// away is a way with a network between it and the database.
func away(w way) way {
	return way{w.name + ", far", func(ctx context.Context, d *database) (work, error) {
		if err := d.far(ctx); err != nil {
			return nil, err
		}
		return w.ready(ctx, d)
	}}
}

// migrated makes sure that the user has nothing left and the ghost has all of it.
func migrated(ctx context.Context, d *database) error {
	for _, c := range contributions() {
		var left, got, others int
		sql := fmt.Sprintf(`SELECT count(*) FILTER (WHERE %[2]s = %[3]d), count(*) FILTER (WHERE %[2]s = %[4]d), count(*) FILTER (WHERE %[2]s = %[5]d) FROM %[1]s`,
			c.table, c.column, leaving, ghost, staying)
		if err := d.conn.QueryRow(ctx, sql).Scan(&left, &got, &others); err != nil {
			return err
		}
		if want := d.lab.contributions / 4; left != 0 || got != want || others != want {
			return fmt.Errorf("of %s the user has %d, the ghost %d and the other %d, where it should be 0, %d and %[5]d", c.table, left, got, others, want)
		}
	}
	return nil
}

// compareMigrations is (g): the worker beside a statement a column, and beside statements of 50 rows, near and far.
func compareMigrations(ctx context.Context, l *lab) (*report, error) {
	if err := l.buildMain(ctx, "contributions", l.contributed()...); err != nil {
		return nil, err
	}
	ours, plain, fifties := way{"caretaker", readyMigration}, way{"one UPDATE a column", readyUpdates}, way{"50 rows a statement", readyFifties}
	r := &report{header: standingsHeader("rows")}
	var notes []string
	for _, pair := range []struct {
		name   string
		rounds int
		ways   []way
		least  float64
	}{
		{"an UPDATE a column", l.repeat, []way{ours, plain}, 0.9},
		{"statements of 50 rows", l.half(), []way{ours, fifties}, 2},
		{"statements of 50 rows, far", l.half(), []way{away(ours), away(fifties)}, 5},
	} {
		measured, note, err := l.race(ctx, "contributions", pair.rounds, migrated, pair.ways...)
		if err != nil {
			return nil, err
		}
		r.standings(l.contributions/4*4, measured, pair.ways...)
		ratio := faster(measured, 1)
		l.target(r, "caretaker's speed beside "+pair.name, fmt.Sprintf("at least %.2f ×", pair.least),
			fmt.Sprintf("%s (%s by processor time of the server)", times(ratio), times(cheaper(measured, 1))), ratio >= pair.least)
		notes = append(notes, "Beside "+pair.name+": "+note)
	}
	if err := l.migrationStatements(ctx, r); err != nil {
		return nil, err
	}
	r.notes = append(r.notes, notes...)
	return r, nil
}

// migrationStatements notes how long the statements took that change the tables, in a run of their own.
func (l *lab) migrationStatements(ctx context.Context, r *report) (err error) {
	d, err := l.fresh(ctx, "contributions")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.settle(ctx); err != nil {
		return err
	}
	took, err := d.statementsOf(ctx, `UPDATE "public"\."(issues|notes|timelogs|award_emoji)"`, func() error {
		run, err := readyMigration(ctx, d)
		if err == nil {
			err = run(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	l.statementTarget(r, took)
	if err := d.far(ctx); err != nil {
		return err
	}
	trip, err := d.roundTrip(ctx)
	r.note("A round trip to the database that is far takes %s.", milliseconds(trip))
	return errors.Join(err, migrated(ctx, d))
}

// statementTarget notes how long the statements of a run took.
func (l *lab) statementTarget(r *report, took []time.Duration) {
	p99 := percentile(took, 99)
	l.target(r, "p99 of caretaker's statements", "at most 250 ms", milliseconds(p99), p99 <= 250*time.Millisecond)
	r.note("%s statements by the server's log, p50 %s, the longest %s.", grouped(int64(len(took))), milliseconds(percentile(took, 50)), milliseconds(slices.Max(took)))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The people of (g): the user to be deleted, the ghost, and a user whose rows lie between.
const (
	ghostID = 1
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
			SELECT i, i || '@example.com', 'user_' || i, 0, CASE i WHEN %d THEN 5 ELSE 0 END, 'active', 1 FROM generate_series(1, 20) i`, ghostID),
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

// migrated makes sure that the user has nothing left and the ghost has all of it.
func migrated(ctx context.Context, d *database) error {
	for _, c := range contributions() {
		var left, got, others int
		sql := fmt.Sprintf(`SELECT count(*) FILTER (WHERE %[2]s = %[3]d), count(*) FILTER (WHERE %[2]s = %[4]d), count(*) FILTER (WHERE %[2]s = %[5]d) FROM %[1]s`,
			c.table, c.column, leaving, ghostID, staying)
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
	err := l.statementTarget(r, func() ([]time.Duration, error) { return l.migrationStatements(ctx) })
	r.notes = append(r.notes, notes...)
	return r, err
}

// migrationStatements are how long the statements took that change the tables, in a run of their own.
func (l *lab) migrationStatements(ctx context.Context) (took []time.Duration, err error) {
	d, err := l.fresh(ctx, "contributions")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	took, err = d.statementsOf(ctx, `UPDATE "public"\."(issues|notes|timelogs|award_emoji)"`, func() error {
		run, err := readyMigration(ctx, d)
		if err == nil {
			err = run(ctx)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := d.far(ctx); err != nil {
		return nil, err
	}
	trip, err := d.roundTrip(ctx)
	l.say("  a round trip to the database that is far takes %s", milliseconds(trip))
	return took, errors.Join(err, migrated(ctx, d))
}

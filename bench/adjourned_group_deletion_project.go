package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/job"
)

// doomedProject is a project with many issues, every tenth with a note and an assignee, in a due
// group.
func doomedProject(issues int) []string {
	return append(groundwork(),
		fmt.Sprintf(`INSERT INTO issues (author_id, title, project_id, namespace_id, iid, created_at, updated_at)
			SELECT %d, 'issue ' || i, 1, 2, i, now(), now() FROM generate_series(1, %d) i`, staying, issues),
		fmt.Sprintf(`INSERT INTO notes (author_id, note, noteable_type, noteable_id, project_id, created_at, updated_at)
			SELECT %d, 'note', 'Issue', id, 1, now(), now() FROM issues WHERE id %% 10 = 0`, staying),
		fmt.Sprintf(`INSERT INTO issue_assignees (user_id, issue_id, namespace_id) SELECT %d, id, 2 FROM issues WHERE id %% 10 = 0`, staying),
		fmt.Sprintf(`INSERT INTO members (source_type, source_id, member_namespace_id, type, user_id, access_level)
			VALUES ('Namespace', 1, 1, 'GroupMember', %d, 50)`, leaving),
		fmt.Sprintf(`INSERT INTO group_deletion_schedules (group_id, user_id, marked_for_deletion_on) VALUES (1, %d, current_date - 40)`, leaving))
}

// readyRemoval is the job, attempt after attempt, without the waits between them.
func readyRemoval(ctx context.Context, d *database) (work, error) {
	s, err := openService(ctx, d, service.Config{})
	if err != nil {
		return nil, err
	}
	args, err := json.Marshal(jobqueue.DestroyGroup{GroupID: 1, UserID: new(int64(leaving))})
	if err != nil {
		return nil, err
	}
	request := job.Request{Kind: jobqueue.DestroyGroup{}.Kind(), Args: args, Attempt: 1, MaxAttempts: 25}
	// An attempt writes only while the queue reports that it has the job.
	err = d.conn.QueryRow(ctx, `INSERT INTO maintenance.river_job (kind, args, state, attempt, attempted_at, max_attempts)
		VALUES ($1, $2, 'running', $3, clock_timestamp(), $4) RETURNING id, attempted_at`,
		request.Kind, string(args), request.Attempt, request.MaxAttempts).Scan(&request.ID, &request.AttemptedAt)
	if err != nil {
		return nil, fmt.Errorf("insert the job: %w", err)
	}
	return func(ctx context.Context) error {
		for {
			result, err := s.WorkJob(ctx, request)
			switch {
			case err != nil:
				return err
			case result.Outcome == job.Succeeded:
				return nil
			case result.Snooze == 0:
				return fmt.Errorf("the job ended %s %s", result.Outcome, result.Reason)
			}
		}
	}, s.Healthy(ctx)
}

// readyCascade is PostgreSQL's own limit: one statement and the foreign keys.
func readyCascade(_ context.Context, d *database) (work, error) {
	return func(ctx context.Context) error { return d.exec(ctx, `DELETE FROM projects WHERE id = 1`) }, nil
}

// removed makes sure that nothing of the project is left.
func removed(ctx context.Context, d *database) error {
	for _, table := range []string{"projects", "issues", "notes", "issue_assignees"} {
		var left int
		if err := d.one(ctx, &left, `SELECT count(*) FROM `+table); err != nil {
			return err
		}
		if left > 0 {
			return fmt.Errorf("%d rows of %s are left", left, table)
		}
	}
	return nil
}

// compareRemovals is (j).
func compareRemovals(ctx context.Context, l *lab) (*report, error) {
	if err := l.buildMain(ctx, "doomed_project", doomedProject(l.issues)...); err != nil {
		return nil, err
	}
	ways := []way{{"caretaker, destroy_group", readyRemoval}, {"one DELETE that cascades", readyCascade}}
	measured, note, err := l.race(ctx, "doomed_project", 1, removed, ways...)
	if err != nil {
		return nil, err
	}
	r := &report{header: standingsHeader("issues")}
	r.standings(l.issues, measured, ways...)
	err = l.statementTarget(r, func() ([]time.Duration, error) { return l.removalStatements(ctx) })
	if err != nil {
		return nil, err
	}
	r.note("The cascade is one transaction: its rows are locked from the beginning to the end, %s.", seconds(measured[0][1].time))
	r.note("%s", note)
	return r, nil
}

// removalStatements are how long the statements took that name what is removed, in a run of their own.
func (l *lab) removalStatements(ctx context.Context) (took []time.Duration, err error) {
	d, err := l.fresh(ctx, "doomed_project")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.drop(ctx)) }()
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	took, err = d.statementsOf(ctx, `"public"\."(issues|notes|issue_assignees|projects)"`, func() error {
		run, err := readyRemoval(ctx, d)
		if err == nil {
			err = run(ctx)
		}
		return err
	})
	return took, errors.Join(err, removed(ctx, d))
}

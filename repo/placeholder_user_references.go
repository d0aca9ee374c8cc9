package repo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Reference is a column of a table that refers to users.
type Reference struct{ Table, Column string }

// placeholderReferences are what keeps a placeholder user from being deleted, in the order in which they are looked at,
// by the database that they belong to (placeholder_user_cleanup.md section 5). Not here, because they do not block:
// notes.updated_by_id and resolved_by_id, merge_requests.last_edited_by_id and assignee_id, epics.updated_by_id,
// vulnerabilities.dismissed_by_id and confirmed_by_id, and all of events, p_ci_builds and p_ci_pipelines.
func placeholderReferences() map[string][]Reference {
	return map[string][]Reference{
		"main": referencesOf(
			"notes", "author_id",
			"issues", "author_id updated_by_id closed_by_id last_edited_by_id",
			"merge_requests", "author_id updated_by_id merge_user_id",
			"merge_request_metrics", "merged_by_id latest_closed_by_id",
			"issue_assignees", "user_id",
			"merge_request_assignees", "user_id",
			"merge_request_reviewers", "user_id",
			"approvals", "user_id",
			"award_emoji", "user_id",
			"timelogs", "user_id",
			"lists", "user_id",
			"resource_label_events", "user_id",
			"resource_milestone_events", "user_id",
			"resource_state_events", "user_id",
			"snippets", "author_id",
			"releases", "author_id",
			"design_management_versions", "author_id",
			"protected_tag_create_access_levels", "user_id",
			"protected_branch_merge_access_levels", "user_id",
			"protected_branch_push_access_levels", "user_id",
			"epics", "author_id assignee_id last_edited_by_id closed_by_id",
		),
		"ci":  referencesOf("ci_pipeline_schedules", "owner_id"),
		"sec": referencesOf("vulnerabilities", "author_id resolved_by_id"),
	}
}

// referencesOf takes pairs of a table and its columns.
func referencesOf(pairs ...string) (references []Reference) {
	for i := 0; i < len(pairs); i += 2 {
		for column := range strings.FieldsSeq(pairs[i+1]) {
			references = append(references, Reference{pairs[i], column})
		}
	}
	return references
}

// PlaceholderVerdict is what became of the deletion of a placeholder user.
type PlaceholderVerdict struct {
	// Gone: there is no such user. NotPlaceholder: it is another type of user.
	Gone, NotPlaceholder bool
	// Reference keeps the user; nil: the job delete_user is queued, or waits already.
	Reference *Reference
}

const lockPlaceholderSQL = `SELECT user_type FROM users WHERE id = $1 FOR UPDATE`

// placeholderType is users.user_type of a placeholder (schema.md section 6).
const placeholderType = 15

// PlaceholderDeletionReason is the reason of the job that it queues.
const PlaceholderDeletionReason = "Placeholder user is no longer referenced"

// DeletePlaceholder queues the deletion of a placeholder user that nothing refers to any more, and completes the job
// jobID, in one transaction on main (placeholder_user_cleanup.md section 5). The user's row is locked to its end, so
// that no reference with a foreign key can slip in. Others are the databases ci and sec as far as configured; a table of
// theirs is looked for in main where they are not.
func (d *Database) DeletePlaceholder(ctx context.Context, userID, jobID int64, others []*Database, queue JobQueue, origin Job, l Limits) (v PlaceholderVerdict, err error) {
	err = d.limitedTx(ctx, "delete the placeholder user", l, jobPatience, func(ctx context.Context, tx pgx.Tx) error {
		var userType *int16
		err := tx.QueryRow(ctx, lockPlaceholderSQL, userID).Scan(&userType)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			v.Gone = true
			return nil
		case err != nil:
			return err
		case userType == nil || *userType != placeholderType:
			v.NotPlaceholder = true
			return nil
		}
		v.Reference, err = d.placeholderReference(ctx, tx, userID, others, l)
		if err != nil || v.Reference != nil {
			return err
		}
		job := origin
		job.Args = DeleteUser{UserID: userID, DeletedByID: &userID, SkipAuthorization: true, Reason: PlaceholderDeletionReason}
		if _, err := queue.InsertJobs(ctx, tx, []Job{job}); err != nil {
			return err
		}
		return queue.CompleteJob(ctx, tx, jobID)
	})
	return v, err
}

// placeholderReference is the first reference to a user in the order of the list, nil if there is none.
func (d *Database) placeholderReference(ctx context.Context, tx pgx.Tx, userID int64, others []*Database, l Limits) (*Reference, error) {
	references := placeholderReferences()
	own := references["main"]
	foreign := map[*Database][]Reference{}
	for _, name := range []string{"ci", "sec"} {
		if i := slices.IndexFunc(others, func(o *Database) bool { return o.Name == name }); i >= 0 {
			foreign[others[i]] = references[name]
		} else {
			own = append(own, references[name]...)
		}
	}
	present, err := d.present(ctx, own)
	if err != nil {
		return nil, err
	}
	found, err := firstReference(present, func(sql string, n *int) error { return tx.QueryRow(ctx, sql, userID).Scan(n) })
	for _, other := range others {
		if err != nil || found != nil {
			break
		}
		if present, err = other.present(ctx, foreign[other]); err == nil {
			found, err = firstReference(present, func(sql string, n *int) error {
				return other.bounded(ctx, "look for references", l, []any{n}, sql, userID)
			})
		}
	}
	return found, err
}

// firstReference asks for all columns in one statement that ends at the first hit.
func firstReference(references []Reference, query func(sql string, n *int) error) (*Reference, error) {
	if len(references) == 0 {
		return nil, nil
	}
	branches := make([]string, len(references))
	for i, r := range references {
		branches[i] = fmt.Sprintf("SELECT %d AS n WHERE EXISTS (SELECT FROM %s WHERE %s = $1)", i+1, quote(r.Table), quote(r.Column))
	}
	var n int
	err := query("SELECT coalesce((SELECT n FROM ("+strings.Join(branches, " UNION ALL ")+") hits LIMIT 1), 0)", &n)
	if err != nil || n == 0 {
		return nil, err
	}
	return &references[n-1], nil
}

package gitlab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/internal/pg"
	"github.com/caretaker-go/caretaker/repo/internal/stmt"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
)

// placeholderReferences are the references that prevent the deletion of a placeholder user, by
// their database and in the order of the checks. The references without effect are not listed:
// updated_by_id and resolved_by_id of notes, last_edited_by_id and assignee_id of merge_requests,
// updated_by_id of epics. Nor are dismissed_by_id and confirmed_by_id of vulnerabilities, and all
// of events, p_ci_builds and p_ci_pipelines.
func placeholderReferences() []databaseReferences {
	return []databaseReferences{
		{"main", catalog.ReferencesOf(
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
		)},
		{"ci", catalog.ReferencesOf("ci_pipeline_schedules", "owner_id")},
		{"sec", catalog.ReferencesOf("vulnerabilities", "author_id resolved_by_id")},
	}
}

// databaseReferences are columns of tables that belong to a database.
type databaseReferences struct {
	// database is the name in the configuration: main, ci or sec.
	database string
	columns  []catalog.Reference
}

// PlaceholderVerdict is the result of deleting a placeholder user.
type PlaceholderVerdict struct {
	// Missing is the missing table or column that prevents a verdict, empty if none is missing.
	Missing string
	// NotFound: the user does not exist. NotPlaceholder: it is another type of user.
	NotFound, NotPlaceholder bool
	// Protection keeps the user. nil means none.
	Protection *pg.Protection
	// Reference keeps the user. nil: the job delete_user is queued, or already waits.
	Reference *catalog.Reference
}

const (
	// findPlaceholderSQL returns no row if the user does not exist.
	findPlaceholderSQL = `SELECT user_type FROM users WHERE id = $1::bigint`
	// lockPlaceholderSQL also makes inserts of new references wait, if they have a foreign key.
	lockPlaceholderSQL = findPlaceholderSQL + ` FOR UPDATE`
)

// placeholderType is users.user_type of a placeholder.
const placeholderType = 15

// PlaceholderAttempt is an attempt of the job delete_placeholder_user.
type PlaceholderAttempt struct {
	// JobID is the job of this attempt, UserID the user to delete.
	JobID, UserID int64
	// Others are the databases ci and sec if configured. A missing table of theirs is read in main.
	Others []*pg.Database
	// Queue inserts the job that deletes the user, which is Origin with arguments, and completes
	// this one.
	Queue  jobqueue.Queue
	Origin jobqueue.Job
}

// DeletePlaceholder queues the deletion of a placeholder user without references, and completes the
// attempt's job, in one transaction on main. The user's row is locked to its end, so that no
// reference with a foreign key is inserted meanwhile.
func (d Placeholders) DeletePlaceholder(
	ctx context.Context, p fencing.Permit, a PlaceholderAttempt,
) (v PlaceholderVerdict, err error) {
	main, err := placeholderCatalog(ctx, d.db, &v)
	if err != nil || v.Missing != "" {
		return v, err
	}
	err = pg.Transaction(ctx, d.db, "delete the placeholder user", p, func(ctx context.Context, tx *pg.Changing) error {
		search := placeholderSearch{tx, a.UserID, p.Limits}
		// Judge and queue in one transaction, so that the verdict holds until the commit.
		err := search.judge(ctx, lockPlaceholderSQL, &v, main, a.Others)
		if err != nil || v.NotFound || v.NotPlaceholder || v.Protection != nil || v.Reference != nil {
			return err
		}
		job := a.Origin
		job.Args = jobqueue.DeleteUser{
			UserID: a.UserID, DeletedByID: &a.UserID, SkipAuthorization: true,
			Reason: jobqueue.PlaceholderDeletionReason,
		}
		if _, err := a.Queue.InsertJobs(ctx, tx, []jobqueue.Job{job}); err != nil {
			return err
		}
		return a.Queue.CompleteJob(ctx, tx, a.JobID)
	})
	return v, err
}

// placeholderCatalog returns the existing tables of main. It sets v.Missing if they do not suffice.
// Only the columns of users must exist. A missing reference is skipped.
func placeholderCatalog(ctx context.Context, d *pg.Database, v *PlaceholderVerdict) (*catalog.Catalog, error) {
	wanted := catalog.ReferencesOf("users", "id user_type")
	for _, r := range placeholderReferences() {
		wanted = append(wanted, r.columns...)
	}
	main, err := catalog.Present(ctx, d, wanted)
	if err == nil {
		v.Missing = main.Missing(ctx, wanted[:2]...)
	}
	return main.Catalog, err
}

// JudgePlaceholder returns what [Placeholders.DeletePlaceholder] would decide now. It locks and
// writes nothing.
func (d Placeholders) JudgePlaceholder(
	ctx context.Context, user int64, others []*pg.Database, l fencing.Limits,
) (v PlaceholderVerdict, err error) {
	main, err := placeholderCatalog(ctx, d.db, &v)
	if err != nil || v.Missing != "" {
		return v, err
	}
	l.ReadOnly = true
	judge := func(ctx context.Context, tx *pg.Changing) error {
		v = PlaceholderVerdict{}
		return placeholderSearch{tx, user, l}.judge(ctx, findPlaceholderSQL, &v, main, others)
	}
	err = pg.Transaction(ctx, d.db, "check the deletion of a placeholder user", fencing.Permit{Limits: l}, judge)
	return v, err
}

// judge finds the user, and the reason to keep it. find is the statement that reads the user, with
// or without a lock. Reasons are checked in the order of the fields of v, and the first one ends
// the search.
func (p placeholderSearch) judge(
	ctx context.Context, find string, v *PlaceholderVerdict, main *catalog.Catalog, others []*pg.Database,
) error {
	var userType *int16
	err := p.tx.QueryRow(ctx, find, p.userID).Scan(&userType)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		v.NotFound = true
		return nil
	case err != nil:
		return err
	case userType == nil || *userType != placeholderType:
		v.NotPlaceholder = true
		return nil
	}
	// After the lock on the user's row, so that a protection committed before is seen.
	v.Protection, err = protection.Protecting(ctx, p.tx, control.KindUser, p.userID)
	if err != nil || v.Protection != nil {
		return err
	}
	v.Reference, err = p.first(ctx, main, others)
	return err
}

// placeholderSearch searches references to a user: in main in a transaction, elsewhere under
// limits.
type placeholderSearch struct {
	tx     *pg.Changing
	userID int64
	limits fencing.Limits
}

// first returns the first reference in the order of the list, nil if none exists. It sends at most
// one statement for each list and catalogue.
func (p placeholderSearch) first(
	ctx context.Context, main *catalog.Catalog, others []*pg.Database,
) (*catalog.Reference, error) {
	catalogs := []*catalog.Catalog{main}
	for _, list := range placeholderReferences() {
		if i := slices.IndexFunc(others, func(d *pg.Database) bool { return d.Name == list.database }); i >= 0 {
			c, err := catalog.NewSchema(others[i]).Tables(ctx, catalog.TablesOf(list.columns))
			if err != nil {
				return nil, err
			}
			catalogs = append(catalogs, c)
		}
		for _, c := range catalogs {
			here := slices.DeleteFunc(slices.Clone(list.columns), func(r catalog.Reference) bool {
				return catalog.Containing(catalogs, list.database, r.Table) != c || !c.Table(r.Table).Has(r.Column)
			})
			found, err := firstReference(here, func(sql string, n *int) error {
				if c == main {
					return p.tx.QueryRow(ctx, sql, p.userID).Scan(n)
				}
				return pg.ReadRow(ctx, c.Database, p.limits, pg.NewQuery("find references", sql, p.userID), n)
			})
			if err != nil || found != nil {
				return found, err
			}
		}
	}
	return nil, nil
}

// firstReference queries all columns in one statement that ends at the first hit. query runs the
// statement with the user's id, and scans the position of the hit, 0 for none.
func firstReference(
	references []catalog.Reference, query func(sql string, n *int) error,
) (*catalog.Reference, error) {
	if len(references) == 0 {
		return nil, nil
	}
	branches := make([]string, len(references))
	for i, r := range references {
		branches[i] = fmt.Sprintf("SELECT %d AS n WHERE EXISTS (SELECT FROM %s WHERE %s = $1::bigint)",
			i+1, stmt.Quote(r.Table), stmt.Quote(r.Column))
	}
	var n int
	err := query("SELECT coalesce((SELECT n FROM ("+strings.Join(branches, " UNION ALL ")+") hits LIMIT 1), 0)", &n)
	if err != nil || n == 0 {
		return nil, err
	}
	return &references[n-1], nil
}

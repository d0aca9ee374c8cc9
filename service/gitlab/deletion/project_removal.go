package deletion

import (
	"context"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// Project removal, for destroy_group and for the personal projects of
// delete_user.

// projectRemoval is one project to be removed.
type projectRemoval struct {
	id int64
	// actor is the requesting user, the bots' deleted_by_id. nil means unknown.
	actor *int64
	// lock is the key of the advisory lock that every step takes for its transaction.
	lock int64
}

// Projects removes projects for jobs.
type Projects struct {
	run.Deps
	sizes *bulk.StatementSizes
}

// removeProject removes a project with all its rows in main, in bounded steps, each a transaction
// of its own. It returns [job.ErrSliceOver] at the end of the attempt's time: the next attempt
// continues. It returns [dberr.ErrBusy] if another attempt holds the same lock.
func (s *Projects) removeProject(ctx context.Context, j *job.Attempt, p projectRemoval) error {
	r, err := s.NewRemover(ctx, j, p.actor, p.lock)
	if err == nil {
		err = r.RemoveProject(ctx, p.id)
	}
	return err
}

// Remover removes projects and groups in one attempt of a job.
type Remover struct {
	*bulk.Sweeper
	main    *repo.Database
	queue   jobqueue.Queue
	attempt *job.Attempt
	// Guard is the guard of every transaction.
	Guard fencing.Guard
	// bot returns the job that deletes a bot user, with the origin of the attempt.
	bot func(id int64) jobqueue.Job
	// Removed since the last save, at savedAt.
	Removed gitlab.Removed
	savedAt time.Time
	// project in removal. 0 means none.
	project int64
	// Plan is the plan to count for. nil means rows are removed.
	Plan *plan.Plan
}

// removedColumns are the columns that a catalogue must read.
func removedColumns() map[string][]string {
	wanted := bulk.ForRemoval(map[string][]string{
		"projects": {"id"}, "namespaces": {"id"}, ImportDetails: {"namespace_id"},
		"members": {"id", "user_id", "member_namespace_id"},
	})
	for table, columns := range gitlab.ProjectTables() {
		wanted[table] = append(wanted[table], columns...)
	}
	return wanted
}

// RemovalUses returns what a [Remover] does with projects and groups.
func RemovalUses() []catalog.Use {
	return []catalog.Use{
		{Table: "projects", Rights: catalog.ToRemove, Removes: true},
		{Table: "namespaces", Rights: catalog.ToRemove, Removes: true},
		{Table: "routes", Rights: catalog.ToRead},
		{Table: "members", Rights: catalog.ToRead},
		{Table: ImportDetails, Rights: catalog.ToChange},
	}
}

// NewRemover reads the catalogue, for one attempt of a job.
func (s *Projects) NewRemover(
	ctx context.Context, j *job.Attempt, actor *int64, lock int64,
) (*Remover, error) {
	catalog, err := s.Main.Schema.Catalog(ctx, removedColumns())
	if err != nil {
		return nil, err
	}
	origin := j.Origin(ctx)
	r := &Remover{
		main: s.Main, queue: s.Queue, attempt: j, savedAt: time.Now(), Guard: j.Guard().WithLock(lock),
		bot: func(id int64) jobqueue.Job {
			record := origin
			record.Args = jobqueue.DeleteUser{
				UserID: id, DeletedByID: actor, SkipAuthorization: true, Reason: GroupDeletedReason,
			}
			return record
		},
	}
	r.Sweeper = &bulk.Sweeper{
		Catalog: catalog, Sizes: s.sizes, Writer: r,
		CheckStop: func() error {
			if j.Left() <= 0 {
				return job.ErrSliceOver
			}
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return r.save(ctx)
		},
		Count: func(_ context.Context, _ string, c rowset.Change, rows int64) {
			if c.Delete {
				r.Removed.Rows += rows
			}
		},
		// A path is only logged, with the project that it belonged to.
		Outside: func(ctx context.Context, paths []string) {
			j.Log.InfoContext(ctx, "repository path not deleted",
				"project_id", r.project, "left_outside", paths)
		},
	}
	return r, nil
}

// Permit implements [run.Writer] for the removal's own statements.
func (r *Remover) Permit(
	ctx context.Context, d *repo.Database, t catalog.Table, l fencing.Limits,
) (run.Permit, error) {
	return r.attempt.Permit(ctx, d, t, r.By(l))
}

// By returns the permit of a transaction with these limits, under any load.
func (r *Remover) By(l fencing.Limits) fencing.Permit {
	return fencing.Permit{Guard: r.Guard, Limits: l, Source: r.attempt.Source()}
}

// RowLimits bound a transaction for a single row whose dependants are already deleted.
func RowLimits() fencing.Limits {
	return fencing.Limits{
		Statement: bulk.SingleRowTime, Lock: bulk.LongLockTime, Transaction: 15 * time.Second,
	}
}

// RemoveProject removes the references to a project and to its namespace, its members, then the
// rows themselves, at once.
func (r *Remover) RemoveProject(ctx context.Context, id int64) error {
	r.project = id
	p, err := repo.Of(r.Catalog.Database).Groups.FindProject(ctx, r.Catalog, id, bulk.ProbeLimits())
	if errors.Is(err, dberr.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	// 1. Members, whose removal can queue the deletion of bots.
	if err := r.Members(ctx, gitlab.Memberships{SourceType: "Project", SourceID: id}); err != nil {
		return err
	}
	// 2. References to the project.
	if err := r.ClearRow(ctx, "projects", id, "members", "routes"); err != nil {
		return err
	}
	// 3. Members of its namespace, and references to that.
	if p.NamespaceID != 0 {
		if err := r.Members(ctx, gitlab.Memberships{SourceID: p.NamespaceID}); err != nil {
			return err
		}
		if err := r.ClearRow(ctx, "namespaces", p.NamespaceID, "members", "projects"); err != nil {
			return err
		}
	}
	if err := r.CheckStop(); err != nil {
		return err
	}
	if r.Plan != nil {
		return r.planProjectRows(ctx, p)
	}
	// 4. The rows themselves, with the progress, in one transaction.
	removed := r.Removed
	removed.Projects++
	if err := r.main.Groups.RemoveProject(ctx, r.By(RowLimits()), p, removed); err != nil {
		return bulk.Deleted(r.Catalog, err)
	}
	r.Saved()
	return nil
}

// saveEvery is how often the progress of a group's removal is recorded during the removal of the
// group or of one of its projects. A killed process loses the counts of this interval.
const saveEvery = 2 * time.Second

// save records the counts of a group's removal, at most once per saveEvery.
func (r *Remover) save(ctx context.Context) error {
	if r.Removed.GroupID == 0 || time.Since(r.savedAt) < saveEvery {
		return nil
	}
	if _, err := r.main.Groups.SaveRemoved(ctx, r.By(GroupLimits()), r.Removed); err != nil {
		return err
	}
	r.Saved()
	return nil
}

// Saved resets the counts that are now recorded.
func (r *Remover) Saved() {
	r.Removed, r.savedAt = gitlab.Removed{GroupID: r.Removed.GroupID}, time.Now()
}

// ClearRow removes or nullifies the dependants of a row, except in some tables.
func (r *Remover) ClearRow(ctx context.Context, table string, id int64, except ...string) error {
	rows, ok := rowset.RowsOf(r.Catalog, table, "id", rowset.IDs(id)...)
	columns := bulk.KeyColumns(r.Catalog, rows.Table)
	if !ok || len(columns) == 0 {
		return nil
	}
	values, err := r.NextKeys(ctx, rows, columns, &bulk.Cursor{Skipped: make([][]string, len(columns))})
	if err != nil || len(values[0]) == 0 {
		return err
	}
	return r.Clear(ctx, rows.Table, columns, values, except...)
}

// Members removes memberships, page by page.
func (r *Remover) Members(ctx context.Context, which gitlab.Memberships) error {
	columns := []string{"id", "user_id", "source_type", "source_id"}
	if which.SourceType == "" {
		columns = []string{"id", "user_id", "member_namespace_id"}
	}
	if !r.Catalog.Table("members").Has(columns...) {
		return nil
	}
	if r.Plan != nil {
		return r.planMembers(ctx, which)
	}
	for {
		if err := r.CheckStop(); err != nil {
			return err
		}
		page, err := r.main.Groups.RemoveMembers(ctx, r.By(GroupLimits()), which, r.queue, r.bot)
		if err != nil {
			return bulk.Deleted(r.Catalog, err)
		}
		r.Removed.Rows += page.Rows
		r.Removed.Bots += page.Bots
		if !page.More {
			return nil
		}
	}
}

// GroupLimits bound the statements of a group's transaction.
func GroupLimits() fencing.Limits {
	return fencing.Limits{Statement: 2 * time.Second, Lock: time.Second}
}

// ImportDetails has the placeholder users of imports.
const ImportDetails = "import_placeholder_user_details"

// NewProjectRemovals returns a Projects that has learned no sizes of statements yet.
func NewProjectRemovals(d run.Deps) *Projects {
	return &Projects{d, bulk.NewStatementSizes(0)}
}

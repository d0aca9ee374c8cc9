package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/gitlab/deletion"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// destroyGroup is the job destroy_group: it removes a group with all its rows in main. That cannot
// be undone.
//
// One attempt:
//
//  1. One transaction locks the row of the group and checks everything again. The group must exist
//     and be due, and its user must exist and be allowed to remove it. If not, the job ends without
//     a change, or the group is restored. Else it records the start of the removal. From then on
//     the only check is whether the group exists: half of it may already be deleted.
//  2. The groups of the tree are removed, deepest first. The job removes the projects of each, its
//     members and the references to it. The row with marks, details and route is last. Bots among
//     the members get a job delete_user in the transaction that deletes their membership.
//  3. After 45 seconds the attempt snoozes, which uses no retry. Deleted rows are the progress.
//
// Each step is a transaction of its own. It holds the row of its attempt, so that an attempt that
// was taken for dead writes nothing more. It also holds advisory locks on the group of the job and
// on the group of the tree. So two attempts, or the jobs of a group and of one below it, never work
// on the same group at once.
//
// An error leaves the remaining rows for the next attempt, with state deletion_scheduled and the
// reason in deletion_error. After the last attempt the next run of the worker queues the job again.
func (k *worker) destroyGroup(ctx context.Context, j *job.Attempt) (job.Result, error) {
	args, err := job.Decode[jobqueue.DestroyGroup](j)
	if err != nil {
		return job.Result{}, err
	}
	stores, err := k.stores(ctx)
	if err == nil && stores.Missing != "" {
		err = &fault.FailedError{Text: stores.Missing}
	}
	if err != nil {
		return job.Result{}, err
	}
	d := &groupRemoval{worker: k, j: j, args: args, stores: stores}
	result, err := d.attempt(ctx)
	who := []any{"group_id", args.GroupID, "user_id", userValue(args.UserID)}
	result.Attributes = append(who, result.Attributes...)
	switch result, err = j.Postpone(result, err); {
	case err == nil:
		return result, nil
	case errors.Is(err, dberr.ErrJobCancelled):
		// Deleted rows stay deleted. RetryJob continues.
		return result, err
	case errors.Is(err, dberr.ErrJobLost):
		// Another attempt has the job now, and decides about the group.
		return result, err
	case errors.Is(ctx.Err(), context.Canceled):
		// The process ends, which is no failure of the group.
		return result, err
	}
	return result, errors.Join(err, d.fail(ctx, err))
}

const (
	// beginTimeout is the time limit of the first transaction, which may be a restore. It is less
	// than that of an attempt.
	beginTimeout = 40 * time.Second
	// failTimeout is the time limit for recording a failure. With the remaining end of an attempt
	// it is less than the time after which the attempt is taken for dead.
	failTimeout = 5 * time.Second
)

// groupRemoval is one attempt.
type groupRemoval struct {
	*worker
	j      *job.Attempt
	args   jobqueue.DestroyGroup
	stores gitlab.GroupStores
}

// guard returns the guard of every transaction: no other attempt is working on the group, and this
// one has its job.
func (d *groupRemoval) guard() fencing.Guard { return d.j.Guard().WithLock(d.args.GroupID) }

// permit returns a permit for a transaction. timeout is its timeout.
func (d *groupRemoval) permit(timeout time.Duration) fencing.Permit {
	p := fencing.Permit{Guard: d.guard(), Limits: deletion.GroupLimits(), Source: d.j.Source()}
	p.Transaction = timeout
	return p
}

// attempt starts or continues the removal of a group. A protected group is refused. An invalid
// setting fails the job only if the removal of the group has not started.
func (d *groupRemoval) attempt(ctx context.Context) (job.Result, error) {
	// 1. Read main's time and the retention period.
	now, err := d.Main.Now(ctx)
	if err != nil {
		return job.Result{}, err
	}
	days, settingErr := d.period(ctx, d.stores)
	if _, invalid := errors.AsType[*fault.FailedError](settingErr); settingErr != nil && !invalid {
		return job.Result{}, settingErr
	} else if invalid {
		// No group is due then, but started removals continue.
		days = math.MaxInt32
	}
	// 2. Repeat all checks under the lock of the group's row. Start the removal or restore the
	// group.
	started, err := d.Main.Groups.BeginGroupRemoval(ctx, d.permit(beginTimeout), d.stores,
		gitlab.Adjournment{At: now, Days: days}, d.args)
	// 3. Remove the group, or report why not.
	switch protected, ok := errors.AsType[*repo.ProtectedError](err); {
	case ok:
		// It would have been restored. Nothing has changed.
		return job.Result{
			Outcome: job.Refused, Reason: reasons.Protected, Message: protected.String(),
		}, nil
	case err != nil:
		return job.Result{}, err
	case started.Verdict == gitlab.GroupRemovalStarted:
		return d.remove(ctx)
	case started.Verdict == gitlab.GroupNotDue && settingErr != nil:
		return job.Result{}, settingErr
	}
	return d.refusal(started), nil
}

// refusal returns the end of a job that removes nothing.
func (d *groupRemoval) refusal(b gitlab.GroupBeginning) job.Result {
	switch b.Verdict {
	case gitlab.GroupNotFound:
		return job.Result{Outcome: job.Skipped, Reason: reasons.TargetGone, LogAtDebug: true}
	case gitlab.GroupUserMissing:
		return job.Result{Outcome: job.Refused, Reason: reasons.DeletingUserMissing}
	case gitlab.GroupInProgress:
		return job.Result{Outcome: job.Refused, Reason: reasonDeletionInProgress}
	case gitlab.GroupRestored:
		return job.Result{
			Outcome: job.Restored, Reason: reasonRightsMissing,
			Attributes: []any{"old_path", b.Restoration.OldPath, "new_path", b.Restoration.NewPath},
		}
	case gitlab.GroupProtected:
		return job.Result{
			Outcome: job.Refused, Reason: reasons.Protected, Message: b.Protection.String(),
		}
	case gitlab.GroupNotDue, gitlab.GroupRemovalStarted:
	}
	return job.Result{Outcome: job.Skipped, Reason: reasonNoLongerMarked}
}

// remove removes the tree, as far as the time of the attempt allows.
func (d *groupRemoval) remove(ctx context.Context) (job.Result, error) {
	r, err := d.removal.NewRemover(ctx, d.j, d.args.UserID, d.args.GroupID)
	if err != nil {
		return job.Result{}, err
	}
	r.Removed.GroupID = d.args.GroupID
	total, err := d.removeTree(ctx, r)
	if err != nil {
		soFar, saveErr := d.saveRemoved(ctx, r.Removed)
		return job.Result{Attributes: removedAttributes(soFar)}, errors.Join(err, saveErr)
	}
	return job.Result{Outcome: job.Succeeded, Attributes: removedAttributes(total)}, nil
}

// removedAttributes returns the counts of all attempts so far, or none if unknown.
func removedAttributes(r gitlab.Removed) []any {
	if r == (gitlab.Removed{}) {
		return nil
	}
	return []any{"groups", r.Groups, "projects", r.Projects, "rows", r.Rows, "bots", r.Bots}
}

// saveRemoved saves the counts of an attempt that ends before its group, and returns those of all.
func (d *groupRemoval) saveRemoved(
	ctx context.Context, removed gitlab.Removed,
) (total gitlab.Removed, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), run.LeaseMargin)
	defer cancel()
	permit := fencing.Permit{Guard: d.j.Guard(), Limits: deletion.GroupLimits()}
	return d.Main.Groups.SaveRemoved(ctx, permit, removed)
}

// removeTree reads the tree again if something prevents the removal of one of its groups: a group
// may have been created below it since.
func (d *groupRemoval) removeTree(
	ctx context.Context, r *deletion.Remover,
) (total gitlab.Removed, err error) {
	for seen := map[int64]bool{}; ; {
		tree, treeErr := d.Main.Groups.GroupTree(ctx, d.args.GroupID, run.ReadLimits(), r.CheckStop)
		if treeErr != nil {
			return total, treeErr
		}
		// A protection from before the start prevents it. A group may have been moved or protected
		// since. A plan reports this, and counts the effects without the protection.
		if r.Plan == nil {
			kept, err := d.Main.Protections.Protecting(ctx, control.KindGroup, d.args.GroupID, true, run.ReadLimits())
			if err == nil && kept != nil {
				err = &repo.ProtectedError{Protection: *kept}
			}
			if err != nil {
				return total, err
			}
		}
		before := len(seen)
		for _, id := range tree {
			seen[id] = true
		}
		if len(seen) == before {
			return total, err
		}
		if total, err = d.removeGroups(ctx, r, tree); !bulk.IsStillReferenced(err) {
			return total, err
		}
	}
}

// removeGroups removes the groups of a tree in the order given. It ends with the first error.
func (d *groupRemoval) removeGroups(
	ctx context.Context, r *deletion.Remover, tree []int64,
) (total gitlab.Removed, err error) {
	for _, id := range tree {
		if total, err = d.removeGroup(ctx, r, id); err != nil {
			return total, err
		}
	}
	return total, nil
}

// removeGroup removes a group of the tree that has no groups below it any more.
func (d *groupRemoval) removeGroup(
	ctx context.Context, r *deletion.Remover, id int64,
) (total gitlab.Removed, err error) {
	// The group may have a job of its own, from before its parent was due or marked.
	if r.Plan == nil {
		r.Guard = d.guard().WithPart(id)
	}
	if err := d.removeProjects(ctx, r, id); err != nil {
		return total, err
	}
	for _, which := range []gitlab.Memberships{{SourceType: "Namespace", SourceID: id}, {SourceID: id}} {
		if err := r.Members(ctx, which); err != nil {
			return total, err
		}
	}
	err = r.ClearRow(ctx, "namespaces", id, "members", "routes",
		"group_deletion_schedules", "namespace_details", deletion.ImportDetails)
	if err != nil {
		return total, err
	}
	// Last, because it releases the placeholder users: no row of the group may need them any more.
	if rows, ok := rowset.RowsOf(r.Catalog, deletion.ImportDetails, "namespace_id", rowset.IDs(id)...); ok {
		if err := r.Sweep(ctx, rows, rowset.Change{Set: []string{"namespace_id"}}); err != nil {
			return total, err
		}
	}
	if err := r.CheckStop(); err != nil {
		return total, err
	}
	if r.Plan != nil {
		return total, planGroupRows(ctx, r, id)
	}
	removed := r.Removed
	removed.Groups++
	total, err = d.Main.Groups.RemoveGroup(ctx, r.By(deletion.RowLimits()), d.stores, id, removed)
	switch {
	case errors.Is(err, gitlab.ErrNamespaceBelow):
		return total, &bulk.StillReferencedError{Table: "namespaces", Column: "parent_id"}
	case err != nil:
		return total, bulk.Deleted(r.Catalog, err)
	}
	r.Saved()
	return total, nil
}

// removeProjects removes the projects of one group, a page at a time in the order of ids. An error
// names the project. A stop request ends it between pages.
func (d *groupRemoval) removeProjects(ctx context.Context, r *deletion.Remover, group int64) error {
	for after := int64(0); ; {
		if err := r.CheckStop(); err != nil {
			return err
		}
		projects, err := d.Main.Groups.GroupProjects(ctx, group, after, run.ReadLimits())
		if err != nil || len(projects) == 0 {
			return err
		}
		for _, id := range projects {
			if err := r.RemoveProject(ctx, id); err != nil {
				return fmt.Errorf("project %d: %w", id, err)
			}
			after = id
		}
	}
}

// fail records in the group why the attempt ended, also at its time limit. If that fails, the job's
// error includes it.
func (d *groupRemoval) fail(ctx context.Context, why error) error {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), failTimeout)
	defer cancel()
	for {
		err := d.Main.Groups.FailGroupRemoval(clean, d.permit(failTimeout), d.stores, d.args.GroupID,
			fault.PublicText(why))
		switch {
		case !errors.Is(err, dberr.ErrBusy):
			return err
		case ctx.Err() == nil:
			// Another attempt is running: the error of this one does not matter to it.
			return nil
		}
		// The statement that was cut off may still be running.
		select {
		case <-clean.Done():
			return nil
		case <-time.After(failTimeout / 20):
		}
	}
}

// userValue returns a user id for logs.
func userValue(id *int64) any {
	if id == nil {
		return nil
	}
	return *id
}

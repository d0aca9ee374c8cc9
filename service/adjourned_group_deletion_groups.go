package service

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// act does what was decided: first with the groups that others may go with, then with the others in order of their ids.
func (r *groupRun) act(ctx context.Context) error {
	covering := r.covering()
	r.expect(covering)
	if r.x.DryRun {
		return r.preview(ctx)
	}
	for _, g := range covering {
		if !r.skipped(g) {
			queued, err := r.actOn(ctx, g)
			if err != nil {
				return err
			}
			g.queued = queued
		}
		if g.tried = true; !g.queued {
			r.expect(covering)
		}
	}
	for i := range r.groups {
		g := &r.groups[i]
		if g.tried || r.skipped(g) {
			continue
		}
		if _, err := r.actOn(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// actOn gives a group its outcome. An error of the group's own is its outcome; one that is returned ends the run.
func (r *groupRun) actOn(ctx context.Context, g *adjournedGroup) (queued bool, err error) {
	if err := r.x.Stopped(); err != nil {
		return false, err
	}
	switch g.outcome {
	case groupDestruction:
		queued, err = r.destroy(ctx, g)
	case groupRestored:
		err = r.restore(ctx, g)
	default:
		r.hold(ctx, g)
	}
	if err == nil || endsRun(ctx, err) {
		return queued, err
	}
	r.x.Count(ctx, "failed_groups", 1)
	r.log(ctx, slog.LevelError, "group failed, the next run looks at it again", g, groupFailed, "error", err)
	return false, nil
}

// endsRun says whether an error is none of a single group's.
func endsRun(ctx context.Context, err error) bool {
	var stopped stopError
	return ctx.Err() != nil || errors.Is(err, repo.ErrLeaseLost) || errors.Is(err, repo.ErrUnreachable) || errors.As(err, &stopped)
}

// groupLimits bound the statements of a group's transaction.
func groupLimits() repo.Limits { return repo.Limits{Statement: 2 * time.Second, Lock: time.Second} }

// destroy queues the group's removal. It is queued also if a job for it waits or runs already.
func (r *groupRun) destroy(ctx context.Context, g *adjournedGroup) (queued bool, err error) {
	job := r.x.origin(ctx)
	job.Args = repo.DestroyGroup{GroupID: g.ID, UserID: g.UserID}
	job.ScheduledAt = r.due.At.Add(time.Duration(g.position) * r.config.Interval)
	var inserted bool
	err = r.x.Write(ctx, r.x.Database, groupLimits(), func(f repo.Fence, l repo.Limits) (err error) {
		inserted, err = r.x.Database.QueueGroupRemoval(ctx, f, r.service.queue, job, l)
		return err
	})
	if err != nil {
		return false, err
	}
	if inserted {
		r.x.Count(ctx, "scheduled_jobs", 1)
	}
	r.log(ctx, slog.LevelInfo, "group goes", g, groupDestruction, "new_job", inserted, "starts_at", job.ScheduledAt)
	return true, nil
}

// restore undoes the mark, in one transaction that must end before the lease does.
func (r *groupRun) restore(ctx context.Context, g *adjournedGroup) error {
	var done repo.Restoration
	limits := repo.Limits{Statement: untimedRun, Lock: groupLimits().Lock}
	err := r.x.Write(ctx, r.x.Database, limits, func(f repo.Fence, l repo.Limits) (err error) {
		patience := l.Statement
		l.Statement = min(patience, groupLimits().Statement)
		done, err = r.x.Database.RestoreGroup(ctx, f, r.stores, r.due, g.ID, l, patience)
		return err
	})
	switch {
	case err != nil:
		return err
	case done.Held:
		g.outcome, g.reason = groupHeld, reasonDeletionInProgress
		r.hold(ctx, g)
	case done.Restored:
		r.x.Count(ctx, "restored_groups", 1)
		for _, t := range done.Tables {
			r.x.Changed(t.Table, t.Deleted, t.Updated)
		}
		r.log(ctx, slog.LevelInfo, "group restored", g, groupRestored, "old_path", done.OldPath, "new_path", done.NewPath)
	}
	return nil
}

func (r *groupRun) hold(ctx context.Context, g *adjournedGroup) {
	r.x.Count(ctx, "held_groups", 1)
	r.log(ctx, slog.LevelWarn, "Group held, somebody has to look at it", g, groupHeld)
}

// log is the one line of a group. The specification calls the group namespace_id where it lists the lines, and group_id
// where it lists the keys.
func (r *groupRun) log(ctx context.Context, level slog.Level, message string, g *adjournedGroup, outcome groupOutcome, more ...any) {
	r.x.Log.Log(ctx, level, message, append([]any{
		"namespace_id", g.ID, "group_id", g.ID, "user_id", userValue(g.UserID),
		"outcome", string(outcome), "reason", g.reason,
	}, more...)...)
}

// preview counts what act would do: of the removals those that do not wait already.
func (r *groupRun) preview(ctx context.Context) error {
	var removals []int64
	for i := range r.groups {
		g := &r.groups[i]
		if r.skipped(g) {
			continue
		}
		switch g.outcome {
		case groupDestruction:
			removals = append(removals, g.ID)
		case groupRestored:
			r.x.Count(ctx, "restored_groups", 1)
		default:
			r.hold(ctx, g)
		}
	}
	for i := 0; i < len(removals); i += groupCandidates {
		ids := removals[i:min(i+groupCandidates, len(removals))]
		waiting, err := r.x.Database.WaitingGroupRemovals(ctx, ids, readLimits())
		if err != nil {
			return err
		}
		r.x.Count(ctx, "scheduled_jobs", int64(len(ids)-len(waiting)))
	}
	return nil
}

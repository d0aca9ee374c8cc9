package group

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/internal/format"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/gitlab/deletion"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// act does step 5 of the package comment. It starts with the groups that others may be removed
// with, and continues with the others in order of their ids. A dry run does the same, and rolls it
// back group by group: only that shows what would fail.
func (r *workerRun) act(ctx context.Context) error {
	covering := r.covering()
	r.expect(covering)
	for _, g := range covering {
		if !r.skipped(g) {
			queued, err := r.apply(ctx, g)
			if err != nil {
				return err
			}
			g.queued = queued
		} else {
			r.coveredByParent(g)
		}
		if g.tried = true; !g.queued {
			r.expect(covering)
		}
	}
	for i := range r.groups {
		g := &r.groups[i]
		switch {
		case g.tried:
			continue
		case r.skipped(g):
			r.coveredByParent(g)
			continue
		}
		if _, err := r.apply(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// apply gives a group its outcome. An error of the group's own becomes its outcome. A returned
// error ends the run.
func (r *workerRun) apply(ctx context.Context, g *group) (queued bool, err error) {
	if over, err := r.over(); over || err != nil {
		return false, err
	}
	if !r.expected(g) {
		return false, nil
	}
	err = r.x.Batch(ctx, func(ctx context.Context) (err error) {
		switch g.outcome {
		case destruction:
			queued, err = r.destroy(ctx, g)
		case restored:
			err = r.restore(ctx, g)
		default:
			r.hold(ctx, g)
		}
		if err == nil {
			spans.RecordOutcome(ctx, string(g.outcome), g.reason)
		}
		return err
	}, attribute.String("maintenance.phase", "act"), attribute.Int64("maintenance.group_id", g.ID))
	if err == nil || endsRun(ctx, err) {
		return queued, err
	}
	r.x.Count(ctx, "failed_groups", 1)
	r.candidate(g.ID, run.ActionPostpone, fault.PublicText(err))
	r.x.Log.ErrorContext(ctx, "group failed, retrying next run",
		r.about(g, failed, "error", err)...)
	return false, nil
}

// expected reports whether a run with an expected digest may apply its decision to the group. A
// group expected to be removed with one above it may be removed alone. Holding a group is always
// expected.
func (r *workerRun) expected(g *group) bool {
	switch g.outcome {
	case destruction:
		return r.x.MayTouch(control.KindGroup, g.ID, run.ActionQueue, run.ActionDelete)
	case restored:
		return r.x.MayTouch(control.KindGroup, g.ID, run.ActionRestore)
	default:
		return true
	}
}

// over reports whether the run must stop here: with an error, or as a dry run at its time limit.
func (r *workerRun) over() (bool, error) {
	if err := r.x.Stopped(); err != nil {
		return true, err
	}
	if r.x.DryRun && r.x.Left() <= 0 {
		r.x.Limit(run.DryRunOver, run.DryRunOver)
		return true, nil
	}
	return false, nil
}

// endsRun reports whether an error is about more than a single group.
func endsRun(ctx context.Context, err error) bool {
	_, stopped := errors.AsType[fault.StopError](err)
	return stopped || ctx.Err() != nil ||
		errors.Is(err, dberr.ErrLeaseLost) || errors.Is(err, dberr.ErrUnreachable)
}

// queueTimeout is the time limit of the transaction that queues a group.
const queueTimeout = 5 * time.Second

// permit lets a transaction change a group. timeout is its timeout. A dry run rolls it back.
func (r *workerRun) permit(ctx context.Context, timeout time.Duration) (run.Permit, error) {
	limits := deletion.GroupLimits()
	limits.Transaction = timeout
	if r.x.DryRun {
		limits.Transaction = min(timeout, r.x.Left()+time.Second)
		return run.Permit{Permit: fencing.Permit{Limits: limits, DryRun: true}}, nil
	}
	return r.x.Permit(ctx, r.x.Database, catalog.Table{Name: "namespaces"}, limits)
}

// queueRemoval queues the job that removes a group, within queueTimeout. It reports false if such
// a job is already waiting or running.
func (r *workerRun) queueRemoval(ctx context.Context, job jobqueue.Job) (inserted bool, err error) {
	permit, err := r.permit(ctx, queueTimeout)
	if err != nil {
		return false, err
	}
	defer permit.End(&err)
	return r.x.Database.Groups.QueueGroupRemoval(ctx, permit.Permit, r.Queue, job)
}

// restoreGroup restores a due group in one transaction, or changes nothing. Its time is limited to
// run.DefaultRunTime.
func (r *workerRun) restoreGroup(ctx context.Context, id int64) (done gitlab.Restoration, err error) {
	permit, err := r.permit(ctx, run.DefaultRunTime)
	if err != nil {
		return done, err
	}
	defer permit.End(&err)
	return r.x.Database.Groups.RestoreGroup(ctx, permit.Permit, r.stores, r.due, id)
}

// destroy queues the group's removal. queued is also true if a job already waits or runs.
func (r *workerRun) destroy(ctx context.Context, g *group) (queued bool, err error) {
	job := r.x.Origin(ctx)
	job.Args = jobqueue.DestroyGroup{GroupID: g.ID, UserID: g.UserID}
	job.ScheduledAt = r.due.At.Add(time.Duration(g.position) * r.config.Interval)
	inserted, err := r.queueRemoval(ctx, job)
	if err != nil {
		return false, err
	}
	waits := fault.JobWaits
	if inserted {
		r.x.Count(ctx, "scheduled_jobs", 1)
		waits = ""
	}
	r.candidate(g.ID, run.ActionQueue, waits)
	r.x.LogDone(ctx, "group removal queued", "group removal would be queued",
		r.about(g, destruction, "new_job", inserted, "starts_at", job.ScheduledAt)...)
	return true, nil
}

// restore restores the group, in one transaction. Meanwhile it may have lost its mark, which is no
// outcome. It is held if its removal has started, or if a restore would delete a protected row.
func (r *workerRun) restore(ctx context.Context, g *group) error {
	done, err := r.restoreGroup(ctx, g.ID)
	switch protected, ok := errors.AsType[*repo.ProtectedError](err); {
	case ok:
		g.outcome, g.reason = held, reasons.Protected
		g.Veto = &gitlab.Veto{Target: g.ID, Reason: reasons.Protected, Detail: protected.String()}
		r.hold(ctx, g)
	case err != nil:
		return err
	case done.Held:
		g.outcome, g.reason = held, reasonDeletionInProgress
		r.hold(ctx, g)
	case done.Restored:
		r.x.Count(ctx, "restored_groups", 1)
		r.candidate(g.ID, run.ActionRestore, g.reason)
		for _, t := range done.Tables {
			r.x.Changed(t.Table, t.Deleted, t.Updated)
		}
		r.x.LogDone(ctx, "group restored", "group would be restored",
			r.about(g, restored, "old_path", done.OldPath, "new_path", done.NewPath)...)
	}
	return nil
}

// hold records a group that needs the operator: as a candidate, in the counts and as a warning.
// Nothing in the database changes.
func (r *workerRun) hold(ctx context.Context, g *group) {
	r.countHeld(ctx, g.reason)
	reason := reasons.Reason{Code: g.reason}
	var why []any
	if g.Veto != nil && g.Veto.Reason == g.reason {
		reason.Detail, why = g.Veto.Detail, []any{"why", g.Veto.Detail}
	}
	r.candidate(g.ID, run.ActionHold, reason.String())
	r.x.Log.WarnContext(ctx, "group needs attention", r.about(g, held, why...)...)
}

// coveredByParent records a group that is removed with one above it.
func (r *workerRun) coveredByParent(g *group) {
	r.candidate(g.ID, run.ActionDelete, "together with an ancestor group")
}

// candidate records what a run would do with a group.
func (r *workerRun) candidate(id int64, action, reason string) {
	r.x.Candidate(control.Candidate{Kind: control.KindGroup, ID: id, Action: action, Reason: reason})
}

// countHeld counts a held group, also by its reason.
func (r *workerRun) countHeld(ctx context.Context, reason string) {
	r.x.Count(ctx, "held_groups", 1)
	r.held[reason]++
}

// reportHeld sets the numbers of held groups on the run's span, by reason. The spans of single
// groups do not show them: the trace has only some of many groups.
func (r *workerRun) reportHeld() {
	if held := r.heldByReason(); len(held) > 0 {
		r.x.Span.SetAttributes(attribute.StringSlice("maintenance.held", held))
	}
}

// heldByReason returns the number of held groups as "n REASON", in the order of reasons.
func (r *workerRun) heldByReason() (held []string) {
	for _, reason := range slices.Sorted(maps.Keys(r.held)) {
		held = append(held, fmt.Sprintf("%d %s", r.held[reason], reason))
	}
	return held
}

// notDone returns how many groups failed or are held, for the run's reason, or "".
func (r *workerRun) notDone(failed int64) string {
	var texts []string
	if failed > 0 {
		texts = append(texts, format.Pluralize(failed, "group")+" failed")
	}
	if held := r.heldByReason(); len(held) > 0 {
		total := 0
		for _, n := range r.held {
			total += n
		}
		texts = append(texts, format.Pluralize(total, "group")+" held: "+strings.Join(held, ", "))
	}
	if len(texts) == 0 {
		return ""
	}
	return strings.Join(texts, ", ") + " (see the warnings in the log)"
}

// about returns the keys of the one log line of a group. It has the id twice: as group_id, the key
// in all logs, and as namespace_id, for searches by the column.
func (r *workerRun) about(g *group, outcome outcome, more ...any) []any {
	return append([]any{
		"namespace_id", g.ID, "group_id", g.ID, "user_id", userValue(g.UserID),
		"outcome", string(outcome), "reason", g.reason,
	}, more...)
}

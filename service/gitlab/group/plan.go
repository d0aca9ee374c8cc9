package group

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/gitlab/deletion"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// planGroup adds the effects of the job destroy_group on a group. It takes the decision of the
// worker and removes the tree, as a dry run.
func (k *worker) planGroup(ctx context.Context, _ *run.Execution, p *plan.Plan) error {
	main := &worker{Deps: k.Deps, config: k.config, removal: k.removal}
	main.Main = p.Main()
	stores, err := p.Main().Groups.GroupStores(ctx)
	if err != nil {
		return err
	}
	if stores.Missing != "" {
		return &fault.NotConfiguredError{Worker: Name, Missing: stores.Missing}
	}
	is, err := p.Main().Groups.IsGroup(ctx, p.ID, run.ReadLimits())
	switch {
	case err != nil:
		return err
	case !is:
		return plan.ErrUnknownTarget
	}
	if err := main.judge(ctx, stores, p); err != nil {
		return err
	}
	r, err := deletion.PlanRemover(ctx, p)
	if err != nil {
		return err
	}
	d := &groupRemoval{worker: main, args: jobqueue.DestroyGroup{GroupID: p.ID}, stores: stores}
	_, err = d.removeTree(ctx, r)
	return err
}

// judge decides like the worker and the job.
func (k *worker) judge(ctx context.Context, stores gitlab.GroupStores, p *plan.Plan) error {
	if err := deletion.PlanProtection(ctx, p); err != nil {
		return err
	}
	// 1. Read the time and the retention period.
	now, err := k.Main.Now(ctx)
	if err != nil {
		return err
	}
	days, err := k.period(ctx, stores)
	if invalid, ok := errors.AsType[*fault.FailedError](err); ok {
		p.Refuse(cmp.Or(invalid.Reason, fault.ReasonSettingInvalid), invalid.Text)
		days, err = math.MaxInt32, nil
	}
	if err != nil {
		return err
	}
	// 2. Check whether the group is due.
	due, err := k.Main.Groups.DueGroups(ctx, stores, gitlab.Adjournment{At: now, Days: days},
		[]int64{p.ID}, run.ReadLimits())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(due, func(g gitlab.DueGroup) bool { return g.ID == p.ID }) {
		lost, _, err := k.Main.Groups.LostMarks(ctx, stores, p.ID-1, run.ReadLimits())
		if err != nil {
			return err
		}
		if slices.Contains(lost, p.ID) {
			p.Refuse(reasons.ScheduleLost, lostMark+": in the application, restore the group, or mark it for "+
				"deletion again")
		}
		p.Refuse(reasonNoLongerMarked, "the group is not marked for deletion, or its deletion is not due yet")
		return nil
	}
	// 3. Decide, with a text for the reader.
	texts := map[string]string{
		reasons.DeletingUserMissing: "the user who marked the group no longer exists, so the group is held for " +
			"a decision",
		reasonDeletionInProgress: "the application is deleting the group on behalf of a user without permission",
		reasonRightsMissing: "the user who marked the group is no longer allowed to delete it, so the " +
			"group would be restored",
	}
	if outcome, reason := decideGroup(due[0]); outcome != destruction {
		detail := texts[reason]
		if veto := due[0].Veto; veto != nil && veto.Reason == reason {
			detail = veto.Detail
		}
		p.Refuse(reason, detail)
	}
	return nil
}

// planGroupRows counts the rows deleted with a group's row.
func planGroupRows(ctx context.Context, r *deletion.Remover, id int64) error {
	for _, rows := range []struct{ table, column, more string }{
		{"group_deletion_schedules", "group_id", ""},
		{"namespace_details", "namespace_id", ""},
		{"routes", "source_id", "t.source_type = 'Namespace'"},
		{"namespaces", "id", "t.type = 'Group'"},
	} {
		if err := r.PlanRows(ctx, rows.table, rows.column, id, rows.more); err != nil {
			return err
		}
	}
	return nil
}

package adjournedgroup

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/deletion"
	"github.com/caretaker-go/caretaker/service/run"
)

// What is wrong with the marks themselves.

// lookForLostMarks holds the groups that look marked but are in no store.
func (r *groupRun) lookForLostMarks(ctx context.Context) error {
	return r.pages(func(after int64) (int64, error) {
		lost, next, err := r.x.Database.LostMarks(ctx, r.stores, after, run.ReadLimits())
		for _, id := range lost {
			if _, due := r.place[id]; due {
				// It has had its outcome: it was restored, and its own name looks like a mark.
				continue
			}
			if err := r.holdLost(ctx, id); err != nil {
				return next, err
			}
		}
		return next, err
	})
}

// holdLost says of one of them that it is held, in the log and in the trace.
func (r *groupRun) holdLost(ctx context.Context, id int64) error {
	return r.x.Batch(ctx, func(ctx context.Context) error {
		r.countHeld(ctx, run.ReasonScheduleLost)
		r.x.Log.WarnContext(ctx, "Deletion schedule lost", "namespace_id", id, "group_id", id,
			"outcome", string(groupHeld), "reason", run.ReasonScheduleLost)
		run.TellOutcome(ctx, string(groupHeld), run.ReasonScheduleLost)
		return nil
	}, attribute.String("maintenance.phase", "act"), attribute.Int64("maintenance.group_id", id))
}

// forgetGone lets no removal be shown as begun for ever.
func (r *groupRun) forgetGone(ctx context.Context) (err error) {
	if r.x.DryRun {
		return nil
	}
	permit, err := r.x.Permit(ctx, r.x.Database, repo.Table{}, deletion.GroupLimits())
	if err != nil {
		return err
	}
	defer permit.End(&err)
	return r.x.Database.ForgetGoneRemovals(ctx, permit.Permit)
}

// compareStores names the marks that the two stores disagree about, due or not, and those of
// namespaces that are no groups.
func (r *groupRun) compareStores(ctx context.Context) error {
	return r.pages(func(after int64) (int64, error) {
		odd, next, err := r.x.Database.OddSchedules(ctx, r.stores, after, run.ReadLimits())
		for _, o := range odd {
			if o.NoGroup {
				r.x.Log.WarnContext(ctx, "Deletion schedule of a namespace that is no group, ignored", "group_id", o.GroupID)
				continue
			}
			r.x.Log.WarnContext(ctx, "Deletion stores disagree", "group_id", o.GroupID,
				"schedule_date", o.LegacyDate, "schedule_user_id", o.LegacyUser,
				"details_date", o.DetailsDate, "details_user_id", o.DetailsUser)
		}
		return next, err
	})
}

// pages calls look with 0 and then with what it returned, until that is 0 or the run has to stop.
func (r *groupRun) pages(look func(after int64) (next int64, err error)) error {
	for after := int64(0); ; {
		if over, err := r.over(); over || err != nil {
			return err
		}
		next, err := look(after)
		if err != nil || next == 0 {
			return err
		}
		after = next
	}
}

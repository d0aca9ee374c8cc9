package group

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/gitlab/deletion"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// Faulty marks: lost, for no group, or different in the two stores.

// holdLostMarks holds the groups that look marked but are in no store. A mark is lost, for example,
// when the user who made it is deleted and a foreign key deletes the row of the schedule.
func (r *workerRun) holdLostMarks(ctx context.Context) error {
	return r.pages(func(after int64) (int64, error) {
		lost, next, err := r.x.Database.Groups.LostMarks(ctx, r.stores, after, run.ReadLimits())
		for _, id := range lost {
			if _, due := r.place[id]; due {
				// It has its outcome: it was restored, and its own name looks like a mark.
				continue
			}
			if err := r.holdLost(ctx, id); err != nil {
				return next, err
			}
		}
		return next, err
	})
}

// holdLost counts and logs one of them.
func (r *workerRun) holdLost(ctx context.Context, id int64) error {
	return r.x.Batch(ctx, func(ctx context.Context) error {
		r.countHeld(ctx, reasons.ScheduleLost)
		r.candidate(id, run.ActionHold, reasons.ScheduleLost)
		r.x.Log.WarnContext(ctx, "Deletion schedule lost", "namespace_id", id, "group_id", id,
			"outcome", string(held), "reason", reasons.ScheduleLost)
		spans.RecordOutcome(ctx, string(held), reasons.ScheduleLost)
		return nil
	}, attribute.String("maintenance.phase", "act"), attribute.Int64("maintenance.group_id", id))
}

// forgetGone deletes the records of removals whose group no longer exists: else the status would
// show them as started forever.
func (r *workerRun) forgetGone(ctx context.Context) (err error) {
	if r.x.DryRun {
		return nil
	}
	permit, err := r.x.Permit(ctx, r.x.Database, catalog.Table{}, deletion.GroupLimits())
	if err != nil {
		return err
	}
	defer permit.End(&err)
	return r.x.Database.Groups.DeleteStaleRemovals(ctx, permit.Permit)
}

// compareStores logs the marks that differ between the two stores, due or not, and those of
// namespaces that are no groups.
func (r *workerRun) compareStores(ctx context.Context) error {
	return r.pages(func(after int64) (int64, error) {
		odd, next, err := r.x.Database.Groups.OddSchedules(ctx, r.stores, after, run.ReadLimits())
		for _, o := range odd {
			if o.NoGroup {
				r.x.Log.WarnContext(ctx, "namespace is not a group, deletion schedule ignored",
					"group_id", o.GroupID)
				continue
			}
			r.x.Log.WarnContext(ctx, "group has two different deletion schedules", "group_id", o.GroupID,
				"schedule_date", o.LegacyDate, "schedule_user_id", o.LegacyUser,
				"details_date", o.DetailsDate, "details_user_id", o.DetailsUser)
		}
		return next, err
	})
}

// pages calls read with 0 and then with its result, until that is 0 or the run must stop.
func (r *workerRun) pages(read func(after int64) (next int64, err error)) error {
	for after := int64(0); ; {
		if over, err := r.over(); over || err != nil {
			return err
		}
		next, err := read(after)
		if err != nil || next == 0 {
			return err
		}
		after = next
	}
}

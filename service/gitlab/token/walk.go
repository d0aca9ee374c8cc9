package token

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/protection"
	"github.com/caretaker-go/caretaker/service/run"
)

// tokenWalk is one run's part of a pass.
type tokenWalk struct {
	*inactiveTokens
	x        *run.Execution
	features gitlab.UserFeatures
	pass     gitlab.TokenPass
	// limit is the size of the next range: batch_size, or less after a range that took too long.
	limit int
	// failures counts the consecutive failed ranges.
	failures int
	// room is the last known room before the ghost migration.
	room room
	// scheduled counts the deletions that this run has scheduled.
	scheduled int
	// admins are the known admin bots by organization. nil means the organization has none.
	admins map[int64]*int64
	// kept are the protected users, protected the inactive bots among them in the range.
	kept      protection.Keeping
	protected []gitlab.Veto
}

// tokenLimits bound each statement of a range.
func tokenLimits() fencing.Limits {
	return fencing.Limits{Statement: 5 * time.Second, Lock: time.Second}
}

// run works range after range until the pass or the run ends.
func (w *tokenWalk) run(ctx context.Context) error {
	for {
		if err := w.x.Stopped(); err != nil {
			return err
		}
		var done bool
		err := w.x.Batch(ctx, func(ctx context.Context) (err error) {
			done, err = w.step(ctx)
			return err
		}, attribute.Int64("maintenance.cursor", w.pass.Cursor))
		if err = w.shrinkOnTimeout(ctx, err); err != nil || done {
			return err
		}
	}
}

// maxRangeFailures is the maximum number of consecutive retries of a range.
const maxRangeFailures = 10

// shrinkOnTimeout makes a range that took too long, or met a lock, run again at half its size. It
// returns other errors.
func (w *tokenWalk) shrinkOnTimeout(ctx context.Context, err error) error {
	if err == nil {
		w.failures, w.limit = 0, min(2*w.limit, w.config.BatchSize)
		return nil
	}
	refused, ok := errors.AsType[*dberr.Error](err)
	slow := ok && (refused.Class() == dberr.ClassTimeout || refused.Class() == dberr.ClassLock)
	if !slow || w.failures == maxRangeFailures {
		return err
	}
	w.failures, w.limit = w.failures+1, max(w.limit/2, 1)
	w.x.Log.WarnContext(ctx, "check of bots failed, retrying smaller range",
		"cursor", w.pass.Cursor, "size", w.limit, "error", err)
	return nil
}

// step works one range, steps 3 to 5 of the design, and reports whether it was the run's last.
func (w *tokenWalk) step(ctx context.Context) (done bool, err error) {
	r, full, err := w.next(ctx)
	if err != nil {
		return false, err
	}
	if full {
		return true, w.stop(ctx)
	}
	if err := w.reportVetoed(ctx, r); err != nil {
		return false, err
	}
	over := w.x.Left() <= 0
	scheduled, err := w.save(ctx, r, over && r.More)
	if err != nil {
		return false, err
	}
	w.pass.Cursor = r.Last
	w.room.left, w.scheduled = w.room.left-scheduled, w.scheduled+scheduled
	w.x.Count(ctx, "examined_users", int64(r.Examined))
	w.x.Count(ctx, "scheduled_jobs", int64(scheduled))
	w.x.Log.InfoContext(ctx, "range of bots checked",
		"cursor", r.Last, "examined", r.Examined, "scheduled", scheduled)
	if over && r.More {
		const limit = "limit reached: max_runtime"
		w.x.CandidatesPartial()
		w.x.Limit(limit, cmp.Or(w.x.Snapshot().Reason, limit))
	}
	return over || !r.More, nil
}

// reportVetoed reports which inactive bots of the range are skipped.
func (w *tokenWalk) reportVetoed(ctx context.Context, r gitlab.BotRange) error {
	if r.Examined == 0 {
		return nil
	}
	cancelled, err := w.x.Database.Users.CancelledBots(
		ctx, w.features, w.pass.TokenRules, w.pass.Cursor, r.Last)
	for _, v := range append(w.protected, cancelled...) {
		w.x.Candidate(control.Candidate{
			Kind: control.KindUser, ID: v.Target, Action: run.ActionHold, Reason: v.Reason + ": " + v.Detail,
		})
		w.x.Log.InfoContext(ctx, "user skipped",
			"user_id", v.Target, "reason", v.Reason, "why", v.Detail)
	}
	return err
}

// save stores a range with its jobs and, if it is the run's last but not the pass's, the
// continuation. It returns the number of jobs actually inserted. A dry run only counts them.
func (w *tokenWalk) save(
	ctx context.Context, r gitlab.BotRange, last bool,
) (scheduled int, err error) {
	if w.x.DryRun {
		return w.preview(ctx, r)
	}
	r = w.planned(r)
	step := gitlab.TokenStep{BotRange: r, ContinueAfter: w.config.ContinueAfter}
	origin := w.x.Origin(ctx)
	if step.Jobs, err = w.deletions(ctx, r, origin); err != nil {
		return 0, err
	}
	if last {
		step.Continue = &origin
	}
	permit, err := w.x.Permit(ctx, w.x.Database, catalog.Table{}, tokenLimits())
	if err != nil {
		return 0, err
	}
	defer permit.End(&err)
	return w.x.Database.Tokens.AdvanceTokenPass(ctx, permit.Permit, w.pass.ID, step, w.Queue)
}

// planned returns a range with only those inactive bots that the run may queue.
func (w *tokenWalk) planned(r gitlab.BotRange) gitlab.BotRange {
	if !w.x.HasAllowed() {
		return r
	}
	kept := r
	kept.Inactive, kept.Organizations = nil, nil
	for i, bot := range r.Inactive {
		if w.x.MayTouch(control.KindUser, bot, run.ActionQueue) {
			kept.Inactive = append(kept.Inactive, bot)
			kept.Organizations = append(kept.Organizations, r.Organizations[i])
		}
	}
	return kept
}

// preview records the bots of a range that a run would queue, and returns their number.
func (w *tokenWalk) preview(ctx context.Context, r gitlab.BotRange) (int, error) {
	if len(r.Inactive) == 0 {
		return 0, nil
	}
	bots, err := w.x.Database.Tokens.NewDeletions(
		ctx, r.Inactive, jobqueue.TokenDeletionReason, tokenLimits())
	for _, bot := range bots {
		w.x.Candidate(control.Candidate{Kind: control.KindUser, ID: bot, Action: run.ActionQueue})
	}
	return len(bots), err
}

// deletions returns the jobs of a range's inactive bots.
func (w *tokenWalk) deletions(
	ctx context.Context, r gitlab.BotRange, origin jobqueue.Job,
) ([]jobqueue.Job, error) {
	if err := w.readAdmins(ctx, r.Organizations); err != nil {
		return nil, err
	}
	jobs := make([]jobqueue.Job, len(r.Inactive))
	for i, bot := range r.Inactive {
		jobs[i] = origin
		jobs[i].Args = jobqueue.DeleteUser{
			UserID: bot, DeletedByID: w.admins[r.Organizations[i]], SkipAuthorization: true,
			Reason: jobqueue.TokenDeletionReason,
		}
	}
	return jobs, nil
}

// readAdmins finds the admin bots of organizations that are new to the run.
func (w *tokenWalk) readAdmins(ctx context.Context, organizations []int64) error {
	var unknown []int64
	for _, o := range organizations {
		if _, ok := w.admins[o]; !ok && !slices.Contains(unknown, o) {
			unknown = append(unknown, o)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	found, err := w.x.Database.Tokens.AdminBots(ctx, w.features, unknown, tokenLimits())
	if err != nil {
		return err
	}
	for _, o := range unknown {
		w.admins[o] = nil
		if bot, ok := found[o]; ok {
			w.admins[o] = &bot
		}
	}
	return nil
}

package ghost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// The reasons besides locks for which a user is deferred.
var (
	errDeadline  = errors.New("the run reached its time limit")
	errSliceUsed = errors.New("the user reached its share of the run's time limit")
)

// minSlice is the minimum time for a user: else a run with a long queue would defer all of its
// users.
const minSlice = time.Second

// user is the user that the run works on.
type user struct {
	*workerRun
	gitlab.GhostMigration
	gitlab.GhostTarget
	log *slog.Logger
	// until is the end of the user's share of the time. Zero means the end of the run.
	until time.Time
	// tables counts the changed rows by table and action.
	tables map[string]map[string]int64
	// table and column are those of the current step, "" outside of the steps.
	table, column string
	// queuedBy is the span (W3C) of the job that queued the user. "" means unknown.
	queuedBy string
}

// migrate works a row of the queue, and records the outcome in the queue and in the counts. An
// error ends the run.
func (r *workerRun) migrate(ctx context.Context, m gitlab.GhostMigration, othersWait bool) error {
	u := &user{
		workerRun: r, GhostMigration: m, log: r.x.Log.With("user_id", m.UserID),
		tables: map[string]map[string]int64{},
	}
	if othersWait {
		u.until = time.Now().Add(max(r.x.Left()/2, minSlice))
	}
	return r.x.Batch(ctx, func(ctx context.Context) error {
		u.linkJob(ctx)
		return u.reschedule(ctx, u.work(ctx))
	}, attribute.Int64("maintenance.user_id", m.UserID))
}

// work does the steps of the package comment.
func (u *user) work(ctx context.Context) (err error) {
	d := u.x.Database
	u.GhostTarget, err = d.Ghosts.GhostTarget(ctx, u.references.queue, u.GhostMigration, run.ReadLimits())
	switch {
	case err != nil:
		return err
	case !u.Due:
		return nil
	case !u.Exists:
		u.candidate(run.ActionDelete, reasons.TargetGone+": only the queue row remains")
		return u.changeRow(ctx, d.Ghosts.RemoveOrphan)
	case !u.Migratable:
		text := fmt.Sprintf("users of type %d are not deleted", u.Type)
		return &fault.ReasonedError{Reason: reasons.InternalUser, Text: text}
	case u.Ghost == u.UserID:
		return &fault.ReasonedError{Reason: reasons.InternalUser, Text: "the user is the ghost user"}
	}
	if u.Protections {
		p, err := d.Protections.Protecting(ctx, control.KindUser, u.UserID, false, run.ReadLimits())
		if err = refuseProtected(p, err); err != nil {
			return err
		}
	}
	if u.Ghost == 0 {
		if err := u.createGhost(ctx); err != nil {
			return err
		}
	}
	if err := u.handOver(ctx); err != nil {
		return err
	}
	u.migrated++
	reason := ""
	if u.Active {
		reason = activeAgain
	}
	u.candidate(run.ActionDelete, reason)
	u.x.Count(ctx, "migrated_users", 1)
	u.recordDeletion(ctx)
	u.x.LogDone(ctx, "user migrated and deleted", "contributions would be moved and user deleted",
		"user_id", u.UserID, "tables", u.tables)
	return nil
}

// activeAgain is the message for a user who is no longer blocked.
const activeAgain = "the user is active again, but a queue row requests the deletion: delete the queue row to " +
	"keep the user"

// candidate records what a run would do with the user.
func (u *user) candidate(action, reason string) {
	u.x.Candidate(control.Candidate{
		Kind: control.KindUser, ID: u.UserID, Action: action, Reason: reason,
	})
}

// linkJob links the user's batch to the job that queued the user, while the queue has that job.
func (u *user) linkJob(ctx context.Context) {
	if !u.x.Span.IsRecording() {
		return
	}
	// A trace without the link is no reason to fail.
	jobs, _ := u.x.Database.Ghosts.DeletionTraces(ctx, u.UserID, run.ReadLimits())
	u.x.Link(ctx, "the job delete_user", jobs)
	if len(jobs) > 0 {
		u.queuedBy = jobs[0]
	}
}

// recordDeletion starts and ends a short span below the job that queued the user: the trace of that
// job shows the deletion.
func (u *user) recordDeletion(ctx context.Context) {
	job := spans.Of(ctx, u.queuedBy)
	if !job.IsValid() || u.x.DryRun {
		return
	}
	ctx = trace.ContextWithRemoteSpanContext(ctx, job)
	_, span := u.x.Tracer.Start(ctx, "maintenance.deleted",
		trace.WithLinks(trace.Link{SpanContext: u.x.Span.SpanContext()}),
		trace.WithAttributes(
			attribute.Int64("maintenance.user_id", u.UserID),
			attribute.String("maintenance.worker", u.x.Worker.Name),
			attribute.String("maintenance.run_id", u.x.Snapshot().ID)))
	span.End()
}

// createGhost creates a ghost. A dry run only checks whether that is possible.
func (u *user) createGhost(ctx context.Context) (err error) {
	if err := u.checkStop(); err != nil {
		return err
	}
	if u.x.DryRun {
		return u.x.Database.Ghosts.CheckGhost(ctx, rowLimits())
	}
	permit, err := u.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	u.Ghost, err = u.x.Database.Ghosts.CreateGhost(ctx, permit.Permit, u.references.queue, u.Organization)
	if err == nil {
		u.log.InfoContext(ctx, "ghost user created", "ghost_id", u.Ghost)
	}
	return err
}

// rowLimits bound the statements on a single row of the queue or of users.
func rowLimits() fencing.Limits {
	return fencing.Limits{Statement: 4 * time.Second, Lock: bulk.LongLockTime}
}

// permit returns a permit for statements on a single row of the queue or of users.
func (u *user) permit(ctx context.Context) (run.Permit, error) {
	return u.x.Permit(ctx, u.x.Database, catalog.Table{Name: "users"}, rowLimits())
}

// queueChange is a method of [gitlab.Ghosts] that changes a row of the queue.
type queueChange func(context.Context, fencing.Permit, gitlab.GhostQueue, gitlab.GhostMigration) error

// changeRow changes the user's row of the queue. A dry run does not.
func (u *user) changeRow(ctx context.Context, change queueChange) (err error) {
	if u.x.DryRun {
		return nil
	}
	permit, err := u.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	return change(ctx, permit.Permit, u.references.queue, u.GhostMigration)
}

// checkStop is called before every statement. Its error is why the work on the user must stop.
func (u *user) checkStop() error {
	if u.plan != nil {
		return u.plan.CheckStop()
	}
	switch stopped := u.x.Stopped(); {
	case stopped != nil:
		return stopped
	case u.x.Left() <= 0:
		return errDeadline
	case !u.until.IsZero() && !time.Now().Before(u.until):
		return errSliceUsed
	}
	return nil
}

// isLocked reports whether another session held a lock that a statement needed.
func isLocked(err error) bool {
	return bulk.IsLocked(err) || bulk.ClassOf(err, 0, fencing.Limits{}) == dberr.ClassLock
}

// reschedule defers or postpones the user after an error. It returns an error that ends the run,
// because it is not the user's own.
func (u *user) reschedule(ctx context.Context, cause error) error {
	if end := u.endsRun(ctx, cause); cause == nil || end != nil {
		return end
	}
	change, counted := u.x.Database.Ghosts.FailMigration, "deferred_users"
	kept, protected := errors.AsType[*repo.ProtectedError](cause)
	timeUp := errors.Is(cause, errDeadline) || errors.Is(cause, errSliceUsed)
	switch {
	case protected && !u.Exists:
		u.keepRow(kept)
		u.log.WarnContext(ctx, "queue row kept",
			"reason", reasons.Protected, "why", kept.String())
	case protected:
		u.candidate(run.ActionPostpone, kept.Error())
		u.reportProtected(ctx, kept)
	case timeUp || isLocked(cause):
		change = u.x.Database.Ghosts.DeferMigration
		u.reportDeferred(ctx, cause, timeUp)
	default:
		u.candidate(run.ActionPostpone, fault.PublicText(cause))
		counted = "failed_users"
		u.reportFailed(ctx, cause)
	}
	err := u.changeRow(ctx, func(ctx context.Context, p fencing.Permit, q gitlab.GhostQueue, m gitlab.GhostMigration) error {
		return change(ctx, p, q, m, counted)
	})
	end := u.endsRun(ctx, err)
	if end == nil {
		u.x.Count(ctx, counted, 1)
	}
	if err != nil && end == nil {
		// The row is locked, or its change would delete a protected row: it stays due.
		if kept, ok := errors.AsType[*repo.ProtectedError](err); ok && u.Exists {
			u.keepRow(kept)
		}
		u.log.ErrorContext(ctx, "user not rescheduled", "error", err)
	}
	return end
}

// keepRow records a row of the queue that stays, because a change would delete a protected row.
func (r *workerRun) keepRow(kept *repo.ProtectedError) {
	r.keptRows++
	r.keptBy = kept
}

// endsRun returns the error with which the run ends after err. nil means err is about the user
// alone. While the run is stopping, no error is the user's.
func (r *workerRun) endsRun(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, errors.Is(err, dberr.ErrLeaseLost), errors.Is(err, dberr.ErrUnreachable):
		return err
	}
	return r.x.Stopped()
}

// reportDeferred logs a user who is deferred. At the deadline the run takes no more
// rows.
func (u *user) reportDeferred(ctx context.Context, cause error, timeUp bool) {
	if errors.Is(cause, errDeadline) {
		u.stopped = "limit reached: max_runtime"
	}
	u.deferred++
	public := cause.Error()
	if !timeUp {
		public = fault.PublicText(cause)
	}
	u.candidate(run.ActionPostpone, public)
	u.x.CandidatesPartial()
	spans.RecordOutcome(ctx, spans.OutcomeDeferred, public)
	u.x.LogDone(ctx, "user deferred", "user would be deferred",
		"user_id", u.UserID, "why", cause.Error(), "tables", u.tables)
}

// Permit implements [run.Writer] for the statements of the hand-over: once the user is protected
// none of them changes anything, in any database.
func (u *user) Permit(
	ctx context.Context, d *repo.Database, t catalog.Table, l fencing.Limits,
) (run.Permit, error) {
	permit, err := u.x.Permit(ctx, d, t, l)
	if err != nil {
		return permit, err
	}
	p, err := u.x.Database.Protections.OwnProtection(ctx, control.KindUser, u.UserID, run.ReadLimits())
	if err = refuseProtected(p, err); err != nil {
		permit.End(&err)
	}
	return permit, err
}

// refuseProtected returns the error that keeps a protected user, or nil.
func refuseProtected(p *repo.Protection, err error) error {
	if err == nil && p != nil {
		err = &repo.ProtectedError{Protection: *p}
	}
	return err
}

// reportProtected logs a protected user, with any origin of the queue row. It is no failure: the
// row comes again in half an hour.
func (u *user) reportProtected(ctx context.Context, kept *repo.ProtectedError) {
	u.protected++
	spans.RecordOutcome(ctx, spans.OutcomeDeferred, reasons.Protected)
	u.log.WarnContext(ctx, "user kept",
		"reason", reasons.Protected, "why", kept.String(), "tables", u.tables)
}

// reportFailed logs a user who has failed. The error is logged nowhere else. An internal
// user is logged as a warning, without a stack.
func (u *user) reportFailed(ctx context.Context, cause error) {
	u.failed++
	spans.RecordFailure(ctx, cause)
	if referenced, ok := errors.AsType[*bulk.StillReferencedError](cause); ok {
		u.table, u.column = referenced.Table, referenced.Column
	}
	if unreadable, ok := errors.AsType[*bulk.UnreadableError](cause); ok {
		u.table, u.column = unreadable.Rows.Table.Name, unreadable.Column()
	}
	reason := fault.ReasonOf(cause)
	attrs := []any{"reason", reason, "error", cause}
	if u.table != "" {
		attrs = append(attrs, "table", u.table, "column", u.column)
	}
	if len(u.tables) > 0 {
		attrs = append(attrs, "tables", u.tables)
	}
	if reason == reasons.InternalUser {
		u.log.WarnContext(ctx, "user deletion refused", attrs...)
	} else {
		u.log.ErrorContext(ctx, "user deletion failed", attrs...)
	}
}

// count adds changed rows to the counts of the run and of the user.
func (u *user) count(ctx context.Context, table string, c rowset.Change, rows int64) {
	action := c.Action()
	key := map[string]string{
		"move": "moved_rows", "nullify": "nullified_rows", "delete": "deleted_rows",
	}[action]
	u.x.Count(ctx, key, rows)
	if c.Delete {
		u.x.Changed(table, rows, 0)
	} else {
		u.x.Changed(table, 0, rows)
	}
	if u.tables[table] == nil {
		u.tables[table] = map[string]int64{}
	}
	u.tables[table][action] += rows
}

// pathsALine is the maximum number of paths in a log line.
const pathsALine = 100

// logOutside logs the paths from removed rows, which caretaker cannot remove.
func (u *user) logOutside(ctx context.Context, paths []string) {
	for some := range slices.Chunk(paths, pathsALine) {
		u.log.InfoContext(ctx, "repository path not deleted", "left_outside", some)
	}
}

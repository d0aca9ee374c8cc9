package ghostuser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
)

// The reasons for which a user is put off in the middle.
var (
	errDeadline  = errors.New("the run's time is used up")
	errSliceUsed = errors.New("the user's share of the time is used up")
)

// minimalSlice is what a user gets at least, however little time is left.
const minimalSlice = time.Second

// ghostUser is a user at work.
type ghostUser struct {
	*ghostRun
	repo.GhostMigration
	repo.GhostTarget
	log *slog.Logger
	// until is when the user's share of the time ends; zero: with the run's.
	until time.Time
	// tables counts the rows changed by table and action.
	tables map[string]map[string]int64
	// table and column of the step at work, "" where it is none of the lists.
	table, column string
	// sentBy is the span (W3C) of the job that has queued the user, "" if that is not known.
	sentBy string
}

// one works a row of the queue, and says in the queue and the counts what became of it. Its error
// ends the run.
func (r *ghostRun) one(ctx context.Context, m repo.GhostMigration, othersWait bool) error {
	u := &ghostUser{ghostRun: r, GhostMigration: m, log: r.x.Log.With("user_id", m.UserID), tables: map[string]map[string]int64{}}
	if othersWait {
		u.until = time.Now().Add(max(r.x.Left()/2, minimalSlice))
	}
	return r.x.Batch(ctx, func(ctx context.Context) error {
		u.linkDeletion(ctx)
		return u.settle(ctx, u.work(ctx))
	}, attribute.Int64("maintenance.user_id", m.UserID))
}

// settle says what becomes of a user after an error of the user's own. Another one ends the run,
// and is returned.
func (u *ghostUser) settle(ctx context.Context, err error) error {
	switch end := u.ending(ctx, err); {
	case err == nil, end != nil:
		return end
	case errors.Is(err, errDeadline), errors.Is(err, errSliceUsed), bulk.IsLocked(err), isLock(err):
		return u.postpone(ctx, err)
	}
	return u.fail(ctx, err)
}

// linkDeletion leads from the user's batch to the job that has queued the user, as long as that is
// remembered.
func (u *ghostUser) linkDeletion(ctx context.Context) {
	if !u.x.Span.IsRecording() {
		return
	}
	if parents, err := u.x.Database.DeletionTraces(ctx, u.UserID, run.ReadLimits()); err == nil {
		u.x.Link(ctx, "the job delete_user", parents)
		if len(parents) > 0 {
			u.sentBy = parents[0]
		}
	}
}

// tellDeleted says below the job that has queued the user that the user is gone: from there nothing
// else leads on to here.
func (u *ghostUser) tellDeleted(ctx context.Context) {
	job := run.SpanOf(ctx, u.sentBy)
	if !job.IsValid() || u.x.DryRun {
		return
	}
	ctx = trace.ContextWithRemoteSpanContext(ctx, job)
	_, span := u.x.Tracer.Start(ctx, "maintenance.deleted", trace.WithLinks(trace.Link{SpanContext: u.x.Span.SpanContext()}),
		trace.WithAttributes(attribute.Int64("maintenance.user_id", u.UserID), attribute.String("maintenance.worker", u.x.Worker.Name),
			attribute.String("maintenance.run_id", u.x.Snapshot().ID)))
	span.End()
}

// ending is what ends the run after an error, nil if that is the user's. Of a run that is to stop,
// nobody is put off.
func (r *ghostRun) ending(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, errors.Is(err, repo.ErrLeaseLost), errors.Is(err, repo.ErrUnreachable):
		return err
	}
	return r.x.Stopped()
}

// isLock says whether somebody else held what a statement about the user alone needed.
func isLock(err error) bool { return bulk.ClassOf(err, 0, repo.Limits{}) == repo.ClassLock }

// work is steps 1 to 4 of the constructor's comment.
func (u *ghostUser) work(ctx context.Context) (err error) {
	d := u.x.Database
	if u.GhostTarget, err = d.GhostTarget(ctx, u.queue, u.GhostMigration, run.ReadLimits()); err != nil {
		return err
	}
	switch {
	case !u.Due:
		return nil
	case !u.Exists:
		return u.change(ctx, d.RemoveOrphan)
	case !u.Migratable:
		return &run.ReasonedError{Reason: run.ReasonInternalUser, Text: fmt.Sprintf("users of type %d are not deleted", u.Type)}
	case u.Ghost == u.UserID:
		return &run.ReasonedError{Reason: run.ReasonInternalUser, Text: "the user is the ghost"}
	}
	if u.Ghost == 0 {
		if err := u.createGhost(ctx); err != nil {
			return err
		}
	}
	if err := u.migrate(ctx); err != nil {
		return err
	}
	u.migrated++
	u.x.Count(ctx, "migrated_users", 1)
	u.tellDeleted(ctx)
	u.x.LogDone(ctx, "user migrated", "user would be migrated", "user_id", u.UserID, "tables", u.tables)
	return nil
}

// createGhost makes one; a dry run asks only whether it could.
func (u *ghostUser) createGhost(ctx context.Context) (err error) {
	if err := u.goOn(); err != nil {
		return err
	}
	if u.x.DryRun {
		return u.x.Database.CheckGhost(ctx, ghostLimits())
	}
	permit, err := u.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	u.Ghost, err = u.x.Database.CreateGhost(ctx, permit.Permit, u.queue, u.Organization)
	if err == nil {
		u.log.InfoContext(ctx, "ghost user created", "ghost_id", u.Ghost)
	}
	return err
}

// ghostLimits bound the statements about a single row of the queue or of users.
func ghostLimits() repo.Limits {
	return repo.Limits{Statement: 4 * time.Second, Lock: bulk.LongLockTime}
}

// permit is for the statements about the queue and users.
func (u *ghostUser) permit(ctx context.Context) (run.Permit, error) {
	return u.x.Permit(ctx, u.x.Database, repo.Table{Name: "users"}, ghostLimits())
}

// queueChange is what may become of a row of the queue.
type queueChange func(context.Context, repo.Permit, repo.GhostQueue, repo.GhostMigration) error

// change changes the user's row of the queue; a dry run does not.
func (u *ghostUser) change(ctx context.Context, row queueChange) (err error) {
	if u.x.DryRun {
		return nil
	}
	permit, err := u.permit(ctx)
	if err != nil {
		return err
	}
	defer permit.End(&err)
	return row(ctx, permit.Permit, u.queue, u.GhostMigration)
}

// goOn is asked before every statement of a user.
func (u *ghostUser) goOn() error {
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

// postpone defers the user; at the deadline the run takes no further rows.
func (u *ghostUser) postpone(ctx context.Context, why error) error {
	if errors.Is(why, errDeadline) {
		u.stopped = "limit reached: max_runtime"
	}
	u.deferred++
	u.x.Count(ctx, "deferred_users", 1)
	run.TellOutcome(ctx, run.OutcomeDeferred, whyDeferred(why))
	u.x.LogDone(ctx, "user deferred", "user would be deferred", "user_id", u.UserID, "why", why.Error(), "tables", u.tables)
	return u.reschedule(ctx, u.x.Database.DeferMigration)
}

// whyDeferred is why a user is put off, in words fit for traces.
func whyDeferred(why error) string {
	if errors.Is(why, errDeadline) || errors.Is(why, errSliceUsed) {
		return why.Error()
	}
	return run.PublicText(why)
}

// fail puts the user off after an error, which is logged here and nowhere else. That the user is of
// a type that stays is no fault that a stack could explain.
func (u *ghostUser) fail(ctx context.Context, cause error) error {
	u.failed++
	u.x.Count(ctx, "failed_users", 1)
	run.TellFailure(ctx, cause)
	if referenced, is := errors.AsType[*bulk.StillReferencedError](cause); is {
		u.table, u.column = referenced.Table, referenced.Column
	}
	if unreadable, is := errors.AsType[*bulk.UnreadableError](cause); is {
		u.table, u.column = unreadable.Rows.Table.Name, unreadable.Column()
	}
	reason := run.ReasonOf(cause)
	attrs := []any{"reason", reason, "error", cause}
	if u.table != "" {
		attrs = append(attrs, "table", u.table, "column", u.column)
	}
	if len(u.tables) > 0 {
		attrs = append(attrs, "tables", u.tables)
	}
	if reason == run.ReasonInternalUser {
		u.log.WarnContext(ctx, "user refused", attrs...)
	} else {
		u.log.ErrorContext(ctx, "user failed", attrs...)
	}
	return u.reschedule(ctx, u.x.Database.FailMigration)
}

// reschedule skips a row that somebody else has locked: it stays due.
func (u *ghostUser) reschedule(ctx context.Context, to queueChange) error {
	err := u.change(ctx, to)
	end := u.ending(ctx, err)
	if err != nil && end == nil {
		u.log.ErrorContext(ctx, "user not rescheduled", "error", err)
	}
	return end
}

// count accounts for rows that are changed.
func (u *ghostUser) count(ctx context.Context, table string, c repo.Change, rows int64) {
	keys := map[string]string{"move": "moved_rows", "nullify": "nullified_rows", "delete": "deleted_rows"}
	u.x.Count(ctx, keys[c.Action()], rows)
	if c.Delete {
		u.x.Changed(table, rows, 0)
	} else {
		u.x.Changed(table, 0, rows)
	}
	if u.tables[table] == nil {
		u.tables[table] = map[string]int64{}
	}
	u.tables[table][c.Action()] += rows
}

// outsideAtOnce is how many paths one log line has.
const outsideAtOnce = 100

func (u *ghostUser) outside(ctx context.Context, paths []string) {
	for len(paths) > 0 {
		n := min(len(paths), outsideAtOnce)
		u.log.InfoContext(ctx, "left outside the database", "left_outside", paths[:n])
		paths = paths[n:]
	}
}

package ghost

import (
	"context"
	"errors"
	"fmt"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// planUser adds the effects of a run on a user whom the job delete_user has queued: the same steps,
// as a dry run.
func (w *worker) planUser(ctx context.Context, x *run.Execution, p *plan.Plan) error {
	lists, err := newReferences(ctx, x.Log, p.Databases)
	if missing, ok := errors.AsType[*fault.FailedError](err); ok {
		return &fault.NotConfiguredError{Worker: Name, Missing: missing.Text}
	}
	if err != nil {
		return err
	}
	target, err := p.Main().Ghosts.PlanGhostTarget(ctx, lists.queue, p.ID, run.ReadLimits())
	if err != nil {
		return err
	}
	u := &user{
		workerRun: &workerRun{
			worker: w, x: x, references: lists, plan: p, seen: map[*repo.Database]bulk.Seen{},
		},
		GhostMigration: gitlab.GhostMigration{UserID: p.ID}, GhostTarget: target, log: x.Log,
		tables: map[string]map[string]int64{},
	}
	switch {
	case !target.Exists:
		return plan.ErrUnknownTarget
	case target.Ghost == p.ID:
		// To whom would it all go?
		p.Refuse(reasons.InternalUser, "the user is the ghost user")
		p.Exact = false
		return nil
	case !target.Migratable:
		// The effects are counted anyway, without a ghost.
		p.Refuse(reasons.InternalUser, fmt.Sprintf("users of type %d are not deleted", target.Type))
	}
	if target.Active {
		p.Remark(activeAgain)
	}
	if target.Queued {
		// The run does not wait for a job that would remove them.
		has, err := u.hasPersonalProjects(ctx)
		if err != nil {
			return err
		}
		if has {
			p.Refuse(reasonPersonalProjects, personalProjects)
		}
	}
	if target.Ghost == 0 {
		if err := p.Main().Ghosts.CheckGhost(ctx, rowLimits()); err != nil {
			return err
		}
	}
	return u.handOver(ctx)
}

// planRow counts the user's row, and the marks of groups that a foreign key deletes with it.
func (u *user) planRow(ctx context.Context) error {
	u.plan.Count(u.x.Database, "users", rowset.Change{Delete: true}, 1)
	main := u.references.catalogs[0]
	for _, key := range main.References(main.Table("users").Table) {
		if key.Child.Name != "group_deletion_schedules" || key.OnDelete != catalog.OnDeleteCascade {
			continue
		}
		rows := rowset.Referring(main, key, "id", rowset.IDs(u.UserID)...)
		if err := u.removal(main).Sweep(ctx, rows, rowset.Change{Delete: true}); err != nil {
			return err
		}
	}
	return nil
}

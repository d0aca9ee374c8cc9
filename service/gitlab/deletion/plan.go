package deletion

import (
	"context"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/repo/gitlab"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/repo/rowset"
	"github.com/caretaker-go/caretaker/service/bulk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// PlanRemover returns a [Remover] that counts its effects for a plan.
func PlanRemover(ctx context.Context, p *plan.Plan) (*Remover, error) {
	wanted := removedColumns()
	// Tables with delete statements of their own.
	for table, column := range map[string]string{
		"project_authorizations": "user_id", "namespace_details": "namespace_id",
		"group_deletion_schedules": "group_id",
	} {
		wanted[table] = append(wanted[table], column)
	}
	catalog, err := p.Main().Schema.Catalog(ctx, wanted)
	if err != nil {
		return nil, err
	}
	r := &Remover{main: p.Main(), Plan: p}
	r.Sweeper = &bulk.Sweeper{
		Catalog: catalog, CheckStop: p.CheckStop, DryRun: bulk.ForPlan(p, catalog),
	}
	return r, nil
}

// PlanRows counts rows that would be deleted: those with a value in a column that meet more SQL on
// the table t. A missing table has none.
func (r *Remover) PlanRows(ctx context.Context, table, column string, id int64, more string) error {
	rows, ok := rowset.RowsOf(r.Catalog, table, column, rowset.IDs(id)...)
	if !ok {
		return nil
	}
	rows.Condition = more
	return r.Sweep(ctx, rows, rowset.Change{Delete: true})
}

// planMembers counts memberships.
func (r *Remover) planMembers(ctx context.Context, which gitlab.Memberships) error {
	bots, err := r.main.Groups.HasBots(ctx, which, bulk.ProbeLimits())
	if err != nil {
		return err
	}
	if bots {
		r.Plan.Queue(jobqueue.DeleteUser{}.Kind())
	}
	if which.SourceType == "" {
		return r.PlanRows(ctx, "members", "member_namespace_id", which.SourceID, "")
	}
	return r.PlanRows(ctx, "members", "source_id", which.SourceID,
		"t.source_type = '"+which.SourceType+"'")
}

// planProjectRows counts the rows deleted with a project's row.
func (r *Remover) planProjectRows(ctx context.Context, p gitlab.ProjectToRemove) error {
	if p.Routed {
		err := r.PlanRows(ctx, "routes", "source_id", p.ID, "t.source_type = 'Project'")
		if err != nil {
			return err
		}
	}
	if err := r.PlanRows(ctx, "projects", "id", p.ID, ""); err != nil || p.NamespaceID == 0 {
		return err
	}
	return r.PlanRows(ctx, "namespaces", "id", p.NamespaceID, "t.type = 'Project'")
}

// judgeLimits bound the statements that decide for a plan.
func judgeLimits() fencing.Limits {
	return fencing.Limits{Statement: 5 * time.Second, Lock: time.Second, Transaction: 10 * time.Second}
}

// plan adds the job's effects on a user: the decision, personal projects and memberships. The
// worker of ghost users handles the row.
func (u *userDeletion) plan(ctx context.Context, _ *run.Execution, p *plan.Plan) error {
	features, err := p.Main().Users.UserFeatures(ctx)
	if err != nil {
		return err
	}
	if features.Missing != "" {
		return &fault.NotConfiguredError{Worker: jobqueue.DeleteUser{}.Kind(), Missing: features.Missing}
	}
	args := jobqueue.DeleteUser{UserID: p.ID, SkipAuthorization: true}
	d, err := p.Main().Users.JudgeUserDeletion(ctx, args, features, judgeLimits())
	switch {
	case err != nil:
		return err
	case d.Skipped == reasons.TargetGone:
		return plan.ErrUnknownTarget
	case d.Refused != "":
		p.Refuse(d.Refused, refusalText(d))
	}
	if err := PlanProtection(ctx, p); err != nil {
		return err
	}
	r, err := PlanRemover(ctx, p)
	if err != nil {
		return err
	}
	if err := u.planProjects(ctx, r, features); err != nil {
		return err
	}
	if err := r.PlanRows(ctx, "members", "user_id", p.ID, ""); err != nil {
		return err
	}
	return r.PlanRows(ctx, "project_authorizations", "user_id", p.ID, "")
}

// planProjects counts the removal of each personal project, in the order of ids. An error names
// the project.
func (u *userDeletion) planProjects(
	ctx context.Context, r *Remover, features gitlab.UserFeatures,
) error {
	for after := int64(0); ; {
		if err := r.CheckStop(); err != nil {
			return err
		}
		projects, err := r.main.Users.PersonalProjects(ctx, features, r.Plan.ID, after, bulk.ProbeLimits())
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

// PlanProtection refuses protected targets.
func PlanProtection(ctx context.Context, p *plan.Plan) error {
	kind := control.KindUser
	if p.Kind == control.KindGroup {
		kind = p.Kind
	}
	protection, err := p.Main().Protections.Protecting(ctx, kind, p.ID, false, judgeLimits())
	if err != nil || protection == nil {
		return err
	}
	p.Refuse(reasons.Protected, protection.String())
	return nil
}

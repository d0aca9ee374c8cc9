package placeholder

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// plan adds what keeps the user, and the job that would delete it.
func (p *placeholderDeletion) plan(ctx context.Context, _ *run.Execution, plan *run.Plan) error {
	verdict, err := plan.Main().JudgePlaceholder(
		ctx, plan.ID, plan.Databases[1:], placeholderLimits())
	switch {
	case err != nil:
		return err
	case verdict.Missing != "":
		return &run.NotConfiguredError{Worker: Name, Missing: verdict.Missing}
	case verdict.Gone:
		return run.ErrUnknownTarget
	case verdict.NotPlaceholder:
		plan.Refuse(run.ReasonNotAPlaceholder, "it is another type of user")
	case verdict.Protection != nil:
		// The plan of the user itself says so.
	case verdict.Reference != nil:
		plan.Refuse(run.ReasonStillReferenced,
			verdict.Reference.Table+"."+verdict.Reference.Column+" refers to it")
	default:
		plan.Queue(repo.DeleteUser{}.Kind())
	}
	return nil
}

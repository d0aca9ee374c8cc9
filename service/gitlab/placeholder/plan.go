package placeholder

import (
	"context"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/plan"
)

// plan adds what keeps the user, and the job that would delete it.
func (p *placeholderDeletion) plan(ctx context.Context, _ *run.Execution, into *plan.Plan) error {
	verdict, err := into.Main().Placeholders.JudgePlaceholder(
		ctx, into.ID, repo.Kernels(into.Databases[1:]), placeholderLimits())
	switch {
	case err != nil:
		return err
	case verdict.Missing != "":
		return &fault.NotConfiguredError{Worker: Name, Missing: verdict.Missing}
	case verdict.NotFound:
		return plan.ErrUnknownTarget
	case verdict.NotPlaceholder:
		into.Refuse(reasonNotAPlaceholder, "the user is not a placeholder user")
	case verdict.Protection != nil:
		// The plan of the user itself includes it.
	case verdict.Reference != nil:
		into.Refuse(fault.ReasonStillReferenced,
			verdict.Reference.Table+"."+verdict.Reference.Column+" still refers to the user")
	default:
		into.Queue(jobqueue.DeleteUser{}.Kind())
	}
	return nil
}

package token

import (
	"cmp"
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// An unfinished pass does not wait for the schedule. After a run that took too long, the job
// continue_inactive_token_deletion continues it. After a run that died, the scheduler resumes it.

// continuationSnooze is how long the continuation snoozes while its worker is paused, switched
// off or running, or the queue is full.
const continuationSnooze = 10 * time.Second

// continuePass is the job continue_inactive_token_deletion. It starts a run without waiting for its
// end, so that the run can queue the next continuation.
func (k *inactiveTokens) continuePass(ctx context.Context, j *job.Attempt) (job.Result, error) {
	args, err := job.Decode[jobqueue.ContinueInactiveTokenDeletion](j)
	if err != nil {
		return job.Result{}, err
	}
	unfinished, err := k.Main.Tokens.TokenPassUnfinished(ctx, args.PassID)
	if err != nil {
		return job.Result{}, err
	}
	result := job.Result{Outcome: job.Succeeded, Attributes: []any{"pass_id", args.PassID}}
	if !unfinished {
		result.Outcome, result.Reason, result.LogAtDebug = job.Skipped, reasons.TargetGone, true
		return result, nil
	}
	wait := func(reason string) (job.Result, error) {
		return job.Result{
			Snooze: continuationSnooze, Reason: reason, Attributes: result.Attributes,
		}, nil
	}
	if k.config.Disabled() {
		// The worker may be enabled in another process, or in this one after a restart.
		return wait(reasonDisabled)
	}
	if full, err := k.full(ctx); err != nil {
		return result, err
	} else if full {
		return wait(fault.ReasonQueueFull)
	}
	record, err := k.RunBatch(ctx, run.Continue(k.worker, run.ReasonContinuation))
	if fault.IsTemporary(err) {
		reason := fault.SkipReason(err).Code
		return wait(cmp.Or(reason, fault.ErrShutdown.Reason.Code))
	}
	result.Attributes = append(result.Attributes, "continued_by", record.ID)
	return result, err
}

// abandoned reports whether a run that died has left a pass unfinished.
func (k *inactiveTokens) abandoned(ctx context.Context) (bool, error) {
	return k.Main.Tokens.TokenPassAbandoned(ctx, k.worker.Name)
}

// reasonDisabled belongs to a continuation whose worker is not enabled here.
const reasonDisabled = "DISABLED"

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

// Before the schedule an unfinished pass is continued by the job continue_inactive_token_deletion
// after a run that took too long, and by whoever resumes abandoned runs after one that died.

// continuationPatience is how long the continuation snoozes while its worker is paused, switched
// off or at work, or the queue is full.
const continuationPatience = 10 * time.Second

// continuePass is the job continue_inactive_token_deletion. It starts a run and does not wait for
// its end, so that the run can queue the next continuation.
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
		result.Outcome, result.Reason, result.LogAtDebug = job.Skipped, reasons.ReasonTargetGone, true
		return result, nil
	}
	wait := func(reason string) (job.Result, error) {
		return job.Result{
			Snooze: continuationPatience, Reason: reason, Attributes: result.Attributes,
		}, nil
	}
	if k.config.Disabled() {
		// Another process may have the worker switched on, or this one again after a restart.
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

// reasonDisabled is that of a continuation whose worker is not enabled here.
const reasonDisabled = "DISABLED"

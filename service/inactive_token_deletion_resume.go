package service

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// What goes on with an unfinished pass before the schedule does (inactive_token_deletion.md section 5): the job
// continue_inactive_token_deletion after a run that took too long, ResumeRuns after one that died.

// continuationPatience is how long the continuation waits for a pause or a lease to end, or for its worker to be
// switched on.
const continuationPatience = 10 * time.Second

// continuePass is the job continue_inactive_token_deletion. It starts a run and does not wait for its end: the run can
// queue the next continuation.
func (k *inactiveTokens) continuePass(ctx context.Context, j *jobExecution) (JobResult, error) {
	args, err := decode[repo.ContinueInactiveTokenDeletion](j)
	if err != nil {
		return JobResult{}, err
	}
	unfinished, err := k.main.TokenPassUnfinished(ctx, args.PassID)
	if err != nil {
		return JobResult{}, err
	}
	result := JobResult{Outcome: JobSucceeded, Attributes: []any{"pass_id", args.PassID}}
	if !unfinished {
		result.Outcome, result.Reason, result.Quiet = JobSkipped, reasonTargetGone, true
		return result, nil
	}
	wait := func(reason string) (JobResult, error) {
		return JobResult{Snooze: continuationPatience, Reason: reason, Attributes: result.Attributes}, nil
	}
	if k.config.disabled() {
		// Nothing starts by itself here; another process, or this one switched on again, goes on.
		return wait(reasonDisabled)
	}
	if full, err := k.full(ctx); err != nil {
		return result, err
	} else if full {
		return wait(reasonQueueFull)
	}
	run, err := k.resume(ctx, k.worker, reasonContinuation)
	if mustWait(err) {
		reason, _, _ := strings.Cut(skipReason(err), ":")
		return wait(cmp.Or(reason, errShutdown.reason))
	}
	result.Attributes = append(result.Attributes, "continued_by", run.ID)
	return result, err
}

// abandoned says whether a run that died has left a pass unfinished.
func (k *inactiveTokens) abandoned(ctx context.Context) (bool, error) {
	return k.main.TokenPassAbandoned(ctx, k.worker.name)
}

// mustWait says whether a run did not start for a reason that goes away by itself.
func mustWait(err error) bool {
	var held *LeaseHeldError
	var paused *WorkerPausedError
	return errors.As(err, &held) || errors.As(err, &paused) || errors.Is(err, ErrStopping)
}

// ResumeRuns starts a run of each worker whose last one died, its lease expired, or ended early to spare the database, and
// left work that must not wait for the schedule. The scheduler calls it every half a minute.
func (s *Service) ResumeRuns(ctx context.Context) error {
	// What died before it worked is then for RunDue to take over.
	errs := []error{s.main.GiveBackDeadFires(ctx, s.workerNames()), s.closeAbandoned(ctx)}
	for _, w := range s.workers {
		if w.config.disabled() {
			continue
		}
		reason, err := s.unfinished(ctx, w)
		if err == nil && reason != "" {
			_, err = s.resume(ctx, w, reason)
		}
		if !mustWait(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

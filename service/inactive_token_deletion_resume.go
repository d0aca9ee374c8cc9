package service

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/job"
	"github.com/caretaker-go/caretaker/service/run"
)

// What goes on with an unfinished pass before the schedule does (inactive_token_deletion.md section 5): the job
// continue_inactive_token_deletion after a run that took too long, ResumeRuns after one that died.

// continuationPatience is how long the continuation waits for a pause or a lease to end, or for its worker to be
// switched on.
const continuationPatience = 10 * time.Second

// continuePass is the job continue_inactive_token_deletion. It starts a run and does not wait for its end: the run can
// queue the next continuation.
func (k *inactiveTokens) continuePass(ctx context.Context, j *job.Attempt) (job.Result, error) {
	args, err := job.Decode[repo.ContinueInactiveTokenDeletion](j)
	if err != nil {
		return job.Result{}, err
	}
	unfinished, err := k.Main.TokenPassUnfinished(ctx, args.PassID)
	if err != nil {
		return job.Result{}, err
	}
	result := job.Result{Outcome: job.Succeeded, Attributes: []any{"pass_id", args.PassID}}
	if !unfinished {
		result.Outcome, result.Reason, result.Quiet = job.Skipped, run.ReasonTargetGone, true
		return result, nil
	}
	wait := func(reason string) (job.Result, error) {
		return job.Result{Snooze: continuationPatience, Reason: reason, Attributes: result.Attributes}, nil
	}
	if k.config.Disabled() {
		// Nothing starts by itself here; another process, or this one switched on again, goes on.
		return wait(run.ReasonDisabled)
	}
	if full, err := k.full(ctx); err != nil {
		return result, err
	} else if full {
		return wait(run.ReasonQueueFull)
	}
	record, err := k.Resume(ctx, k.worker, run.ReasonContinuation)
	if mustWait(err) {
		reason, _, _ := strings.Cut(run.SkipReason(err), ":")
		return wait(cmp.Or(reason, run.ErrShutdown.Reason))
	}
	result.Attributes = append(result.Attributes, "continued_by", record.ID)
	return result, err
}

// abandoned says whether a run that died has left a pass unfinished.
func (k *inactiveTokens) abandoned(ctx context.Context) (bool, error) {
	return k.Main.TokenPassAbandoned(ctx, k.worker.Name)
}

// mustWait says whether a run did not start for a reason that goes away by itself.
func mustWait(err error) bool {
	var held *run.LeaseHeldError
	var paused *run.WorkerPausedError
	return errors.As(err, &held) || errors.As(err, &paused) || errors.Is(err, run.ErrStopping)
}

// ResumeRuns starts a run of each worker whose last one died, its lease expired, or ended early to spare the database, and
// left work that must not wait for the schedule. The scheduler calls it every half a minute.
func (s *Service) ResumeRuns(ctx context.Context) error {
	// What died before it worked is then for RunDue to take over.
	errs := []error{s.engine.Main.GiveBackDeadFires(ctx, s.workerNames()), s.engine.CloseAbandoned(ctx)}
	for _, w := range s.engine.Workers {
		if w.Config.Disabled() {
			continue
		}
		reason, err := s.engine.Unfinished(ctx, w)
		if err == nil && reason != "" {
			_, err = s.engine.Resume(ctx, w, reason)
		}
		if !mustWait(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

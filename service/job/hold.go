package job

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/repo/fencing"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// A job is held while all workers are paused, while its worker is ([Kind].Owner), or while main is
// over a limit of its load that would keep a run from writing, too. It waits in the queue, without
// using up an attempt; one at work ends its slice after the statement in flight.

const (
	// holdPause is how long a pause postpones a job: so much later it may be worked after
	// ResumeWorker. Below 5 s the queue needs no help to find it again.
	holdPause = 4 * time.Second
	// holdLoad is how long the load postpones a job.
	holdLoad = 10 * time.Second
)

// hold is why a job is not worked now, and when to check again.
type hold struct {
	reason string
	snooze time.Duration
}

// holdReason of a job, nil if it may run.
func (p *Pool) holdReason(ctx context.Context, j *Attempt) *hold {
	pauses, known := p.Pauses.Get(ctx)
	if !known {
		return &hold{fault.ReasonPaused + ": " + run.PausesUnknown, holdPause}
	}
	if run.PauseFor(p.owner(j.Request), pauses) != nil {
		return &hold{fault.ReasonPaused, holdPause}
	}
	return j.loadHold(ctx, p.Main, catalog.Table{})
}

func (j *Attempt) loadHold(ctx context.Context, d *repo.Database, t catalog.Table) *hold {
	if e := j.loads.Overloaded(ctx, d, t); e != nil && e.Severe() {
		return &hold{fault.ReasonThrottled + ": " + e.String(), holdLoad}
	}
	return nil
}

// Permit lets the attempt write on a table of a database by this permit. Where that is over a limit
// of its load, it ends the slice: [ErrSliceOver].
func (j *Attempt) Permit(
	ctx context.Context, d *repo.Database, t catalog.Table, p fencing.Permit,
) (run.Permit, error) {
	if h := j.loadHold(ctx, d, t); h != nil {
		j.heldBy = h
		return run.Permit{}, ErrSliceOver
	}
	return run.Permit{Permit: p}, nil
}

// owner is the worker with whose pause a job waits, "" if only with that of all:
// continue_inactive_token_deletion has to ask before it starts a run anyway.
func (p *Pool) owner(r Request) string {
	if of := p.Kinds[r.Kind].Owner; of != nil {
		return of(r.Args)
	}
	return ""
}

// OwnedBy is for kinds that one worker alone queues.
func OwnedBy(worker string) func(json.RawMessage) string {
	return func(json.RawMessage) string { return worker }
}

// held reports whether the job is held now, and remembers why for the attempt's end.
func (j *Attempt) held() bool {
	if j.currentHold == nil {
		return false
	}
	if h := j.currentHold(); h != nil {
		j.heldBy = h
	}
	return j.heldBy != nil
}

// postpone is how an attempt ends that was held: later than it would have snoozed by itself.
func (h *hold) postpone(r Result) Result {
	r.Snooze, r.Reason = max(r.Snooze, h.snooze), h.reason
	return r
}

// ErrSliceOver ends an attempt that has worked as long as it may; the next one goes on.
var ErrSliceOver = errors.New("the attempt's time is over")

const (
	// SliceSnooze is how long an attempt that has worked as long as it may waits for the next. The
	// queue shortens it to nothing when its server stops.
	SliceSnooze = time.Second
	// busySnooze is how long an attempt waits for another one at work on the same group or project.
	busySnooze = 30 * time.Second
)

// Postpone is the end of an attempt whose error says no more than that the job goes on later, and
// why.
func (j *Attempt) Postpone(r Result, err error) (Result, error) {
	switch {
	case errors.Is(err, ErrSliceOver) && j.stops():
		r.Snooze, r.Reason = SliceSnooze, fault.ErrShutdown.Reason.Code
	case errors.Is(err, ErrSliceOver):
		r.Snooze, r.Reason = SliceSnooze, reasonSliceUsed
	case errors.Is(err, dberr.ErrBusy):
		r.Snooze, r.Reason = busySnooze, fault.ReasonTargetBusy
	default:
		return r, err
	}
	return r, nil
}

// reasonSliceUsed is that of jobs whose attempt has worked as long as it may: they continue later.
const reasonSliceUsed = "SLICE_USED"

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

// A job is held while all workers or its own ([Kind].Owner) are paused. It is also held while main
// is over a limit of its load that would keep a run from writing. It waits in the queue, without
// using up an attempt. A running attempt ends its slice after its current statement.

const (
	// holdPause is how long a pause postpones a job, and the maximum delay after ResumeWorker.
	// Below 5 s the queue finds the job again without help.
	holdPause = 4 * time.Second
	// holdLoad is how long the load postpones a job.
	holdLoad = 10 * time.Second
)

// hold is why a job does not run now, and when to check again.
type hold struct {
	reason string
	snooze time.Duration
}

// holdReason returns why a job is held. nil means it may run.
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

// loadHold returns a hold if the load of d or t severely exceeds its limit, else nil. A smaller
// excess holds no job.
func (j *Attempt) loadHold(ctx context.Context, d *repo.Database, t catalog.Table) *hold {
	if e := j.loads.Overloaded(ctx, d, t); e != nil && e.Severe() {
		return &hold{fault.ReasonThrottled + ": " + e.String(), holdLoad}
	}
	return nil
}

// Permit lets the attempt write to a table of a database with this permit. Over a limit of the load
// it ends the slice: [ErrSliceOver].
func (j *Attempt) Permit(
	ctx context.Context, d *repo.Database, t catalog.Table, p fencing.Permit,
) (run.Permit, error) {
	if h := j.loadHold(ctx, d, t); h != nil {
		j.heldBy = h
		return run.Permit{}, ErrSliceOver
	}
	return run.Permit{Permit: p}, nil
}

// owner returns the worker whose pause holds a job. "" means only the pause of all.
// continue_inactive_token_deletion checks the pause before it starts a run anyway.
func (p *Pool) owner(r Request) string {
	if of := p.Kinds[r.Kind].Owner; of != nil {
		return of(r.Args)
	}
	return ""
}

// OwnedBy returns the Owner of kinds that only one worker queues.
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

// postpone returns the end of a held attempt: later than its own snooze.
func (h *hold) postpone(r Result) Result {
	r.Snooze, r.Reason = max(r.Snooze, h.snooze), h.reason
	return r
}

// ErrSliceOver ends an attempt at its time limit. The next attempt continues.
var ErrSliceOver = errors.New("the attempt reached its time limit")

const (
	// SliceSnooze is the wait between an attempt that reached its time limit and the next. The
	// queue shortens it to nothing when its server stops.
	SliceSnooze = time.Second
	// busySnooze is how long an attempt waits for another running one on the same group or project.
	busySnooze = 30 * time.Second
)

// Postpone returns the end of an attempt whose error only means that the job continues later, and
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

// reasonSliceUsed belongs to jobs whose attempt reached its time limit: they continue later.
const reasonSliceUsed = "SLICE_USED"

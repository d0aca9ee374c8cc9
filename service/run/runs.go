package run

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/repo/dberr"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// errForgotten means that the run of a request id could not start and has left no record.
var errForgotten = errors.New("run forgotten")

// errSeen ends watching a run that has started.
var errSeen = errors.New("seen")

// Join waits for a run of any replica: for its end, or for its start if async.
func (r *Runner) Join(ctx context.Context, run Run, async bool) (Run, error) {
	if x := r.Active.local(run.ID); x != nil {
		return x.join(ctx, async)
	}
	err := r.watch(ctx, run.ID, true, func(r Run) error {
		run = r
		if async && (r.DryRun || r.LeaseEpoch > 0) {
			return errSeen
		}
		return nil
	})
	switch {
	case errors.Is(err, errSeen):
		return run, nil
	case errors.Is(err, fault.ErrUnknownRun):
		return Run{}, errForgotten
	}
	return run, err
}

// join returns the run once it is running if async, else at its end. If ctx ends first, it returns
// the run at that moment, with the cause.
func (x *Execution) join(ctx context.Context, async bool) (Run, error) {
	works := x.planned
	if !async {
		works = nil
	}
	select {
	case <-works:
		return x.Snapshot(), nil
	case <-x.Done:
	case <-ctx.Done():
		return x.Snapshot(), context.Cause(ctx)
	}
	x.mu.Lock()
	refused := x.refused
	x.mu.Unlock()
	if refused != nil {
		return Run{}, refused
	}
	return x.Snapshot(), nil
}

// Run returns the run with this id, or a beginning of it, or [fault.ErrUnknownRun].
func (r *Runner) Run(ctx context.Context, id string) (Run, error) {
	id, err := r.RunID(ctx, "id", id)
	if err != nil {
		return Run{}, err
	}
	if x := r.Active.local(id); x != nil {
		return x.Snapshot(), nil
	}
	run, err := r.Main.Runs.Run(ctx, id)
	if err == nil && run.State == control.RunRunning && !run.SilentSince.IsZero() {
		// Its process may have died. With heartbeats it has not: watchers query it twice a second.
		if err = r.CloseAbandoned(ctx); err == nil {
			run, err = r.Main.Runs.Run(ctx, id)
		}
	}
	return WithSilence(run), unknownRun(id, err)
}

const (
	// shortestID is the least number of digits of an abbreviated id. idDigits is their number in an id.
	shortestID, idDigits = 4, 32
	// shownIDs is the number of ids in an error.
	shownIDs = 10
)

// RunID returns the id of the run that text names. That is text itself if it has the form of an id,
// else the only id that begins with it. If several do, it returns a [*fault.InvalidArgumentError]
// for the field, otherwise [fault.ErrUnknownRun].
func (r *Runner) RunID(ctx context.Context, field, text string) (string, error) {
	err := ValidRunID(text)
	digits := strings.ReplaceAll(text, "-", "")
	if err == nil || len(digits) < shortestID || len(digits) >= idDigits {
		return text, err
	}
	first, invalid := uuid.Parse(digits + strings.Repeat("0", idDigits-len(digits)))
	if invalid != nil {
		return "", err
	}
	last := uuid.MustParse(digits + strings.Repeat("f", idDigits-len(digits)))
	ids, failed := r.Main.Runs.RunsBetween(ctx, first.String(), last.String(), shownIDs+1)
	switch {
	case failed != nil:
		return "", failed
	case len(ids) == 0:
		return "", err
	case len(ids) == 1:
		return ids[0], nil
	}
	more := ""
	if len(ids) > shownIDs {
		ids, more = ids[:shownIDs], " and more"
	}
	return "", &fault.InvalidArgumentError{Field: field, Description: fmt.Sprintf(
		"%s matches several runs (%s%s): use more characters", text, strings.Join(ids, ", "), more)}
}

// WithSilence returns a run for display: a running run without heartbeats gets that as its reason.
func WithSilence(run Run) Run {
	if !run.SilentSince.IsZero() {
		run.Reason = fmt.Sprintf("no heartbeat since %s: the process of the run has died, hangs or cannot reach "+
			"main. Without a new heartbeat, the run fails at %s",
			run.SilentSince.UTC().Format(time.RFC3339), run.DeadAt.UTC().Format(time.RFC3339))
	}
	return run
}

// ValidRunID returns an [fault.InvalidArgumentError] unless an id has the form of a run id.
func ValidRunID(id string) error {
	if id == "" {
		return &fault.InvalidArgumentError{Field: "id", Description: "is required: run `caretaker runs` to list the IDs"}
	}
	if uuid.Validate(id) != nil || len(id) != len(uuid.Nil.String()) {
		return fault.Unknown(fault.ErrUnknownRun, "run_id", id, "run not found: run `caretaker runs` to list the IDs")
	}
	return nil
}

// unknownRun replaces ErrNotFound by an error for clients that wraps ErrUnknownRun. It returns
// other errors unchanged.
func unknownRun(id string, err error) error {
	if errors.Is(err, dberr.ErrNotFound) {
		return fault.Unknown(fault.ErrUnknownRun, "run_id", id, "run not found: run `caretaker runs` to list the IDs")
	}
	return err
}

// Filter selects runs.
type Filter = control.RunList

// Runs lists runs, newest first.
func (r *Runner) Runs(ctx context.Context, f Filter) ([]Run, error) {
	if f.After != "" && uuid.Validate(f.After) != nil {
		return nil, &fault.InvalidArgumentError{Field: "page_token", Description: "does not belong to the list of runs"}
	}
	if f.Worker != "" {
		if _, err := r.Worker(f.Worker); err != nil {
			return nil, err
		}
	}
	if err := r.CloseAbandoned(ctx); err != nil {
		return nil, err
	}
	runs, err := r.Main.Runs.ListRuns(ctx, f)
	for i := range runs {
		runs[i] = WithSilence(runs[i])
	}
	return runs, err
}

const (
	// watchInterval is how often a watched run is queried, watchTimeout how long main can be silent
	// meanwhile.
	watchInterval, watchTimeout = 500 * time.Millisecond, 10 * time.Second
)

// WatchRun calls send with the current run, then after each change, and last at its end. Once the
// run has been seen, an outage of main shorter than 10 s does not end the watch.
func (r *Runner) WatchRun(ctx context.Context, id string, send func(Run) error) error {
	id, err := r.RunID(ctx, "id", id)
	if err != nil {
		return err
	}
	return r.watch(ctx, id, false, send)
}

// watch implements WatchRun. known: the run is known to exist.
func (r *Runner) watch(ctx context.Context, id string, known bool, send func(Run) error) error {
	var last Run
	seen := time.Now()
	for {
		run, err := r.Run(ctx, id)
		switch {
		case err == nil:
			known, seen = true, time.Now()
		case !known || !errors.Is(err, fault.ErrUnreachable) || time.Since(seen) > watchTimeout:
			return err
		}
		if err == nil && !reflect.DeepEqual(run, last) {
			if err := send(run); err != nil {
				return err
			}
			last = run
		}
		if err == nil && run.State != control.RunRunning {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchInterval):
		}
	}
}

// CancelRun asks a run to stop after its current statement, on any replica, and returns it as it is
// now. The caller's name in by, "" if unknown, becomes the run's error. The first caller counts.
func (r *Runner) CancelRun(ctx context.Context, id, by string) (Run, error) {
	id, err := r.RunID(ctx, "id", id)
	if err != nil {
		return Run{}, err
	}
	spans.SetTexts(trace.SpanFromContext(ctx), "maintenance.run_id", id)
	text := cancelText(by)
	if x := r.Active.local(id); x != nil {
		x.RequestStop(cancelled(text))
	}
	if err := r.Main.Runs.RequestCancel(ctx, id, text); err != nil {
		return Run{}, err
	}
	return r.Run(ctx, id)
}

// cancelText returns a cancelled run's error, or "" if the caller is unknown.
func cancelText(by string) string {
	by = TruncateActor(strings.TrimSpace(by))
	if by == "" {
		return ""
	}
	return fmt.Sprintf("cancelled by %s, %s", by, time.Now().UTC().Format(time.RFC3339))
}

// maxBy is the maximum length of a caller's name on record, in characters.
const maxBy = 200

// TruncateActor cuts the name of a caller to the length allowed on record.
func TruncateActor(by string) string {
	if long := []rune(by); len(long) > maxBy {
		return string(long[:maxBy])
	}
	return by
}

// maxReason is the maximum length of a reason in characters.
const maxReason = 500

// CheckReason returns an error for any reason that is missing or too long.
func CheckReason(reason string) error {
	switch n := len([]rune(reason)); {
	case n == 0:
		return &fault.InvalidArgumentError{Field: "reason", Description: "must not be empty"}
	case n > maxReason:
		return &fault.InvalidArgumentError{Field: "reason", Description: fmt.Sprintf("must have at most %d "+
			"characters", maxReason)}
	}
	return nil
}

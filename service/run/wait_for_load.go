package run

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/catalog"
	"github.com/caretaker-go/caretaker/repo/reasons"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/load"
)

// A run that writes checks the load before each statement. Over a limit it pauses between
// statements, longer the further it is over. While it is far over, it writes nothing. If that
// lasts, the run ends as SUCCEEDED, over_limit, with the limit as its reason. An excess counts from
// the start of the run, so that each run has its chance.

// pauseStep is how long a run pauses before it checks again.
const pauseStep = 500 * time.Millisecond

// waitForLoad pauses while the load of a database, or of the table to be changed, requires it. Its
// error is why the run stops.
func (x *Execution) waitForLoad(ctx context.Context, d *repo.Database, table catalog.Table) error {
	worked, paused := x.throttle.Worked(), time.Duration(0)
	for {
		if err := x.Stopped(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e := x.loads.Overloaded(ctx, d, table)
		switch {
		case e == nil:
			x.throttle.Release(nil)
			return nil
		case x.loads.TimedOut(e, x.started):
			return x.stopThrottled(ctx, e)
		}
		pause := pauseStep
		if !e.Severe() {
			pause = min(e.PauseAfter(worked)-paused, pauseStep)
		}
		if !x.Worker.NoTimeLimit {
			pause = min(pause, x.Left())
		}
		if pause <= 0 {
			if e.Severe() {
				// The run's time limit is reached. A last statement now would add load.
				return x.stopThrottled(ctx, e)
			}
			x.throttle.Release(e)
			return nil
		}
		pause, ofRun, first := x.throttle.Pause(ctx, e, pause)
		paused += pause
		x.recordPause(ctx, e.String(), pause, first)
		x.metrics.AddPause(ctx, x.Worker.Name, x.Database.Name, ofRun)
	}
}

// stopThrottled ends the run early because a load exceeds its limit. It logs the load and returns
// the stop as an error.
func (x *Execution) stopThrottled(ctx context.Context, e *load.Excess) error {
	x.Log.InfoContext(ctx, "load over limit, run stopped early", "load", e.String())
	x.RequestStop(fault.StopError{Reason: reasons.Reason{Code: fault.ReasonThrottled, Detail: e.String()}, Early: true})
	return x.Stopped()
}

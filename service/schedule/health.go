package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
)

// unaccounted is how long fires may have no row before an operator should check: the grace plus
// some checks.
const unaccounted = fireGrace + 3*lookAhead

// Health returns the state of a worker's fires and the time by main's clock, which decides what is
// due. It uses the host's clock only if main does not answer.
func (d *Dispatcher) Health(ctx context.Context, w *run.Worker) control.WorkerFigures {
	all, err := d.runner.Main.History.WorkerFigures(ctx, []string{w.Name})
	if err != nil {
		return control.WorkerFigures{Now: time.Now()}
	}
	return all[0]
}

// Overdue returns how long the oldest fire has waited without being accounted for, and that fire,
// or 0 if the delay is normal.
func Overdue(cron string, accountedUntil, now time.Time) (late time.Duration, fire time.Time) {
	schedule, err := run.ParseSchedule(cron)
	if err != nil || accountedUntil.IsZero() {
		return 0, fire
	}
	fire = schedule.Next(accountedUntil.UTC())
	if late = now.Sub(fire); fire.IsZero() || late <= unaccounted {
		return 0, fire
	}
	return late, fire
}

// Remark returns a status remark on a worker's fires, or "".
func Remark(h control.WorkerFigures) string {
	late, fire := Overdue(h.Cron, h.AccountedUntil, h.Now)
	since := h.Since.UTC().Format(time.RFC3339)
	switch {
	case late > 0:
		return fmt.Sprintf("no scheduler has claimed the scheduled run of %s: start a server with "+
			"scheduler.enabled", fire.Format(time.RFC3339))
	case h.Missed == 1:
		return fmt.Sprintf("the last scheduled run (%s) was missed", since)
	case h.Missed > 1:
		return fmt.Sprintf("the last %d scheduled runs were missed since %s", h.Missed, since)
	}
	return ""
}

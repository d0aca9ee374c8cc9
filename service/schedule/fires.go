package schedule

import (
	"context"

	"github.com/caretaker-go/caretaker/repo/control"
)

// Fire is a moment at which a worker's schedule requests a run, with its outcome.
type Fire = control.Fire

// Filter selects fires.
type Filter = control.FireFilter

// Fires lists the history of fires, newest first.
func (d *Dispatcher) Fires(ctx context.Context, f Filter) ([]Fire, error) {
	if f.Worker != "" {
		if _, err := d.runner.Worker(f.Worker); err != nil {
			return nil, err
		}
	}
	return d.runner.Main.Fires.ListFires(ctx, f)
}

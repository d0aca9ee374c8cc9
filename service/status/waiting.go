package status

import (
	"context"
	"fmt"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Waiting is an item in one database that a worker does not process now.
type Waiting struct {
	Database string
	jobqueue.Waiting
}

// WaitingList is what a worker's backlog counts as dead or deferred: the first 100 of each
// database. The zero value belongs to a worker without such a list.
type WaitingList struct {
	// Listed reports whether the worker has a list.
	Listed bool
	Items  []Waiting
	// NotRead are the databases that could not be read.
	NotRead []string
}

// Waiting lists the items that a worker does not process now. It fails for an unknown worker.
func (r *Reporter) Waiting(
	ctx context.Context, name string, dead bool,
) (list WaitingList, err error) {
	w, err := r.runner.Worker(name)
	if err != nil || w.Waiting == nil {
		return list, err
	}
	list.Listed = true
	for _, d := range w.LeaseDatabases(r.runner) {
		found, err := w.Waiting(ctx, d, dead)
		if err != nil {
			r.runner.Logger.DebugContext(ctx, "list of pending items not read",
				"worker", name, "database", d.Name, "error", err.Error())
			list.NotRead = append(list.NotRead, d.Name)
		}
		for _, f := range found {
			list.Items = append(list.Items, Waiting{d.Name, f})
		}
	}
	if len(list.Items) == 0 && len(list.NotRead) > 0 {
		return list, fmt.Errorf("cannot list the pending items of %s: %w", name, fault.ErrUnreachable)
	}
	return list, nil
}

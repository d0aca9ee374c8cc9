package status

import (
	"context"
	"fmt"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run"
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
	// NotRead are the databases that could not be read, each with the cause.
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
	homes := w.LeaseDatabases(r.runner)
	found, errs := make([][]jobqueue.Waiting, len(homes)), make([]error, len(homes))
	run.EachDatabase(ctx, homes, func(ctx context.Context, i int, d *repo.Database) {
		found[i], errs[i] = w.Waiting(ctx, d, dead)
	})
	for i, d := range homes {
		if errs[i] != nil {
			list.NotRead = append(list.NotRead, fault.PublicText(errs[i]))
		}
		for _, f := range found[i] {
			list.Items = append(list.Items, Waiting{d.Name, f})
		}
	}
	if len(list.NotRead) == len(homes) {
		return list, fmt.Errorf("cannot list the pending items of %s: %w", name, errs[0])
	}
	return list, nil
}

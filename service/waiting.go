package service

import (
	"context"
	"fmt"

	"github.com/caretaker-go/caretaker/repo/jobqueue"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

// Waiting is something in one database that a worker will not work on now.
type Waiting struct {
	Database string
	jobqueue.Waiting
}

// WaitingList is what a worker's backlog counts as dead, or as deferred: the first 100 of each
// database. The zero value is that of a worker that has no such list.
type WaitingList struct {
	// Listed says that the worker has one.
	Listed bool
	Items  []Waiting
	// NotRead are the databases that could not be read just now.
	NotRead []string
}

// Waiting lists what a worker will not work on now. Its error is that there is no such worker.
func (s *Service) Waiting(ctx context.Context, name string, dead bool) (list WaitingList, err error) {
	w, err := s.Worker(name)
	if err != nil || w.Waiting == nil {
		return list, err
	}
	list.Listed = true
	for _, d := range w.LeaseDatabases(s.Runner) {
		found, err := w.Waiting(ctx, d, dead)
		if err != nil {
			s.Logger.DebugContext(ctx, "list of what waits not read",
				"worker", name, "database", d.Name, "error", err.Error())
			list.NotRead = append(list.NotRead, d.Name)
		}
		for _, f := range found {
			list.Items = append(list.Items, Waiting{d.Name, f})
		}
	}
	if len(list.Items) == 0 && len(list.NotRead) > 0 {
		return list, fmt.Errorf("list what waits of %s: %w", name, fault.ErrUnreachable)
	}
	return list, nil
}

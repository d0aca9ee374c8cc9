package service

import (
	"context"
	"errors"

	"github.com/caretaker-go/caretaker/repo"
)

// Waiting is something in one database that a worker will not work on now.
type Waiting struct {
	Database string
	repo.Waiting
}

// Waiting lists the first 100 in each database of what a worker's backlog counts as dead, or as
// deferred. An error is joined from the databases that could not be read; the others' are in the
// list. listed is false for a worker that has no such list.
func (s *Service) Waiting(
	ctx context.Context, name string, dead bool,
) (list []Waiting, listed bool, err error) {
	w, err := s.engine.Worker(name)
	if err != nil || w.Waiting == nil {
		return nil, false, err
	}
	for _, d := range w.LeaseDatabases(s.engine) {
		found, readErr := w.Waiting(ctx, d, dead)
		err = errors.Join(err, readErr)
		for _, f := range found {
			list = append(list, Waiting{d.Name, f})
		}
	}
	return list, true, err
}

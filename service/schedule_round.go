package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
)

// A round is a fire of a worker that works all of its databases: those that have something due, one
// after the other in the order of the rotation, each in a run of its own under its own lease. The
// first run is the fire's, which decides whether the fire has run; the others follow it in the
// process that has taken the fire, and are not made up for.

// turn is the database that a fire's own run works on: that of its minute, or in a round the first that has something
// due. A round that finds none works the one of the minute, so that every fire has its run. The fire is claimed, so all
// databases together have duePatience to answer.
func (s *Service) turn(ctx context.Context, w *worker, fire time.Time) (*repo.Database, error) {
	if w.due != nil {
		asking, cancel := context.WithTimeoutCause(ctx, duePatience, repo.ErrUnreachable)
		defer cancel()
		for _, d := range w.databases {
			if w.due(asking, d) {
				return d, nil
			}
		}
	}
	return s.database(w, "", fire)
}

// goRound works the databases behind the one of the first run, x, which is nil if that could not
// start. A run that fails, is cancelled or finds its lease held does not keep the others from
// starting; a pause, or the end of this process, does. An error ends the round: what is left is for
// the next fire.
func (s *Service) goRound(ctx context.Context, w *worker, database string, x *execution) error {
	if w.due == nil {
		return nil
	}
	at := slices.IndexFunc(w.databases, func(d *repo.Database) bool { return d.Name == database })
	for _, d := range w.databases[at+1:] {
		if x != nil {
			<-x.done
		}
		if s.isStopping() {
			return nil
		}
		if err := s.ready(ctx, w); err != nil {
			if _, paused := errors.AsType[*WorkerPausedError](err); paused {
				return nil
			}
			return err
		}
		if !w.due(ctx, d) {
			continue
		}
		now, err := s.main.Now(ctx)
		if err != nil {
			return err
		}
		if x, _, err = s.startScheduled(ctx, w, Run{ID: newID(now)}, d); err != nil {
			return err
		}
	}
	return nil
}

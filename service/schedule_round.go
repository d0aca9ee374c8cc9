package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// A round is a fire of a worker that works all of its databases: those that have something due, one
// after the other in the order of the rotation, each in a run of its own under its own lease. The
// first run is the fire's, which decides whether the fire has run; the others follow it in the
// process that has taken the fire, and are not made up for.

// turn is the database that a fire's own run works on: that of its minute, or in a round the first that has something
// due. A round that finds none works the one of the minute, so that every fire has its run. The fire is claimed, so all
// databases together have duePatience to answer.
func (s *Service) turn(ctx context.Context, w *run.Worker, fire time.Time) (*repo.Database, error) {
	if w.Due != nil {
		asking, cancel := context.WithTimeoutCause(ctx, run.DuePatience, repo.ErrUnreachable)
		defer cancel()
		for _, d := range w.Databases {
			if w.Due(asking, d) {
				return d, nil
			}
		}
	}
	return s.engine.Database(w, "", fire)
}

// goRound works the databases behind the one of the first run, x, which is nil if that could not
// start. A run that fails, is cancelled or finds its lease held does not keep the others from
// starting; a pause, or the end of this process, does. An error ends the round: what is left is for
// the next fire.
func (s *Service) goRound(ctx context.Context, w *run.Worker, database string, x *run.Execution) error {
	if w.Due == nil {
		return nil
	}
	at := slices.IndexFunc(w.Databases, func(d *repo.Database) bool { return d.Name == database })
	for _, d := range w.Databases[at+1:] {
		if x != nil {
			<-x.Done
		}
		if s.engine.IsStopping() {
			return nil
		}
		if err := s.engine.Ready(ctx, w); err != nil {
			if _, paused := errors.AsType[*run.WorkerPausedError](err); paused {
				return nil
			}
			return err
		}
		if !w.Due(ctx, d) {
			continue
		}
		now, err := s.engine.Main.Now(ctx)
		if err != nil {
			return err
		}
		if x, _, err = s.startScheduled(ctx, w, run.Run{ID: run.NewID(now)}, d); err != nil {
			return err
		}
	}
	return nil
}

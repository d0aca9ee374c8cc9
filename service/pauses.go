package service

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/spans"
	"github.com/caretaker-go/caretaker/service/status"
)

// minPause and maxPause bound a pause's ttl. A run learns of a pause with its heartbeat. A pause of
// more than a year should last until ResumeWorker.
const minPause, maxPause = time.Second, 365 * 24 * time.Hour

// AllowedTTL describes the valid ttl of a pause.
const AllowedTTL = "must be from 1s to 8760h (365 days): omit the duration for a pause without an end"

// PauseWorker keeps a worker, or every worker with the name [AllWorkers], from starting runs on any
// replica. The pause lasts for ttl or, if ttl is 0, until ResumeWorker. Running runs end after
// their current statement, and so do the jobs that delete for the worker. For all workers, every
// job ends so. It replaces a pause of the same name.
func (s *Service) PauseWorker(ctx context.Context, name, reason, by string, ttl time.Duration) (status.Worker, error) {
	name, reason, by = strings.TrimSpace(name), strings.TrimSpace(reason), strings.TrimSpace(by)
	if err := run.CheckReason(reason); err != nil {
		return status.Worker{}, err
	}
	if ttl != 0 && (ttl < minPause || ttl > maxPause) {
		return status.Worker{}, &fault.InvalidArgumentError{Field: "ttl", Description: AllowedTTL}
	}
	if err := s.pausable(name); err != nil {
		return status.Worker{}, err
	}
	spans.SetTexts(trace.SpanFromContext(ctx), "maintenance.worker", name)
	by = run.TruncateActor(by)
	if err := s.Main.Flags.Pause(ctx, name, reason, by, ttl); err != nil {
		return status.Worker{}, err
	}
	s.Pauses.Invalidate()
	s.Logger.InfoContext(ctx, "worker paused", "worker", name, "by", by, "reason", reason, "ttl", ttl.String())
	return s.pauseStatus(ctx, name, false)
}

// ResumeWorker ends a worker's pause, or with the name [AllWorkers] the pause of all workers.
// Workers with their own pause stay paused. Without a pause nothing changes. by is for the log.
func (s *Service) ResumeWorker(ctx context.Context, name, by string) (status.Worker, error) {
	name = strings.TrimSpace(name)
	if err := s.pausable(name); err != nil {
		return status.Worker{}, err
	}
	ended, err := s.Main.Flags.Resume(ctx, name)
	if err != nil {
		return status.Worker{}, err
	}
	s.Pauses.Invalidate()
	s.Logger.InfoContext(ctx, "worker resumed", "worker", name, "by", run.TruncateActor(strings.TrimSpace(by)))
	return s.pauseStatus(ctx, name, ended)
}

// pausable returns an error for a name that is not a worker or [AllWorkers].
func (s *Service) pausable(name string) error {
	if name == fault.AllWorkers {
		return nil
	}
	_, err := s.Worker(name)
	return err
}

// pauseStatus is the answer of PauseWorker and ResumeWorker. For all workers it has only the pauses.
func (s *Service) pauseStatus(ctx context.Context, name string, ended bool) (status.Worker, error) {
	if name == fault.AllWorkers {
		all, err := s.Main.Flags.Pauses(ctx)
		if err != nil {
			return status.Worker{}, err
		}
		return status.OfPauses(all, ended), nil
	}
	found, err := s.Status(ctx, name)
	if err != nil {
		return status.Worker{}, err
	}
	return found[0], nil
}

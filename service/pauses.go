package service

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/run/spans"
)

// minPause and maxPause bound a pause's ttl. A run learns of a pause with its heartbeat. A pause of
// more than a year should last until ResumeWorker.
const minPause, maxPause = time.Second, 365 * 24 * time.Hour

// AllowedTTL describes the valid ttl of a pause.
const AllowedTTL = "from 1s to 8760h, which is 365 days; leave it out to pause until ResumeWorker"

// PauseWorker keeps a worker, or every worker with the name [AllWorkers], from starting runs on any
// replica. The pause lasts for ttl or, if ttl is 0, until ResumeWorker. Running runs end after
// their current statement, and so do the jobs that delete for the worker. For all workers, every
// job ends so. It replaces a pause of the same name.
func (s *Service) PauseWorker(ctx context.Context, name, reason, by string, ttl time.Duration) (WorkerStatus, error) {
	name, reason, by = strings.TrimSpace(name), strings.TrimSpace(reason), strings.TrimSpace(by)
	if err := run.CheckReason(reason); err != nil {
		return WorkerStatus{}, err
	}
	if ttl != 0 && (ttl < minPause || ttl > maxPause) {
		return WorkerStatus{}, &fault.InvalidArgumentError{Field: "ttl", Description: AllowedTTL}
	}
	if err := s.pausable(name); err != nil {
		return WorkerStatus{}, err
	}
	spans.SetTexts(trace.SpanFromContext(ctx), "maintenance.worker", name)
	by = run.TruncateActor(by)
	if err := s.Main.Flags.Pause(ctx, name, reason, by, ttl); err != nil {
		return WorkerStatus{}, err
	}
	s.Pauses.Invalidate()
	s.Logger.InfoContext(ctx, "worker paused", "worker", name, "by", by, "reason", reason, "ttl", ttl.String())
	return s.pauseStatus(ctx, name)
}

// ResumeWorker ends a worker's pause, or with the name [AllWorkers] the pause of all workers.
// Workers with their own pause stay paused. Without a pause nothing changes. by is for the log.
func (s *Service) ResumeWorker(ctx context.Context, name, by string) (WorkerStatus, error) {
	name = strings.TrimSpace(name)
	if err := s.pausable(name); err != nil {
		return WorkerStatus{}, err
	}
	ended, err := s.Main.Flags.Resume(ctx, name)
	if err != nil {
		return WorkerStatus{}, err
	}
	s.Pauses.Invalidate()
	s.Logger.InfoContext(ctx, "worker resumed", "worker", name, "by", run.TruncateActor(strings.TrimSpace(by)))
	st, err := s.pauseStatus(ctx, name)
	if ended && st.Worker == fault.AllWorkers && st.Paused == nil {
		st.ConditionDetail = "the global pause has ended" + strings.TrimPrefix(st.ConditionDetail, noPauseOfAll)
	}
	return st, err
}

// pausable returns an error for a name that is not a worker or [AllWorkers].
func (s *Service) pausable(name string) error {
	if name == fault.AllWorkers {
		return nil
	}
	_, err := s.Worker(name)
	return err
}

// noPauseOfAll is the status of all workers without a global pause.
const noPauseOfAll = "there is no global pause"

// pauseStatus is the answer of PauseWorker and ResumeWorker. For all workers it has only the pause.
func (s *Service) pauseStatus(ctx context.Context, name string) (WorkerStatus, error) {
	if name != fault.AllWorkers {
		w, err := s.Worker(name)
		if err != nil {
			return WorkerStatus{}, err
		}
		return s.status(ctx, w, func() overview { return s.overview(ctx) }), nil
	}
	all, err := s.Main.Flags.Pauses(ctx)
	if err != nil {
		return WorkerStatus{}, err
	}
	st := WorkerStatus{Worker: fault.AllWorkers, BacklogUnknown: true}
	var alone []string
	for _, p := range all {
		if p.Worker == fault.AllWorkers {
			st.Paused = &p
		} else {
			alone = append(alone, p.Worker)
		}
	}
	individually := "also paused individually: " + strings.Join(alone, ", ")
	st.conclude([]string{when(len(alone) > 0, individually)}, []problem{
		{ConditionPaused, paused(fault.AllWorkers, st.Paused)},
		{ConditionIdle, noPauseOfAll},
	})
	return st, nil
}

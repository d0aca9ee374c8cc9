package service

import (
	"context"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// RunScheduled is what RunDue does with a fire that is due, at a time of the test's choice, and the wait for its run:
// false if another replica has this fire.
func (s *Service) RunScheduled(ctx context.Context, name string, fire time.Time) (record run.Run, ours bool, err error) {
	w, err := s.engine.Worker(name)
	if err != nil {
		return run.Run{}, false, err
	}
	if s.engine.IsStopping() {
		return run.Run{}, false, run.ErrStopping
	}
	id := run.NewID(time.Now())
	if ours, err = s.claimAt(ctx, w, fire, id); err != nil || !ours {
		return run.Run{}, false, err
	}
	x, record, err := s.schedule.StartFire(context.WithoutCancel(ctx), w, fire, id)
	if x != nil {
		record, err = x.Join(ctx, false)
	}
	return record, true, err
}

// claimAt claims a fire as if it were due.
func (s *Service) claimAt(ctx context.Context, w *run.Worker, fire time.Time, id string) (ours bool, err error) {
	begin := fire.Add(-time.Second)
	if err := s.engine.Main.UseLedgers(ctx, []string{w.Name}, []string{w.Config.Schedule}, begin); err != nil {
		return false, err
	}
	for {
		_, ledgers, err := s.engine.Main.Ledgers(ctx, []string{w.Name}, 20*time.Second)
		if err != nil {
			return false, err
		}
		l := ledgers[w.Name]
		until := run.Later(l.AccountedUntil, fire)
		step := repo.LedgerStep{Ledger: l, Cron: w.Config.Schedule, Until: until, Patience: 20 * time.Second}
		ours, err = s.engine.Main.ClaimFire(ctx, step, repo.FireClaim{Time: fire, RunID: id, Replica: s.engine.Replica})
		if err != nil || ours || l.Newest.Equal(fire) {
			return ours, err
		}
	}
}

// DeadlinesOfTurn are the times up to which the databases of a worker may say whether they have something due, as a fire
// looks for the first of them. None has.
func (s *Service) DeadlinesOfTurn(name string) (deadlines []time.Time, err error) {
	w, err := s.engine.Worker(name)
	if err != nil {
		return nil, err
	}
	asked := *w
	asked.Due = func(ctx context.Context, _ *repo.Database) bool {
		deadline, _ := ctx.Deadline()
		deadlines = append(deadlines, deadline)
		return false
	}
	_, err = s.schedule.Turn(context.Background(), &asked, time.Now())
	return deadlines, err
}

// Claim claims a fire and leaves it at that, as a process does that dies before its run has begun.
func (s *Service) Claim(ctx context.Context, name string, fire time.Time) (id string, ours bool, err error) {
	w, err := s.engine.Worker(name)
	if err != nil {
		return "", false, err
	}
	id = run.NewID(time.Now())
	ours, err = s.claimAt(ctx, w, fire, id)
	return id, ours, err
}

// StartClaimed goes on where Claim has left off.
func (s *Service) StartClaimed(ctx context.Context, name string, fire time.Time, id string) (started bool, err error) {
	w, err := s.engine.Worker(name)
	if err != nil {
		return false, err
	}
	x, _, err := s.schedule.StartFire(ctx, w, fire, id)
	return x != nil, err
}

// AddWorker adds a worker of the test's making to the list.
func (s *Service) AddWorker(w *run.Worker) error { return s.engine.Add(w) }

package service

import (
	"context"
	"errors"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service/run"
)

// Fires are a ledger: a row of maintenance.fires for every fire of a schedule, with what became of
// it. main's clock decides what is due and a row who runs it; the clocks of the replicas only wait.
//
//  1. Every replica looks at the ledger every few seconds, with one query for all workers. A full
//     minute that is about to begin is waited for, so that a fire is late by milliseconds, whatever
//     the phase of the replica's clock.
//  2. One statement records what was missed: fires older than the grace that nobody has claimed,
//     and claims that have led to no run for claimPatience, because their replica died.
//  3. One statement claims a fire: the newest that is due, or else the newest of all if it was
//     missed and the worker catches up, or was abandoned within its grace. So however many were
//     missed, one run makes up for them.
//  4. Both move the ledger on, or lock it, and change nothing if another replica has moved it since
//     it was read.
//  5. A claim carries the id of its run. Run and outcome are written in one statement, so a claim
//     has no run.
//
// A fire that was skipped was decided about: it is not caught up. A worker that no replica uses has
// no ledger, and no fires: see schedule_use.go.

const (
	// fireGrace is how late a fire may be without being missed: less than the shortest time between
	// two fires.
	fireGrace = time.Minute
	// claimPatience is how long a replica may take from its claim to the record of the run: a few
	// small statements.
	claimPatience = 20 * time.Second
	// lookAhead is how long before a fire it is waited for, at least as long as the time between
	// two looks.
	lookAhead = 5 * time.Second
	// ledgerRounds are how many statements one look may need to account for the fires of a worker
	// after a long pause, each of at most ledgerBatch fires. The rest is for the next look.
	ledgerRounds, ledgerBatch = 50, 1000
)

// Reasons of fires.
const (
	reasonAbandoned = "ABANDONED"
	reasonTakenOver = "TAKEN_OVER"
	reasonCaughtUp  = "CAUGHT_UP"
)

// RunDue starts the runs of the fires that are due, as far as no other replica does, and records
// those that were missed. It does not wait for the runs. The scheduler calls it every few seconds,
// lookAhead apart at most, one call at a time.
//
// It returns when there is nothing to do within lookAhead, with [ErrStopping], or with the first
// error of main.
func (s *Service) RunDue(ctx context.Context) error {
	for {
		wait, err := s.lookAtFires(ctx)
		if ctx.Err() == nil && !errors.Is(err, run.ErrStopping) {
			s.pulse.beat(s.failing(ctx, err))
		}
		if err != nil || wait > lookAhead {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.engine.Stopping:
		case <-time.After(wait):
		}
	}
}

// lookAtFires does what is due and says how long it is until the next fire.
func (s *Service) lookAtFires(ctx context.Context) (wait time.Duration, err error) {
	if s.engine.IsStopping() {
		return 0, run.ErrStopping
	}
	now, ledgers, err := s.engine.Main.Ledgers(ctx, s.workerNames(), claimPatience)
	if err != nil {
		return 0, err
	}
	// What has been claimed must not depend on whether the scheduler is stopped in this moment.
	lasting := context.WithoutCancel(ctx)
	wait = 2 * lookAhead
	watched := s.unused.watched(now)
	var used, crons []string
	var errs []error
	for _, w := range s.engine.Workers {
		schedule, err := run.ParseSchedule(w.Config.Schedule)
		if err != nil {
			return 0, err
		}
		l := &ledgerLook{service: s, worker: w, schedule: schedule, now: now, ledger: ledgers[w.Name]}
		uses, err := l.uses(lasting, watched)
		if err == nil && uses {
			err = l.settle(lasting)
		}
		if errors.Is(err, run.ErrUnreachable) {
			return 0, err
		}
		errs = append(errs, err)
		if !uses {
			continue
		}
		if now.Sub(l.ledger.UsedAt) >= useInterval {
			used, crons = append(used, w.Name), append(crons, w.Config.Schedule)
		}
		if next := schedule.Next(now.UTC()); !next.IsZero() {
			wait = min(wait, next.Sub(now))
		}
	}
	if len(used) > 0 {
		errs = append(errs, s.engine.Main.UseLedgers(lasting, used, crons, now))
	}
	if !s.inBackground(func() { s.engine.Prune(lasting) }) {
		return 0, run.ErrStopping
	}
	return wait, errors.Join(errs...)
}

// inBackground calls do in a goroutine that Shutdown waits for, or says that it is too late.
func (s *Service) inBackground(do func()) bool {
	s.engine.Mu.Lock()
	defer s.engine.Mu.Unlock()
	if !s.engine.Stopped {
		s.engine.Background.Go(do)
	}
	return !s.engine.Stopped
}

// ledgerLook is one worker's part of looking at the ledger.
type ledgerLook struct {
	service  *Service
	worker   *run.Worker
	schedule cron.Schedule
	now      time.Time
	ledger   repo.Ledger
}

// begun says whether there is a ledger. The first start of all misses nothing.
func (l *ledgerLook) begun() bool { return !l.ledger.AccountedUntil.IsZero() }

// settle records the fires that were missed up to now, then claims one and starts its run if there
// is to be one. If another replica has moved the ledger on, all is in that one's hands.
func (l *ledgerLook) settle(ctx context.Context) error {
	for range ledgerRounds {
		d := l.dues()
		switch {
		case d.idle():
			return nil
		case !d.misses():
			return l.claim(ctx, d)
		}
		if moved, err := l.miss(ctx, d); err != nil || !moved {
			return err
		}
	}
	return nil
}

func (l *ledgerLook) step(until time.Time) repo.LedgerStep {
	return repo.LedgerStep{Ledger: l.ledger, Cron: l.worker.Config.Schedule, Until: until, Patience: claimPatience}
}

// miss records missed fires, counts them, and says what is worth a warning.
func (l *ledgerLook) miss(ctx context.Context, d dues) (moved bool, err error) {
	missed := repo.Missed{Passed: d.missed, Reason: reasonAbandoned}
	if d.reason != "" {
		missed.Kept = d.claim
	}
	moved, passed, abandoned, err := l.service.engine.Main.MissFires(ctx, l.step(d.until), missed)
	if err != nil || !moved {
		return false, err
	}
	log := l.service.engine.Logger.With("worker", l.worker.Name)
	if d.until.Before(l.ledger.AccountedUntil) {
		log.WarnContext(ctx, "clock of main was set back, fires go on by the new time",
			"accounted_until", l.ledger.AccountedUntil, "now", l.now)
	}
	if passed > 0 {
		log.WarnContext(ctx, "fires missed: nobody ran them at their time",
			"fires", passed, "first", d.missed[0], "last", d.until)
	}
	if abandoned > 0 {
		log.WarnContext(ctx, "fires missed: the replica that had claimed them died", "fires", abandoned)
	}
	if n := passed + abandoned; n > 0 {
		l.service.engine.Metrics.AddFires(ctx, l.worker.Name, repo.FireMissed, n)
	}
	l.ledger.Cron, l.ledger.AccountedUntil, l.ledger.Abandoned = l.worker.Config.Schedule, d.until, false
	if len(d.missed) > 0 {
		l.ledger.Newest, l.ledger.Outcome, l.ledger.NewestAbandoned = d.until, repo.FireMissed, false
	}
	return true, nil
}

// claim takes a fire and starts its run, on one replica alone.
func (l *ledgerLook) claim(ctx context.Context, d dues) error {
	s, until := l.service, d.until
	if d.reason == "" {
		until = d.claim
	}
	c := repo.FireClaim{Time: d.claim, Reason: d.reason, RunID: run.NewID(l.now), Replica: s.engine.Replica}
	ours, err := s.engine.Main.ClaimFire(ctx, l.step(until), c)
	if err != nil || !ours {
		return err
	}
	if d.reason != "" {
		s.engine.Logger.InfoContext(ctx, "fire taken over", "worker", l.worker.Name, "fire", d.claim,
			"reason", d.reason, "late_seconds", l.now.Sub(d.claim).Seconds())
	}
	s.startInBackground(ctx, l.worker, d.claim, c.RunID)
	return nil
}

func (s *Service) workerNames() []string {
	names := make([]string, len(s.engine.Workers))
	for i, w := range s.engine.Workers {
		names[i] = w.Name
	}
	return names
}

// ResumeRuns starts a run of each worker whose last one died, its lease expired, or ended early to spare the database, and
// left work that must not wait for the schedule. The scheduler calls it every half a minute.
func (s *Service) ResumeRuns(ctx context.Context) error {
	// What died before it worked is then for RunDue to take over.
	errs := []error{s.engine.Main.GiveBackDeadFires(ctx, s.workerNames()), s.engine.CloseAbandoned(ctx)}
	for _, w := range s.engine.Workers {
		if w.Config.Disabled() {
			continue
		}
		reason, err := s.engine.Unfinished(ctx, w)
		if err == nil && reason != "" {
			_, err = s.engine.Resume(ctx, w, reason)
		}
		if !run.MustWait(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

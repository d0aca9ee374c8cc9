package service

import (
	"context"
	"errors"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/caretaker-go/caretaker/repo"
)

// Fires are a ledger: a row of maintenance.fires for every fire of a schedule, with what became of it. main's clock
// decides what is due and a row who runs it; the clocks of the replicas only wait.
//
//  1. Every replica looks at the ledger every few seconds, with one query for all workers. A full minute that is about
//     to begin is waited for, so that a fire is late by milliseconds, whatever the phase of the replica's clock.
//  2. The newest fire that is due is claimed, unless it is older than the grace. Older ones that nobody has claimed are
//     recorded as missed. One statement does both on one replica alone.
//  3. If the newest fire of all is a missed one and the worker catches up, it is claimed all the same. So however many
//     were missed, one run makes up for them, and a fire that is due at that time is the one.
//  4. A claim carries the id of its run. Run and outcome are written in one statement: a claim that is still one after
//     claimPatience belongs to a replica that died, and is missed, or taken over like a missed one.
//
// A fire that was skipped was decided about: it is not caught up. A worker that no replica uses has no ledger, and no
// fires: see schedule_use.go.

const (
	// fireGrace is how late a fire may be without being missed: less than the shortest time between two fires.
	fireGrace = time.Minute
	// claimPatience is how long a replica may take from its claim to the record of the run: a few small statements.
	claimPatience = 20 * time.Second
	// lookAhead is how long before a fire it is waited for, at least as long as the time between two looks.
	lookAhead = 5 * time.Second
	// ledgerRounds are how many statements one look may need to account for the fires of a worker after a long pause,
	// each of at most ledgerBatch fires. The rest is for the next look.
	ledgerRounds, ledgerBatch = 50, 1000
)

// Reasons of fires.
const (
	reasonAbandoned = "ABANDONED"
	reasonTakenOver = "TAKEN_OVER"
	reasonCaughtUp  = "CAUGHT_UP"
)

// RunDue starts the runs of the fires that are due, as far as no other replica does, and records those that were missed.
// It does not wait for the runs. The scheduler calls it every few seconds, lookAhead apart at most, one call at a time.
//
// It returns when there is nothing to do within lookAhead, with [ErrStopping], or with the first error of main.
func (s *Service) RunDue(ctx context.Context) error {
	for {
		wait, err := s.lookAtFires(ctx)
		if ctx.Err() == nil && !errors.Is(err, ErrStopping) {
			s.pulse.beat(s.failing(ctx, err))
		}
		if err != nil || wait > lookAhead {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.stopping:
		case <-time.After(wait):
		}
	}
}

// lookAtFires does what is due and says how long it is until the next fire.
func (s *Service) lookAtFires(ctx context.Context) (wait time.Duration, err error) {
	if s.isStopping() {
		return 0, ErrStopping
	}
	now, ledgers, err := s.main.Ledgers(ctx, s.workerNames(), claimPatience)
	if err != nil {
		return 0, err
	}
	// What has been claimed must not depend on whether the scheduler is stopped in this moment.
	lasting := context.WithoutCancel(ctx)
	wait = 2 * lookAhead
	var used []string
	var errs []error
	for _, w := range s.workers {
		schedule, err := ParseSchedule(w.config.Schedule)
		if err != nil {
			return 0, err
		}
		l := &ledgerLook{service: s, worker: w, schedule: schedule, now: now, ledger: ledgers[w.name]}
		uses, err := l.uses(lasting)
		if err == nil && uses {
			err = l.settle(lasting)
		}
		if errors.Is(err, ErrUnreachable) {
			return 0, err
		}
		errs = append(errs, err)
		if !uses {
			continue
		}
		if now.Sub(l.ledger.UsedAt) >= useInterval {
			used = append(used, w.name)
		}
		if next := schedule.Next(now.UTC()); !next.IsZero() {
			wait = min(wait, next.Sub(now))
		}
	}
	if len(used) > 0 {
		errs = append(errs, s.main.UseLedgers(lasting, used))
	}
	if !s.inBackground(func() { s.prune(lasting) }) {
		return 0, ErrStopping
	}
	return wait, errors.Join(errs...)
}

// inBackground calls do in a goroutine that Shutdown waits for, or says that it is too late.
func (s *Service) inBackground(do func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.background.Go(do)
	}
	return !s.stopped
}

// ledgerLook is one worker's part of looking at the ledger.
type ledgerLook struct {
	service  *Service
	worker   *worker
	schedule cron.Schedule
	now      time.Time
	ledger   repo.Ledger
}

// settle brings the worker's ledger up to now and starts a run if there is to be one.
func (l *ledgerLook) settle(ctx context.Context) error {
	if l.ledger.AccountedUntil.IsZero() {
		// The first start of all misses nothing.
		return l.service.main.OpenLedger(ctx, l.worker.name, l.worker.config.Schedule, l.now)
	}
	for range ledgerRounds {
		d := l.dues()
		if d.idle() {
			return l.catchUp(ctx)
		}
		moved, err := l.account(ctx, d)
		if err != nil || !moved || !d.claim.IsZero() {
			return err
		}
	}
	return nil
}

// account writes what becomes of fires and starts the run of the one that is claimed. If another replica has moved the
// ledger, all is in that one's hands: false.
func (l *ledgerLook) account(ctx context.Context, d dues) (moved bool, err error) {
	s := l.service
	a := repo.Accounting{
		Ledger: l.ledger, Cron: l.worker.config.Schedule, Until: d.until, Passed: d.passed, Claim: d.claim, Replica: s.replica,
	}
	if !d.claim.IsZero() {
		a.RunID = newID(l.now)
	}
	done, err := s.main.AccountFires(ctx, a)
	if err != nil || !done.Moved {
		return false, err
	}
	l.record(ctx, a, done.Passed)
	if n := len(d.passed); n > 0 {
		l.ledger.Newest, l.ledger.Outcome, l.ledger.NewestAbandoned = d.passed[n-1], repo.FireMissed, false
	}
	l.ledger.Cron, l.ledger.AccountedUntil = a.Cron, a.Until
	if done.Claimed {
		s.startInBackground(ctx, l.worker, d.claim, a.RunID)
	}
	return true, nil
}

// record counts n fires that were missed, and says what is worth a warning.
func (l *ledgerLook) record(ctx context.Context, a repo.Accounting, n int) {
	log := l.service.logger.With("worker", l.worker.name)
	if a.Until.Before(a.Ledger.AccountedUntil) {
		log.WarnContext(ctx, "clock of main was set back, fires go on by the new time", "accounted_until", a.Ledger.AccountedUntil, "now", l.now)
	}
	if n == 0 {
		return
	}
	l.service.metrics.addFires(ctx, l.worker.name, repo.FireMissed, n)
	log.WarnContext(ctx, "fires missed: nobody ran them at their time", "fires", n, "first", a.Passed[0], "last", a.Passed[len(a.Passed)-1])
}

// catchUp takes over the newest fire if it was missed or abandoned and may still run, and records what else is abandoned.
func (l *ledgerLook) catchUp(ctx context.Context) error {
	s := l.service
	late := l.now.Sub(l.ledger.Newest)
	reason, kept := "", time.Time{}
	switch {
	case l.ledger.NewestAbandoned && late < fireGrace:
		reason = reasonTakenOver
	case l.worker.catchesUp() && (l.ledger.NewestAbandoned || l.ledger.Outcome == repo.FireMissed):
		reason = reasonCaughtUp
	}
	if reason != "" {
		kept = l.ledger.Newest
		if why, err := s.notUsed(ctx, l.worker); err == nil && why != "" {
			reason = "" // It is for a replica that uses the worker.
		}
	}
	if reason != "" {
		id := newID(l.now)
		ours, err := s.main.TakeOverFire(ctx, l.ledger, claimPatience, reason, id, s.replica)
		if err != nil {
			return err
		}
		if ours {
			s.logger.InfoContext(ctx, "fire taken over", "worker", l.worker.name, "fire", kept, "reason", reason, "late_seconds", late.Seconds())
			s.startInBackground(ctx, l.worker, kept, id)
		}
	}
	if !l.ledger.Abandoned {
		return nil
	}
	n, err := s.main.MissAbandonedFires(ctx, l.worker.name, claimPatience, kept, reasonAbandoned)
	if err == nil && n > 0 {
		s.metrics.addFires(ctx, l.worker.name, repo.FireMissed, n)
		s.logger.WarnContext(ctx, "fires missed: the replica that had claimed them died", "worker", l.worker.name, "fires", n)
	}
	return err
}

func (s *Service) workerNames() []string {
	names := make([]string, len(s.workers))
	for i, w := range s.workers {
		names[i] = w.name
	}
	return names
}

package schedule

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
)

const (
	// fireGrace is how late a fire may start before it counts as missed. It is below the shortest
	// time between two fires.
	fireGrace = time.Minute
	// lookAhead is how long before a fire the scheduler waits for it: at least the time between two
	// checks.
	lookAhead = 5 * time.Second
	// ledgerRounds is the maximum number of statements in one check to account for a worker's fires
	// after a long pause. Each is for at most ledgerBatch fires. The next check does the others.
	ledgerRounds, ledgerBatch = 50, 1000
)

// reasonCaughtUp is the reason of a missed fire that ran later.
const reasonCaughtUp = "CAUGHT_UP"

// Dispatcher starts the scheduled runs. Any goroutine may call its methods.
type Dispatcher struct {
	runner    *run.Runner
	heartbeat heartbeat
	unused    unused
}

// New makes a Dispatcher for the workers of a Runner, without connecting.
func New(r *run.Runner) *Dispatcher {
	d := &Dispatcher{runner: r, unused: unused{why: map[string]string{}}}
	d.heartbeat.record(nil)
	return d
}

// RunDue starts the runs of the due fires unless another replica does, and records missed fires. It
// does not wait for the runs. The scheduler calls it every few seconds, at most lookAhead apart,
// one call at a time.
//
// It returns when no fire is due within lookAhead, with [fault.ErrStopping], or with the first
// error of main.
func (d *Dispatcher) RunDue(ctx context.Context) error {
	for {
		wait, err := d.check(ctx)
		if ctx.Err() == nil && !errors.Is(err, fault.ErrStopping) {
			d.heartbeat.record(err)
		}
		if err != nil || wait > lookAhead {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-d.runner.Active.Stopping:
		case <-time.After(wait):
		}
	}
}

// check handles the due fires and returns the time until the next one.
func (d *Dispatcher) check(ctx context.Context) (wait time.Duration, err error) {
	if d.runner.Active.IsStopping() {
		return 0, fault.ErrStopping
	}
	now, ledgers, err := d.runner.Main.Fires.Ledgers(ctx, d.ledgerNames())
	if err != nil {
		return 0, err
	}
	// A scheduler that stops now must not stop the run of a fire.
	lasting := context.WithoutCancel(ctx)
	wait = 2 * lookAhead
	used, crons := []string{}, []string{}
	var errs []error
	for _, w := range d.runner.Workers {
		schedule, err := run.ParseSchedule(w.Config.Schedule)
		if err != nil {
			return 0, err
		}
		t := &workerTick{Dispatcher: d, worker: w, schedule: schedule, now: now, ledger: ledgers[w.Name]}
		if !t.isUsed(lasting) {
			continue
		}
		if err = t.process(lasting); errors.Is(err, fault.ErrUnreachable) {
			return 0, err
		}
		errs = append(errs, err)
		if now.Sub(t.ledger.UsedAt) >= useInterval {
			used, crons = append(used, w.Name), append(crons, w.Config.Schedule)
		}
		if next := schedule.Next(now.UTC()); !next.IsZero() {
			wait = min(wait, next.Sub(now))
		}
	}
	if len(used) > 0 || now.Sub(ledgers[""].UsedAt) >= useInterval {
		errs = append(errs, d.runner.Main.Fires.UseLedgers(lasting, used, crons, now))
	}
	if !d.runner.Active.Go(func() { d.runner.History.Prune(lasting) }) {
		return 0, fault.ErrStopping
	}
	return wait, errors.Join(errs...)
}

// ledgerNames includes the ledger without a worker, which belongs to all servers.
func (d *Dispatcher) ledgerNames() []string {
	names := []string{""}
	for _, w := range d.runner.Workers {
		names = append(names, w.Name)
	}
	return names
}

// workerTick is the part of a check for one worker.
type workerTick struct {
	*Dispatcher
	worker   *run.Worker
	schedule cron.Schedule
	now      time.Time
	ledger   control.Ledger
}

// hasLedger: the very first start misses no fires.
func (t *workerTick) hasLedger() bool { return !t.ledger.AccountedUntil.IsZero() }

// process records the missed fires, then claims one and starts its run if it is due. If another
// replica has advanced the ledger, that one continues.
func (t *workerTick) process(ctx context.Context) error {
	for range ledgerRounds {
		due := t.nextAction()
		switch {
		case due.nothing():
			return nil
		case !due.advances:
			return t.start(ctx, due)
		}
		if advanced, err := t.recordMissed(ctx, due); err != nil || !advanced {
			return err
		}
	}
	return nil
}

// step returns the ledger's advance to until. reason is that of a claimed fire that is not simply
// due, or why a fire gets no run.
func (t *workerTick) step(until time.Time, reason string) *control.LedgerStep {
	return &control.LedgerStep{
		Ledger: t.ledger, Cron: t.worker.Config.Schedule, Until: until, Reason: reason,
	}
}

// recordMissed records and counts missed fires, and logs those worth a warning.
func (t *workerTick) recordMissed(ctx context.Context, due dueFires) (advanced bool, err error) {
	advanced, missed, err := t.runner.Main.Fires.MissFires(ctx, *t.step(due.until, ""), due.missed)
	if err != nil || !advanced {
		return false, err
	}
	log := t.runner.Logger.With("worker", t.worker.Name)
	if due.until.Before(t.ledger.AccountedUntil) {
		log.WarnContext(ctx, "clock on main moved backwards",
			"accounted_until", t.ledger.AccountedUntil, "now", t.now)
	}
	if missed > 0 {
		log.WarnContext(ctx, "scheduled runs missed",
			"fires", missed, "first", due.missed[0], "last", due.until)
		t.runner.Metrics.AddFires(ctx, t.worker.Name, control.FireMissed, missed)
	}
	t.ledger.Cron, t.ledger.AccountedUntil = t.worker.Config.Schedule, due.until
	if len(due.missed) > 0 {
		t.ledger.Newest, t.ledger.Outcome = due.until, control.FireMissed
	}
	return true, nil
}

// ResumeRuns starts a run of each worker with work that must not wait for the schedule. Its last
// run died and its lease expired, or the load ended it early. The scheduler calls it every 30
// seconds.
func (d *Dispatcher) ResumeRuns(ctx context.Context) error {
	errs := []error{d.runner.CloseAbandoned(ctx)}
	for _, w := range d.runner.Workers {
		if w.Config.Disabled() {
			continue
		}
		reason, err := d.runner.Unfinished(ctx, w)
		if err == nil && reason != "" {
			_, err = d.runner.RunBatch(ctx, run.Continue(w, reason))
		}
		if !fault.IsTemporary(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// heartbeat guards the scheduler's last heartbeat.
type heartbeat struct {
	mu sync.Mutex
	Heartbeat
}

// Heartbeat is the state of the scheduler, by the host's clock.
type Heartbeat struct {
	// At is the last check for due fires.
	At time.Time
	// Err is what prevents the check, or nil. FailingSince is when that started.
	Err          error
	FailingSince time.Time
}

// record records that the scheduler is alive, and what keeps it from starting runs.
func (h *heartbeat) record(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	h.At, h.Err = time.Now(), err
	switch {
	case err == nil:
		h.FailingSince = time.Time{}
	case h.FailingSince.IsZero():
		h.FailingSince = h.At
	}
}

// Heartbeat returns the last one.
func (d *Dispatcher) Heartbeat() Heartbeat {
	d.heartbeat.mu.Lock()
	defer d.heartbeat.mu.Unlock()
	return d.heartbeat.Heartbeat
}

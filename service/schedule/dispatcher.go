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
	// fireGrace is how late a fire may be without being missed: less than the shortest time between
	// two fires.
	fireGrace = time.Minute
	// lookAhead is how long before a fire it is waited for, at least as long as the time between
	// two checks.
	lookAhead = 5 * time.Second
	// ledgerRounds are how many statements one check may need to account for the fires of a worker
	// after a long pause, each of at most ledgerBatch fires. The rest is for the next check.
	ledgerRounds, ledgerBatch = 50, 1000
)

// reasonCaughtUp is the reason of a fire that was missed and ran later.
const reasonCaughtUp = "CAUGHT_UP"

// Dispatcher starts the runs of the schedules. Its methods may be called from any goroutine.
type Dispatcher struct {
	runner    *run.Runner
	heartbeat heartbeat
	unused    unused
}

// New makes a Dispatcher for the workers of a Runner. It does not connect.
func New(r *run.Runner) *Dispatcher {
	d := &Dispatcher{runner: r, unused: unused{why: map[string]string{}}}
	d.heartbeat.record(nil)
	return d
}

// RunDue starts the runs of the fires that are due, as far as no other replica does, and records
// those that were missed. It does not wait for the runs. The scheduler calls it every few seconds,
// lookAhead apart at most, one call at a time.
//
// It returns when there is nothing to do within lookAhead, with [fault.ErrStopping], or with the
// first error of main.
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

// check does what is due and returns how long it is until the next fire.
func (d *Dispatcher) check(ctx context.Context) (wait time.Duration, err error) {
	if d.runner.Active.IsStopping() {
		return 0, fault.ErrStopping
	}
	now, ledgers, err := d.runner.Main.Fires.Ledgers(ctx, d.ledgerNames())
	if err != nil {
		return 0, err
	}
	// The run of a fire must not depend on whether the scheduler is stopped in this moment.
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

// ledgerNames: the ledger without a worker is of all servers.
func (d *Dispatcher) ledgerNames() []string {
	names := []string{""}
	for _, w := range d.runner.Workers {
		names = append(names, w.Name)
	}
	return names
}

// workerTick is one worker's part of a check.
type workerTick struct {
	*Dispatcher
	worker   *run.Worker
	schedule cron.Schedule
	now      time.Time
	ledger   control.Ledger
}

// hasLedger: the first start of all misses nothing.
func (t *workerTick) hasLedger() bool { return !t.ledger.AccountedUntil.IsZero() }

// process records the fires that were missed up to now, then claims one and starts its run if there
// is to be one. If another replica has advanced the ledger, that one does the rest.
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

func (t *workerTick) step(until time.Time, reason string) *control.LedgerStep {
	return &control.LedgerStep{
		Ledger: t.ledger, Cron: t.worker.Config.Schedule, Until: until, Reason: reason,
	}
}

// recordMissed records missed fires, counts them, and logs what is worth a warning.
func (t *workerTick) recordMissed(ctx context.Context, due dueFires) (advanced bool, err error) {
	advanced, missed, err := t.runner.Main.Fires.MissFires(ctx, *t.step(due.until, ""), due.missed)
	if err != nil || !advanced {
		return false, err
	}
	log := t.runner.Logger.With("worker", t.worker.Name)
	if due.until.Before(t.ledger.AccountedUntil) {
		log.WarnContext(ctx, "clock of main was set back, fires continue with the new time",
			"accounted_until", t.ledger.AccountedUntil, "now", t.now)
	}
	if missed > 0 {
		log.WarnContext(ctx, "missed fires",
			"fires", missed, "first", due.missed[0], "last", due.until)
		t.runner.Metrics.AddFires(ctx, t.worker.Name, control.FireMissed, missed)
	}
	t.ledger.Cron, t.ledger.AccountedUntil = t.worker.Config.Schedule, due.until
	if len(due.missed) > 0 {
		t.ledger.Newest, t.ledger.Outcome = due.until, control.FireMissed
	}
	return true, nil
}

// ResumeRuns starts a run of each worker whose last one died, its lease expired, or ended early
// because of the load, and left work that must not wait for the schedule. The scheduler calls it
// every half a minute.
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

// heartbeat guards the scheduler's last one.
type heartbeat struct {
	mu sync.Mutex
	Heartbeat
}

// Heartbeat is how the scheduler fares, by the host's clock.
type Heartbeat struct {
	// At is when it last checked what is due.
	At time.Time
	// Err is what kept it from that, nil if nothing did, FailingSince since when something does.
	Err          error
	FailingSince time.Time
}

// record notes that the scheduler is alive, and what keeps it from starting runs.
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

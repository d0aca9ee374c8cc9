package schedule

import (
	"time"

	"github.com/caretaker-go/caretaker/repo/control"
)

// dueFires are the next actions for a worker's fires. Zero means nothing to do.
type dueFires struct {
	// missed fires have no row yet, and get no run.
	missed []time.Time
	// until is the new end of the accounted time. advances: that or the schedule changes.
	until    time.Time
	advances bool
	// fire gets a run. reason is why, if it is not simply due.
	fire   time.Time
	reason string
}

// nothing reports whether no fire is due and the ledger stays where it is.
func (d dueFires) nothing() bool { return !d.advances && d.fire.IsZero() }

// minAccounted is the minimum time back for which fires are accounted, with any retention. An
// outage of one night must not cost a daily worker its run.
const minAccounted = 48 * time.Hour

// nextAction returns the actions for the fires from the end of the ledger to now, at most
// ledgerBatch.
func (t *workerTick) nextAction() (d dueFires) {
	if !t.hasLedger() {
		return d
	}
	d.until, d.advances = t.begin()
	at := t.schedule.Next(d.until.UTC())
	for !at.IsZero() && !at.After(t.now) && len(d.missed) < ledgerBatch {
		d.missed = append(d.missed, at)
		at = t.schedule.Next(at)
	}
	if n := len(d.missed); n > 0 && t.now.Sub(d.missed[n-1]) < fireGrace {
		d.missed, d.fire = d.missed[:n-1], d.missed[n-1]
	}
	if n := len(d.missed); n > 0 {
		d.until, d.advances = d.missed[n-1], true
	} else if d.fire.IsZero() && t.worker.CatchesUp() && t.ledger.Outcome == control.FireMissed {
		d.fire, d.reason = t.ledger.Newest, reasonCaughtUp
	}
	return d
}

// begin returns the time from which fires without a row are expected, and whether it differs from
// the end of the ledger.
func (t *workerTick) begin() (from time.Time, advances bool) {
	from = t.ledger.AccountedUntil
	if from.After(t.now.Add(fireGrace)) {
		// main's clock was ahead and was set back. Fires that ran meanwhile have rows and do not
		// run again.
		return t.now, true
	}
	if t.ledger.Cron != t.worker.Config.Schedule {
		// This schedule expected no fires yet. The last fire of the previous schedule is not lost
		// if replicas with both schedules are running.
		from, advances = latest(from, t.now.Add(-fireGrace)), true
	}
	oldest := t.now.Add(-max(t.runner.History.Keep, minAccounted))
	if next := t.schedule.Next(oldest.UTC()); next.IsZero() || next.After(t.now) {
		// The newest fire of a rare schedule is older, and may have to be caught up.
		return from, advances
	}
	return latest(from, oldest), advances
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

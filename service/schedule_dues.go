package service

import "time"

// dues are the fires of a worker that have no row yet, and what is to become of them.
type dues struct {
	// passed get no run; claim does, unless it is zero.
	passed []time.Time
	claim  time.Time
	// until is how far the ledger is then accounted for; zero: nothing is to be done.
	until time.Time
}

// lookBack is how far back fires are accounted for at least, however short the history is: a night that nobody was at work
// must not cost a daily worker its day.
const lookBack = 48 * time.Hour

func (p dues) idle() bool { return p.until.IsZero() }

// dues are the fires from where the ledger ends to now, the first ledgerBatch of them.
func (l *ledgerLook) dues() dues {
	from, moved := l.begin()
	var p dues
	if moved {
		p.until = from
	}
	for at := l.schedule.Next(from.UTC()); !at.IsZero() && !at.After(l.now); at = l.schedule.Next(at) {
		if len(p.passed) == ledgerBatch {
			return p
		}
		p.passed, p.until = append(p.passed, at), at
	}
	if n := len(p.passed); n > 0 && l.now.Sub(p.until) < fireGrace {
		p.passed, p.claim = p.passed[:n-1], p.until
	}
	return p
}

// begin is from when on fires are expected that have no row, and whether that is not where the ledger ends.
func (l *ledgerLook) begin() (from time.Time, moved bool) {
	from = l.ledger.AccountedUntil
	if from.After(l.now.Add(fireGrace)) {
		// main's clock was ahead and has been set back. Fires that ran meanwhile have rows and do not run again.
		return l.now, true
	}
	if l.ledger.Cron != l.worker.config.Schedule {
		// Nothing was expected by this schedule. Its last fire is not lost if replicas with both schedules are at work.
		from, moved = later(from, l.now.Add(-fireGrace)), true
	}
	oldest := l.now.Add(-max(l.service.historyKeep, lookBack))
	if next := l.schedule.Next(oldest.UTC()); next.IsZero() || next.After(l.now) {
		// The newest fire of a rare schedule is older, and may have to be caught up.
		return from, moved
	}
	return later(from, oldest), moved
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

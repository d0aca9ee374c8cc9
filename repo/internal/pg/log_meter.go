package pg

import (
	"slices"
	"sync"
	"time"
)

// A rate is over minRateTime at least, so that one statement of ours is no load, and maxRateTime at
// most.
const minRateTime, maxRateTime = 2 * time.Second, 10 * time.Second

// logMeter remembers positions of the log. It needs no clock but ours, and nothing has to be written
// for it.
type logMeter struct {
	mu sync.Mutex
	// unreplayed are positions not yet replayed, the oldest first. The distance between two is a
	// 16th of the lag at least, so there are few, and a constant lag stays nearly constant.
	unreplayed []logMark
	// rated is the position from which the next rate is counted.
	rated logMark
	rate  int64
}

type logMark struct {
	lsn int64
	at  time.Time
}

// observe takes where primary and replica stand now. It returns for how long, at least, something
// has not been replayed, and the bytes written a second.
func (m *logMeter) Observe(written, replayed int64, at time.Time) (lag time.Duration, rate int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := logMark{written, at}
	m.unreplayed = slices.DeleteFunc(m.unreplayed, func(o logMark) bool {
		return o.lsn <= replayed || o.lsn > written
	})
	if n := len(m.unreplayed); n > 0 {
		lag = at.Sub(m.unreplayed[0].at)
		if last := m.unreplayed[n-1]; last.lsn < written && at.Sub(last.at) >= lag/16 {
			m.unreplayed = append(m.unreplayed, now)
		}
	} else if written > replayed {
		m.unreplayed = append(m.unreplayed, now)
	}
	switch took := at.Sub(m.rated.at); {
	case took > maxRateTime, m.rated.lsn > written:
		// The last probe is too old, another server has taken over, or this is a standby now.
		m.rated, m.rate = now, 0
	case took >= minRateTime:
		m.rate = int64(float64(written-m.rated.lsn) / took.Seconds())
		m.rated = now
	}
	return lag, m.rate
}

package pg

import (
	"slices"
	"sync"
	"time"
)

// A rate covers at least minRateTime, so that one statement of ours is no load, and at most
// maxRateTime.
const minRateTime, maxRateTime = 2 * time.Second, 10 * time.Second

// logMeter remembers positions of the log. It needs only our clock, and writes nothing.
type logMeter struct {
	mu sync.Mutex
	// unreplayed are positions not yet replayed, the oldest first. The distance between two is at
	// least 1/16 of the lag, so there are few, and a constant lag stays nearly constant.
	unreplayed []logMark
	// rated is the start of the next rate.
	rated logMark
	rate  int64
}

type logMark struct {
	lsn int64
	at  time.Time
}

// Observe takes the current positions of primary and replica. It returns the minimum age of the
// unreplayed log, and the bytes written per second.
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

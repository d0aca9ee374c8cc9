package repo

import (
	"sync"
	"time"
)

// largeLag is from where on a replica's own word counts: so much is no trifle that an idle primary has just written.
const largeLag = 16 << 20

// lagMeter remembers when the log stood where, and so knows for how long something has not been replayed. It needs no
// clock but ours, and nothing has to be written for it.
type lagMeter struct {
	mu    sync.Mutex
	marks []lagMark
}

type lagMark struct {
	lsn int64
	at  time.Time
}

// maxLagMarks bounds what a meter remembers; beyond it only every other mark stays.
const maxLagMarks = 256

// observe notes where primary and replica stand, and returns the age of the oldest mark that is not replayed.
func (m *lagMeter) observe(written, replayed int64, at time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.marks) > 0 && m.marks[0].lsn <= replayed {
		m.marks = m.marks[1:]
	}
	if n := len(m.marks); written > replayed && (n == 0 || m.marks[n-1].lsn < written) {
		m.marks = append(m.marks, lagMark{written, at})
	}
	if n := len(m.marks); n > maxLagMarks {
		kept := make([]lagMark, 0, n)
		for i := 0; i < n; i += 2 {
			kept = append(kept, m.marks[i])
		}
		m.marks = kept
	}
	if len(m.marks) == 0 {
		return 0
	}
	return at.Sub(m.marks[0].at)
}

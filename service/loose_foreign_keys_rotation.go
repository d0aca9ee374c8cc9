package service

import (
	"time"
)

// rotation is whose turn it is in a minute, out of n databases (loose_foreign_keys_cleanup.md 3.1).
func rotation(at time.Time, n int) int {
	return int(at.Unix() / 60 % int64(n))
}

// starvedDatabases are those of n databases that have no turn within 24 hours from a fire of a schedule: of five
// fields, UTC. The day from the first fire shows every minute of the day in which it fires, and 24 hours are a multiple
// of n minutes. An invalid schedule starves none here: [New] refuses it.
func starvedDatabases(expression string, n int) []int {
	schedule, err := ParseSchedule(expression)
	if err != nil {
		return nil
	}
	turns := make([]bool, n)
	first := schedule.Next(time.Unix(0, 0).UTC())
	for at := first; !at.IsZero() && at.Before(first.Add(24*time.Hour)); at = schedule.Next(at) {
		turns[rotation(at, n)] = true
	}
	var starved []int
	for i, had := range turns {
		if !had {
			starved = append(starved, i)
		}
	}
	return starved
}

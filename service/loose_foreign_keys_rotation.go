package service

import (
	"time"

	"github.com/robfig/cron/v3"
)

// rotation is whose turn it is in a minute, out of n databases (loose_foreign_keys_cleanup.md 3.1).
func rotation(at time.Time, n int) int {
	return int(at.Unix() / 60 % int64(n))
}

// starvedDatabases are those of n databases that have no turn within 24 hours under a schedule. The day begins at an
// arbitrary midnight that is a multiple of every n up to 5 minutes.
func starvedDatabases(expression string, n int) []int {
	schedule, err := cron.ParseStandard(expression)
	if err != nil {
		return nil
	}
	turns := make([]bool, n)
	start := time.Unix(0, 0).UTC()
	for at := schedule.Next(start.Add(-time.Second)); at.Before(start.AddDate(0, 0, 1)) && !at.IsZero(); at = schedule.Next(at) {
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

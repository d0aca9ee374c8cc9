package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What is beyond these bounds is a slip of the pen: no run is helped by it, and some would take all memory or hold a lease
// for years. The documentation of each key has its bounds.
const (
	day  = 24 * time.Hour
	year = 365 * day

	mostInBatch  = 10_000
	mostUsers    = 100_000
	mostRows     = 100_000_000
	mostAttempts = 1000
	mostQueued   = 10_000_000
	mostBytes    = 1 << 50

	// minHistory is the least that history.keep may be: GetStatus and the ledger of fires look back a while.
	minHistory = time.Hour
)

// numberTo takes a number from 1 on.
func numberTo[T int | int64](to *T, most int64) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(s, "-"), err == nil && n > most:
			return fmt.Errorf("%s is too large: at most %d", s, most)
		case errors.Is(err, strconv.ErrRange), err == nil && n < 1:
			return fmt.Errorf("%s is too small: at least 1", s)
		case err != nil:
			return wrong(s, integer)
		}
		*to = T(n)
		return nil
	}
}

// durationTo takes a duration of more than 0.
func durationTo(to *time.Duration, most time.Duration) func(string) error {
	return durationIn(to, 0, most)
}

// durationIn takes a duration of at least so much, and more than 0.
func durationIn(to *time.Duration, least, most time.Duration) func(string) error {
	return func(s string) error {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil && !inDurations(s):
			return wrong(s, duration)
		case err != nil || d > most:
			return fmt.Errorf("%s is too long: at most %s", s, hours(most))
		case d <= 0:
			return fmt.Errorf("%s is too short: more than 0", s)
		case d < least:
			return fmt.Errorf("%s is too short: at least %s", s, hours(least))
		}
		*to = d
		return nil
	}
}

// inDurations says whether a text is a duration but for its length: Go's end at 292 years.
func inDurations(s string) bool {
	unit := strings.TrimLeft(s, "0123456789")
	_, err := time.ParseDuration("1" + unit)
	return unit != s && err == nil
}

// hours is a duration without its minutes and seconds if they are 0: 1h, 30m, 1h0m10s.
func hours(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

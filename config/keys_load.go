package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

func (l *LoadLimits) keys(prefix string) []key {
	return []key{
		{prefix + "max_replica_lag", duration, "30s", durationOrOff(&l.MaxReplicaLag, day)},
		{prefix + "ignored_replicas", text, "", list(&l.IgnoredReplicas)},
		{prefix + "max_wal_rate", size, "0", sizeOrOff(&l.MaxWALRate)},
		{prefix + "max_wal_archive_backlog", size, "4GB", sizeOrOff(&l.MaxWALArchiveBacklog)},
		{prefix + "max_lock_wait", duration, "5s", durationOrOff(&l.MaxLockWait, day)},
		{prefix + "max_autovacuum", duration, "0", durationOrOff(&l.MaxAutovacuum, 30*day)},
		{prefix + "patience", duration, "20s", durationTo(&l.Patience, day)},
	}
}

// orOff lets a limit be switched off by a word.
func orOff[T any](to *T, off string, set func(string) error) func(string) error {
	return func(s string) error {
		if s == off {
			var zero T
			*to = zero
			return nil
		}
		return set(s)
	}
}

// durationOrOff takes 0, in any unit, for off.
func durationOrOff(to *time.Duration, most time.Duration) func(string) error {
	positive := durationTo(to, most)
	return func(s string) error {
		d, err := time.ParseDuration(s)
		switch {
		case err == nil && d == 0:
			*to = 0
			return nil
		case err == nil && d < 0:
			return fmt.Errorf("%s is negative: 0 is off", d)
		}
		return positive(s)
	}
}

// list takes names with commas between them.
func list(to *[]string) func(string) error {
	return func(s string) error {
		*to = nil
		for name := range strings.SplitSeq(s, ",") {
			if name = strings.TrimSpace(name); name != "" {
				*to = append(*to, name)
			}
		}
		return nil
	}
}

// sizeOrOff takes a number of bytes, or one with a unit: as PostgreSQL counts, 1 kB is 1024 B.
func sizeOrOff(to *int64) func(string) error {
	return func(s string) error {
		number, factor := strings.TrimSpace(s), int64(1)
		for i, unit := range []string{"kB", "MB", "GB", "TB"} {
			if before, has := cutUnit(number, unit); has {
				number, factor = before, 1<<(10*(i+1))
				break
			}
		}
		if before, has := cutUnit(number, "B"); has && factor == 1 {
			number = before
		}
		n, err := strconv.ParseInt(number, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange) && n > 0, n > mostBytes/factor:
			return fmt.Errorf("%s is too large: at most 1024TB", s)
		case n < 0:
			return fmt.Errorf("%s is negative: 0 is off", s)
		case err != nil:
			return wrong(s, size)
		}
		*to = n * factor
		return nil
	}
}

func cutUnit(s, unit string) (string, bool) {
	if len(s) < len(unit) || !strings.EqualFold(s[len(s)-len(unit):], unit) {
		return s, false
	}
	return strings.TrimSpace(s[:len(s)-len(unit)]), true
}

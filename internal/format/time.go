package format

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseDuration parses a duration such as 30m, 24h or 7d. Days have 24 hours.
func ParseDuration(text string) (time.Duration, error) {
	number, isDays := strings.CutSuffix(text, "d")
	if !isDays {
		return time.ParseDuration(text)
	}
	const longest = 100_000
	days, err := strconv.ParseUint(number, 10, 32)
	if err != nil || days > longest {
		return 0, fmt.Errorf("%q is not a number of days", text)
	}
	return time.Duration(days) * 24 * time.Hour, nil
}

// ParseTime parses a time in UTC such as 2026-11-01 15:04, 2026-11-01 or RFC 3339, or a positive
// duration before now such as 24h or 7d.
func ParseTime(text string) (time.Time, error) {
	if ago, err := ParseDuration(text); err == nil && ago > 0 {
		return time.Now().UTC().Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.Parse(layout, strings.TrimSuffix(text, " UTC")); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is neither a duration such as 24h nor a time such as 2026-11-01 15:04", text)
}

package run

import (
	"testing"
	"time"
)

// Whatever the expression: it is refused, or each fire is a whole minute behind the time that was asked
// about, and nothing fires in between.
func FuzzParseSchedule(f *testing.F) {
	for _, expression := range []string{
		"* * * * *", "*/2 * * * *", "0 0 * * *", "0 2 * * 1-5", "15,45 3 1 */3 *", "0 0 29 2 *", "59 23 31 12 7", "0 0 30 2 *",
		"@daily", "@every 1s", "TZ=Asia/Tokyo 0 0 * * *", "CRON_TZ=X * * * * *", "0 0 ? * MON", "60 * * * *", "", "* * * * * *", "*/0 * * * *",
	} {
		f.Add(expression, int64(1_790_000_000))
	}
	f.Fuzz(func(t *testing.T, expression string, seconds int64) {
		schedule, err := ParseSchedule(expression)
		if err != nil {
			return
		}
		// Years 1970 to 2106.
		from := time.Unix(seconds&(1<<32-1), 0).UTC()
		fire := schedule.Next(from)
		if fire.IsZero() {
			return
		}
		if !fire.After(from) || fire.Second() != 0 || fire.Nanosecond() != 0 || fire.Location() != time.UTC {
			t.Fatalf("%q fires at %s after %s", expression, fire, from)
		}
		if again := schedule.Next(fire.Add(-time.Second)); !again.Equal(fire) {
			t.Errorf("%q fires at %s, and at %s if one asks a second before", expression, fire, again)
		}
		minute := from.Truncate(time.Minute)
		for range 24 * 60 {
			if minute = minute.Add(time.Minute); !minute.Before(fire) {
				return
			}
			if next := schedule.Next(minute.Add(-time.Second)); !next.Equal(fire) {
				t.Fatalf("%q fires at %s, which is between %s and %s", expression, next, from, fire)
			}
		}
	})
}

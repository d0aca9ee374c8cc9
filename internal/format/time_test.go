package format

import (
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

func TestParseTime_ReadsDurationsAndTimes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2026-11-01 15:04": "2026-11-01T15:04:00Z", "2026-11-01 15:04 UTC": "2026-11-01T15:04:00Z",
		"2026-11-01": "2026-11-01T00:00:00Z", "2026-11-01T15:04:05+01:00": "2026-11-01T14:04:05Z",
	} {
		got := assert.Must(ParseTime(text))(t)
		assert.Equal(t, got.UTC().Format(time.RFC3339), want, text)
	}
	before := time.Now().UTC().Add(-24 * time.Hour)
	day := assert.Must(ParseTime("24h"))(t)
	assert.That(t, !day.Before(before) && !day.After(time.Now().Add(-24*time.Hour)), "got %s", day)
	week := assert.Must(ParseTime("7d"))(t)
	assert.Equal(t, day.Sub(week).Round(time.Hour), 6*24*time.Hour)
	for _, text := range []string{"yesterday", "-1h", "0s", "99999999d", "d", ""} {
		_, err := ParseTime(text)
		assert.That(t, err != nil, "%q is a time", text)
	}
}

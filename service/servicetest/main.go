package servicetest

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs a package's tests, then stops the clusters that they have started. It checks for leaked goroutines after
// all tests, because parallel tests see each other's goroutines.
func Main(m *testing.M) {
	obey()
	goleak.VerifyTestMain(onClusters{m})
}

// onClusters are tests that may use all clusters. Each starts with the first test that needs it.
type onClusters struct{ tests interface{ Run() int } }

// Run runs the tests.
func (o onClusters) Run() int {
	return Databases.Run(runner(func() int { return replicated.Run(runner(func() int { return Loaded.Run(o.tests) })) }))
}

type runner func() int

// Run calls the function.
func (r runner) Run() int { return r() }

// FarFromUTC sets a time zone, for this process and those that it starts, whose date differs from the date of UTC now. Code
// that takes dates in the zone of its host then fails its tests.
func FarFromUTC() {
	zone, hours := "Pacific/Honolulu", -10
	if time.Now().UTC().Hour() >= 10 {
		zone, hours = "Pacific/Kiritimati", 14
	}
	if err := os.Setenv("TZ", zone); err != nil {
		panic(err)
	}
	time.Local = time.FixedZone(zone, hours*3600)
}

package servicetest

import (
	"fmt"
	"time"
	_ "time/tzdata" // the processes of zones need them, whatever the machine has

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
)

// Zones are time zones for a process and for the database. At any time of the day the date of one of the first two is
// not that of UTC. The last has days of 23 and 25 hours.
func Zones() []string {
	return []string{"Pacific/Kiritimati", "Pacific/Pago_Pago", "America/Los_Angeles"}
}

// InZone gives the process of an order a time zone.
func InZone(zone string) func(*Order) { return func(o *Order) { o.Zone = zone } }

// RunIn runs a worker once, in a process of this time zone, on a main whose time zone is the same. The run must succeed.
func (e *Estate) RunIn(zone, worker string, change ...func(*Order)) run.Run {
	e.T.Helper()
	e.Exec("main", fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET timezone = %%L', current_database(), '%s'); END $$`, zone))
	run := func(o *Order) { o.Definitions, o.Database, o.Worker = "", "", worker }
	r := e.Start("zoned", "", append([]func(*Order){run, InZone(zone)}, change...)...).Result()
	if r.Error != "" {
		e.T.Fatal(r.Error)
	}
	WantState(e.T, r.Run, control.RunSucceeded)
	return r.Run
}

// checkZone panics unless the process has this time zone. Otherwise a test would pass without testing the zone.
func checkZone(zone string) {
	there, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	now := time.Now()
	_, local := now.Zone()
	if _, offset := now.In(there).Zone(); offset != local {
		panic(fmt.Sprintf("the process is %d s ahead of UTC, but %s is %d s ahead", local, zone, offset))
	}
}

package service_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/loosefk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

func TestRunDue_AFireOfAReplicaThatStopsIsRunByAnother(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	stopping, other := c.replica("* * * * *"), c.replica("* * * * *")
	c.at("11-20 12:01:00")
	if err := stopping.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := stopping.RunDue(context.Background()); !errors.Is(err, service.ErrStopping) {
		t.Errorf("error %v, want that it is stopping", err)
	}
	c.wantFires()
	c.at("11-20 12:01:01")
	c.due(other)
	c.wantFires("11-20 12:01 ran +1")
}

func TestRunDue_AChangedScheduleMissesNothing(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	c.replica("0 * * * *", catchUp(true))
	c.at("11-23 00:40:30")
	s := c.replica("*/10 * * * *", catchUp(true))
	c.at("11-23 00:49:00")
	c.due(s)
	// The fire of less than a minute ago may be one that a replica with this schedule has to run.
	c.wantFires("11-23 00:40 ran +30")
	c.at("11-23 00:50:00")
	c.due(s)
	c.wantFires("11-23 00:40 ran +30", "11-23 00:50 ran +0")
}

func TestRunDue_ReplicasWithTwoSchedulesRunBoth(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	one, other := c.replica("*/10 * * * *"), c.replica("5-59/10 * * * *")
	for _, at := range []string{"12:04:58", "12:05:03", "12:09:53", "12:10:03", "12:14:53", "12:15:04"} {
		c.at("11-20 " + at)
		if at != "12:04:58" {
			c.due(one)
			c.due(other)
			c.due(one)
		}
	}
	c.wantFires("11-20 12:05 ran +3", "11-20 12:10 ran +3", "11-20 12:15 ran +4")
}

func TestRunDue_GoesOnWhenTheClockOfMainIsSetBack(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("* * * * *")
	c.at("11-21 12:00:30")
	c.due(s)
	c.Exec("main", `DELETE FROM maintenance.fires WHERE outcome = 'missed'`)
	c.at("11-20 12:10:30")
	c.due(s)
	c.at("11-20 12:11:02")
	c.due(s)
	c.wantFires("11-20 12:11 ran +2", "11-21 12:00 ran +30")
	// A second or two are nothing to go back for: the fire has run.
	c.at("11-20 12:10:59")
	if err := c.Open[0].Ping(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.at("11-20 12:11:03")
	c.due(s)
	c.wantFires("11-20 12:11 ran +2", "11-21 12:00 ran +30")
}

func TestRunDue_FiresThatAWrongClockHasMissedRunAtTheirTime(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("* * * * *", catchUp(true))
	c.at("11-20 12:06:30")
	c.due(s)
	c.wantFires("11-20 12:01 missed", "11-20 12:02 missed", "11-20 12:03 missed", "11-20 12:04 missed", "11-20 12:05 missed", "11-20 12:06 ran +30")
	// The clock is set right. What it has missed is not made up for before its time.
	for _, second := range []string{"01:30", "02:02", "03:02", "04:02", "05:02", "06:02", "07:02"} {
		c.at("11-20 12:" + second)
		c.due(s)
		c.due(s)
	}
	c.wantFires("11-20 12:01 ran CAUGHT_UP +30", "11-20 12:02 ran +2", "11-20 12:03 ran +2", "11-20 12:04 ran +2", "11-20 12:05 ran +2", "11-20 12:06 ran +30", "11-20 12:07 ran +2")
	c.wantRuns(7)
}

func TestRunDue_ALongPauseIsAccountedForAsFarAsHistoryIsKept(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("* * * * *")
	c.Exec("main", `UPDATE maintenance.schedules SET accounted_until = '2020-01-01'`)
	c.at("11-20 12:01:00")
	c.due(s)
	c.Want("main", `SELECT concat_ws(' ', count(*), count(*) FILTER (WHERE outcome = 'missed'), min(fire_time) AT TIME ZONE 'UTC') FROM maintenance.fires
		WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "43200 43199 2026-10-21 12:02:00")
	c.wantRuns(1)
}

func TestRunDue_ALedgerThatEndsAtNoTimeGoesOn(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"infinity": "0", "12026-01-02": "0", "-infinity": "43200", "0044-03-15 BC": "43200"} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			c := newClocked(t)
			s := c.replica("* * * * *")
			c.Exec("main", `UPDATE maintenance.schedules SET accounted_until = '`+value+`'`)
			c.at("11-20 12:01:00")
			c.due(s)
			c.Want("main", `SELECT count(*) FROM maintenance.fires WHERE worker = '`+servicetest.LooseForeignKeys+`'`, want)
			c.Want("main", `SELECT accounted_until = '2026-11-20 12:01Z' FROM maintenance.schedules WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "true")
		})
	}
}

func TestRunDue_ACaughtUpFireTakesTheDatabaseOfItsMinute(t *testing.T) {
	t.Parallel()
	c := newClocked(t, "ci")
	s := c.replica("7 1 * * *", catchUp(true))
	for _, at := range []string{"11-21 08:00:00", "11-22 08:01:00"} {
		c.at(at)
		c.due(s)
	}
	c.Want("main", `SELECT string_agg(database, ' ') FROM maintenance.runs WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "ci ci")
}

// TestRunDue_KnowsNoDaylightSaving lives through the night in which Berlin's clocks go back, and the one in which they go
// forward, in a process in Berlin; the sessions are there too.
func TestRunDue_KnowsNoDaylightSaving(t *testing.T) {
	if zone := "Europe/Berlin"; os.Getenv("TZ") != zone {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), "TZ="+zone)
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for change, nights := range map[string][]string{
		"back": {"10-24 23:", "10-25 00:", "10-25 01:", "10-25 02:"}, "forward": {"03-28 23:", "03-29 00:", "03-29 01:", "03-29 02:"},
	} {
		t.Run(change, func(t *testing.T) {
			c := newClocked(t)
			c.at(nights[0] + "15:00")
			s := c.replica("*/20 * * * *")
			var want []string
			for _, hour := range nights {
				for _, minute := range []string{"00", "20", "40"} {
					if at := hour + minute; at > nights[0]+"15" {
						c.at(at + ":03")
						c.due(s)
						want = append(want, at+" ran +3")
					}
				}
			}
			c.wantFires(want...)
			if len(want) != 11 || time.Date(2026, 7, 1, 0, 0, 0, 0, time.Local).UTC().Hour() != 22 {
				t.Errorf("%d fires in %s", len(want), time.Local)
			}
			c.Want("main", `SELECT current_setting('TimeZone')`, "Europe/Berlin")
		})
	}
}

func TestRunDue_AShortHistoryCostsADailyWorkerNoDay(t *testing.T) {
	t.Parallel()
	for cron, want := range map[string]string{"0 0 * * *": "11-21 00:00 ran CAUGHT_UP +28800", "0 0 21 * *": "11-21 00:00 ran CAUGHT_UP +28800"} {
		c := newClocked(t)
		s := c.Service(servicetest.OneChild, func(config *service.Config) {
			config.HistoryKeep = time.Hour
			service.Settings[loosefk.Config](config).Schedule = cron
			catchUp(true)(&service.Settings[loosefk.Config](config).WorkerConfig)
		})
		c.due(s)
		c.at("11-21 08:00:00")
		c.due(s)
		c.wantFires(want)
	}
	// However old the newest fire of a rare schedule is.
	c := newClocked(t)
	s := c.replica("0 0 21 * *", catchUp(true))
	c.at("12-19 08:00:00")
	s2 := c.Service(servicetest.OneChild, func(config *service.Config) {
		config.HistoryKeep = time.Hour
		service.Settings[loosefk.Config](config).Schedule = "0 0 21 * *"
		catchUp(true)(&service.Settings[loosefk.Config](config).WorkerConfig)
	})
	c.due(s2)
	c.due(s)
	c.wantFires("11-21 00:00 ran CAUGHT_UP +2448000")
}

func TestPrune_KeepsHistoryAndTheNewestFire(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.Service(servicetest.OneChild, func(config *service.Config) { config.HistoryKeep = 24 * time.Hour })
	c.Exec("main", `INSERT INTO maintenance.fires (worker, fire_time, claimed_by)
		SELECT w, clock_timestamp() - i * interval '1 hour', '' FROM generate_series(0, 2499) i, unnest(ARRAY['a', 'b']) w
		UNION ALL SELECT 'monthly', clock_timestamp() - i * interval '30 days', '' FROM generate_series(2, 4) i`)
	c.Exec("main", `INSERT INTO maintenance.audit (at, by, address, role, action, target, reason, outcome)
		SELECT clock_timestamp() - i * interval '1 hour', '', '', '', '', '', '', '' FROM generate_series(1, 2500) i`)
	c.due(s)
	c.Eventually("main", `SELECT string_agg(worker || ' ' || n, ', ' ORDER BY worker) FROM
		(SELECT worker, count(*) AS n FROM maintenance.fires WHERE worker IN ('a', 'b', 'monthly') GROUP BY worker) f`, "a 25, b 25, monthly 1")
	c.Eventually("main", `SELECT count(*) BETWEEN 23 AND 24 FROM maintenance.audit`, "true")
	c.Want("main", `SELECT fire_time = clock_timestamp() - interval '60 days' FROM maintenance.fires WHERE worker = 'monthly'`, "true")
}

func TestFires_AreListedNewestFirst(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	s := c.replica("*/10 * * * *")
	c.at("11-20 12:30:10")
	c.due(s)
	list := func(f service.FireFilter) string {
		t.Helper()
		fires, err := s.Fires(context.Background(), f)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, f := range fires {
			line := f.Time.UTC().Format("15:04") + " " + f.Outcome
			if f.RunID != "" && f.ClaimedBy != "" && !f.ClaimedAt.IsZero() {
				line += " " + f.Late().String()
			}
			lines = append(lines, line)
		}
		return strings.Join(lines, ", ")
	}
	for want, f := range map[string]service.FireFilter{
		"12:30 ran 10s, 12:20 missed, 12:10 missed": {Worker: servicetest.LooseForeignKeys, Limit: 10},
		"12:30 ran 10s":               {Worker: servicetest.LooseForeignKeys, Outcome: repo.FireRan, Limit: 10},
		"12:30 ran 10s, 12:20 missed": {Worker: servicetest.LooseForeignKeys, Limit: 2},
		"12:10 missed":                {Worker: servicetest.LooseForeignKeys, Limit: 2, AfterWorker: servicetest.LooseForeignKeys, After: time.Date(2026, 11, 20, 12, 20, 0, 0, time.UTC)},
	} {
		if got := list(f); got != want {
			t.Errorf("%+v: %s, want %s", f, got, want)
		}
	}
	if _, err := s.Fires(context.Background(), service.FireFilter{Worker: "nobody"}); !errors.Is(err, service.ErrUnknownWorker) {
		t.Errorf("error %v", err)
	}
}

func TestRunDue_WorksInEveryModeOfTheDriver(t *testing.T) {
	for _, mode := range []string{"cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newClocked(t)
			c.Open = nil
			c.Add("main", c.URLs["main"]+"&default_query_exec_mode="+mode)
			s := c.replica("*/10 * * * *", catchUp(true))
			c.at("11-20 12:25:00")
			c.due(s)
			c.Exec("main", `UPDATE maintenance.leases SET expires_at = clock_timestamp() + interval '1 hour'`)
			c.at("11-20 12:30:01")
			c.due(s)
			c.at("11-20 12:50:00")
			c.due(s)
			c.due(s)
			c.wantFires("11-20 12:10 missed", "11-20 12:20 ran CAUGHT_UP +300", "11-20 12:30 skipped LEASE_HELD", "11-20 12:40 missed", "11-20 12:50 skipped LEASE_HELD")
			fires, err := s.Fires(context.Background(), service.FireFilter{Worker: servicetest.LooseForeignKeys, Limit: 10, After: time.Date(2026, 11, 20, 12, 40, 0, 0, time.UTC), AfterWorker: "z"})
			if err != nil || len(fires) != 4 {
				t.Errorf("%v, %v", fires, err)
			}
			servicetest.Status(t, s)
		})
	}
}

package service_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// story is what happens to the schedule of loose_foreign_keys_cleanup, and what the ledger then is.
type story struct {
	// replicas are the servers by name: a cron, then ", catch up", ", no catch up", ", off" or ", keep 1h" (of history).
	replicas map[string]string
	// others are databases besides main.
	others []string
	// steps are lines: a time of main and the replicas that check what is due then, one after the
	// other. A replica starts, and looks, at its first mention. "=> fire, fire" is the ledger after
	// the step, "=> none" an empty one. A line may also be SQL for main.
	steps string
	// runs is how many runs have worked.
	runs int
	// also is a query on main and its result in the end.
	also [2]string
}

// tellOn plays a story.
func (s story) tellOn(c clocked) {
	c.T.Helper()
	started := map[string]*service.Service{}
	for line := range strings.Lines(s.steps) {
		step, fires, checked := strings.Cut(strings.TrimSpace(line), " => ")
		words := strings.Fields(step)
		switch {
		case len(words) == 0:
			continue
		case words[0] == strings.ToUpper(words[0]) && words[0][0] > '9':
			c.Exec("main", step)
			continue
		}
		c.at(words[0] + " " + words[1])
		if len(words) == 2 { // no server checks the fires, but the clock is read
			assert.NoError(c.T, c.Open[0].Ping(context.Background()))
		}
		for _, name := range words[2:] {
			if started[name] == nil {
				started[name] = c.scheduled(s.replicas[name])
			}
			c.due(started[name])
		}
		if checked {
			c.wantFires(strings.Split(strings.TrimPrefix(fires, "none"), ", ")...)
		}
	}
	c.wantRuns(s.runs)
	if s.also[0] != "" {
		c.Want("main", s.also[0], s.also[1])
	}
	c.wantConsistent()
}

// scheduled is a replica as a story has it.
func (c clocked) scheduled(as string) *service.Service {
	c.T.Helper()
	words := strings.Split(as, ", ")
	s := c.Service(servicetest.OneChild, func(config *service.Config) {
		w := service.Settings[lfk.Config](config)
		w.Schedule = words[0]
		for _, word := range words[1:] {
			switch word {
			case "catch up":
				w.CatchUp = new(true)
			case "no catch up":
				w.CatchUp = new(false)
			case "off":
				w.Enabled = new(false)
			case "alone":
				config.Use = service.UseLooseForeignKeys
			case "keep 1h":
				config.HistoryKeep = time.Hour
			default:
				c.T.Fatalf("a replica %q", as)
			}
		}
	})
	c.due(s)
	return s
}

// wantConsistent fails the test unless fires that were missed have neither claim nor run, and those that were skipped a
// skipped run with their reason.
func (c clocked) wantConsistent() {
	c.T.Helper()
	c.Want("main", `SELECT count(*) FROM maintenance.fires
		WHERE outcome = 'missed' AND NOT (claimed_by = '' AND claimed_at IS NULL AND run_id IS NULL AND started_at IS NULL)`, "0")
	c.Want("main", `SELECT count(*) FROM maintenance.fires f WHERE outcome = 'skipped'
		AND NOT EXISTS (SELECT FROM maintenance.runs r WHERE r.id = f.run_id AND r.reason = f.reason AND r.state = 'skipped')`, "0")
}

const minutely, hourly, daily, everyTen = "* * * * *", "0 * * * *", "0 0 * * *", "*/10 * * * *"

// tellAll plays each story on a main that no server has ever used.
func tellAll(t *testing.T, stories map[string]story) {
	t.Helper()
	alone := newClocked(t)
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			c := alone
			if len(s.others) > 0 {
				c = newClocked(t, s.others...)
			}
			// Its services end with the story.
			before := c.T
			defer func() { c.T = before }()
			c.T = t
			c.forget()
			s.tellOn(c)
		})
	}
}

func TestRunDue_RunsEachFireOnceOrMissesIt(t *testing.T) {
	tellAll(servicetest.Parallel(t), map[string]story{
		"the first start of all misses nothing": {
			replicas: map[string]string{"a": minutely}, runs: 1, steps: `
				11-20 12:00:30 a => none
				11-20 12:01:00 a a => 11-20 12:01 ran +0`,
		},
		"a fire within its grace is run late": {
			replicas: map[string]string{"a": minutely}, runs: 2, steps: `
				11-20 12:00:30 a
				11-20 12:01:20 a
				11-20 12:02:54 a => 11-20 12:01 ran +20, 11-20 12:02 ran +54`,
		},
		"fires that no server ran are missed": {
			replicas: map[string]string{"a": everyTen}, runs: 1, steps: `
				11-20 12:00:30 a
				11-20 12:35:00 a => 11-20 12:10 missed, 11-20 12:20 missed, 11-20 12:30 missed
				11-20 12:40:01 a => 11-20 12:10 missed, 11-20 12:20 missed, 11-20 12:30 missed, 11-20 12:40 ran +1`,
		},
		"one run makes up for all missed fires": {
			replicas: map[string]string{"a": daily + ", catch up", "b": daily + ", catch up"}, runs: 1, steps: `
				11-20 12:00:30 a b
				11-24 08:00:00 a b a => 11-21 00:00 missed, 11-22 00:00 missed, 11-23 00:00 missed, 11-24 00:00 ran CAUGHT_UP +28800`,
		},
		"a fire that is due makes up for missed ones": {
			replicas: map[string]string{"a": daily + ", catch up"}, runs: 1, steps: `
				11-20 12:00:30 a
				11-24 00:00:05 a a => 11-21 00:00 missed, 11-22 00:00 missed, 11-23 00:00 missed, 11-24 00:00 ran +5`,
		},
		"without catch-up missed fires stay missed until it is turned on": {
			replicas: map[string]string{"a": daily + ", no catch up", "b": daily + ", catch up"}, runs: 1, steps: `
				11-20 12:00:30 a
				11-22 08:00:00 a a => 11-21 00:00 missed, 11-22 00:00 missed
				11-22 08:00:00 b => 11-21 00:00 missed, 11-22 00:00 ran CAUGHT_UP +28800`,
		},
		"what was skipped by a pause is not caught up": {
			replicas: map[string]string{"a": daily + ", catch up"}, steps: `
				11-20 12:00:30 a
				INSERT INTO maintenance.pauses (worker, reason, paused_by) VALUES ('` + servicetest.LooseForeignKeys + `', 'disks', 'alice')
				11-22 00:00:10 a
				DELETE FROM maintenance.pauses
				11-22 00:05:00 a => 11-21 00:00 missed, 11-22 00:00 skipped WORKER_PAUSED`,
		},
		"what was skipped as the lease was held is not caught up": {
			replicas: map[string]string{"a": daily + ", catch up"}, steps: `
				11-20 12:00:30 a
				INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at) VALUES ('` + servicetest.MainLease + `', 'x', 7, '2026-11-20', '2026-11-20', '2026-11-24')
				11-22 00:00:10 a
				DELETE FROM maintenance.leases
				11-22 00:05:00 a => 11-21 00:00 missed, 11-22 00:00 skipped LEASE_HELD`,
		},
	})
}

func TestRunDue_GoesOnWhenSchedulesOrClocksChange(t *testing.T) {
	tellAll(servicetest.Parallel(t), map[string]story{
		"a changed schedule misses nothing": {
			// The fire of less than a minute ago may be one that a replica with this schedule has to run.
			replicas: map[string]string{"old": hourly + ", catch up", "new": everyTen + ", catch up"}, runs: 2, steps: `
				11-20 12:00:30 old
				11-23 00:40:30 new
				11-23 00:49:00 new => 11-23 00:40 ran +30
				11-23 00:50:00 new => 11-23 00:40 ran +30, 11-23 00:50 ran +0`,
		},
		"replicas with two schedules run both": {
			replicas: map[string]string{"a": everyTen, "b": "5-59/10 * * * *"}, runs: 3, steps: `
				11-20 12:00:30 a b
				11-20 12:05:03 a b a
				11-20 12:09:53 a b a
				11-20 12:10:03 a b a
				11-20 12:14:53 a b a
				11-20 12:15:04 a b a => 11-20 12:05 ran +3, 11-20 12:10 ran +3, 11-20 12:15 ran +4`,
		},
		"the ledger goes on when the clock of main is set back": {
			// A second or two are nothing to go back for: the fire has run.
			replicas: map[string]string{"a": minutely}, runs: 2, steps: `
				11-20 12:00:30 a
				11-21 12:00:30 a
				DELETE FROM maintenance.fires WHERE outcome = 'missed'
				11-20 12:10:30 a
				11-20 12:11:02 a => 11-20 12:11 ran +2, 11-21 12:00 ran +30
				11-20 12:10:59
				11-20 12:11:03 a => 11-20 12:11 ran +2, 11-21 12:00 ran +30`,
		},
		"fires that a wrong clock has missed run at their time, not before": {
			replicas: map[string]string{"a": minutely + ", catch up"}, runs: 7, steps: `
				11-20 12:00:30 a
				11-20 12:06:30 a => 11-20 12:01 missed, 11-20 12:02 missed, 11-20 12:03 missed, 11-20 12:04 missed, 11-20 12:05 missed, 11-20 12:06 ran +30
				11-20 12:01:30 a a
				11-20 12:02:02 a a
				11-20 12:03:02 a a
				11-20 12:04:02 a a
				11-20 12:05:02 a a
				11-20 12:06:02 a a
				11-20 12:07:02 a a => 11-20 12:01 ran CAUGHT_UP +30, 11-20 12:02 ran +2, 11-20 12:03 ran +2, 11-20 12:04 ran +2, 11-20 12:05 ran +2, 11-20 12:06 ran +30, 11-20 12:07 ran +2`,
		},
	})
}

func TestRunDue_FindsTheNewestFireInEveryLedger(t *testing.T) {
	tellAll(servicetest.Parallel(t), map[string]story{
		"a short history costs a daily worker no day": {
			replicas: map[string]string{"a": daily + ", catch up, keep 1h"}, runs: 1, steps: `
				11-20 12:00:30 a
				11-21 08:00:00 a => 11-21 00:00 ran CAUGHT_UP +28800`,
		},
		"a short history costs a monthly worker no month": {
			replicas: map[string]string{"a": "0 0 21 * *, catch up, keep 1h"}, runs: 1, steps: `
				11-20 12:00:30 a
				11-21 08:00:00 a => 11-21 00:00 ran CAUGHT_UP +28800`,
		},
		"a short history costs no fire, however old the newest one of a rare schedule is": {
			replicas: map[string]string{"a": "0 0 21 * *, catch up", "short": "0 0 21 * *, catch up, keep 1h"}, runs: 1, steps: `
				11-20 12:00:30 a
				12-19 08:00:00 short a => 11-21 00:00 ran CAUGHT_UP +2448000`,
		},
		"a fire that is caught up works the database of its minute": {
			replicas: map[string]string{"a": "7 1 * * *, catch up"}, others: []string{"ci"}, runs: 2,
			also: [2]string{`SELECT string_agg(database, ' ' ORDER BY id) FROM maintenance.runs WHERE worker = '` + servicetest.LooseForeignKeys + `'`, "ci ci"}, steps: `
				11-20 12:00:30 a
				11-21 08:00:00 a
				11-22 08:01:00 a`,
		},
		"a replica that uses the worker keeps its ledger from others": {
			replicas: map[string]string{"off": everyTen + ", off", "on": everyTen}, runs: 1,
			also: [2]string{`SELECT in_use_since AT TIME ZONE 'UTC' FROM maintenance.schedules WHERE worker = '` + servicetest.LooseForeignKeys + `'`, "2026-11-20 12:00:30"}, steps: `
				11-20 12:00:30 off on
				11-20 12:09:00 off on
				11-20 12:09:40 off on
				11-20 12:10:15 off on => 11-20 12:10 ran +15`,
		},
		"a ledger ends although no worker is used": {
			replicas: map[string]string{"off": everyTen + ", off", "on": everyTen + ", catch up"}, runs: 1, steps: `
				11-20 12:00:30 on
				11-20 12:00:45 off
				11-20 12:01:00 off
				11-20 12:01:15 off
				11-20 12:01:30 off
				11-20 12:25:00 on => none
				11-20 12:30:01 on => 11-20 12:30 ran +1`,
		},
		// No server could record meanwhile that the worker is used.
		"a ledger outlives the absence of main": {
			replicas: map[string]string{"off": "0 12 * * *, off", "on": "0 12 * * *, catch up"}, runs: 1, steps: `
				11-20 12:00:30 off on
				11-21 11:59:00 off on
				11-21 11:59:05 off on
				11-21 12:03:00 off
				11-21 12:03:20 off on => 11-21 12:00 ran CAUGHT_UP +200`,
		},
	})
}

// TestRunDue_KnowsNoDaylightSaving lives through the night in which Berlin's clocks go back, and
// the one in which they go forward, in a process in Berlin. The sessions are there too.
func TestRunDue_KnowsNoDaylightSaving(t *testing.T) {
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	var err error
	if time.Local, err = time.LoadLocation("Europe/Berlin"); err != nil {
		t.Fatal(err)
	}
	c := newClocked(t)
	c.Want("main", `SELECT current_setting('TimeZone')`, "Europe/Berlin")
	for _, hours := range [][]string{
		{"03-28 23:", "03-29 00:", "03-29 01:", "03-29 02:"}, {"10-24 23:", "10-25 00:", "10-25 01:", "10-25 02:"},
	} {
		c.forget()
		steps, want := hours[0]+"15:00 a\n", []string{}
		for _, hour := range hours {
			for _, minute := range []string{"00", "20", "40"} {
				if at := hour + minute; at > hours[0]+"15" {
					steps += at + ":03 a\n"
					want = append(want, at+" ran +3")
				}
			}
		}
		steps = strings.TrimSuffix(steps, "\n") + " => " + strings.Join(want, ", ")
		story{replicas: map[string]string{"a": "*/20 * * * *"}, steps: steps, runs: 11}.tellOn(c)
	}
}

func TestRunDue_Ledgers(t *testing.T) {
	servicetest.Cases(t, newClocked(servicetest.Parallel(t)).Estate, map[string]func(*servicetest.Estate){
		"RunDue_ManyReplicasRunAFireOnce":        runDueManyReplicasRunAFireOnce,
		"RunDue_ALedgerGoesOnFromWhereverItEnds": runDueALedgerGoesOnFromWhereverItEnds,
	})
}

// runDueManyReplicasRunAFireOnce lets replicas check the same fires at once.
func runDueManyReplicasRunAFireOnce(e *servicetest.Estate) {
	t, c := e.T, clocked{e}
	var replicas []*service.Service
	for range 3 {
		replicas = append(replicas, c.scheduled("* * * * *"))
	}
	look := func(at string) {
		c.at(at)
		var wait sync.WaitGroup
		for _, s := range replicas {
			for range 3 {
				wait.Go(func() {
					err := s.RunDue(context.Background())
					assert.That(t, err == nil, "%v", err)
				})
			}
		}
		wait.Wait()
		c.settled()
	}
	var want []string
	for minute := 1; minute <= 3; minute++ {
		look(fmt.Sprintf("11-20 12:%02d:00.5", minute))
		want = append(want, fmt.Sprintf("11-20 12:%02d ran +1", minute))
	}
	c.wantFires(want...)
	c.wantRuns(3)
	// So do those that catch up.
	c.forget()
	replicas = nil
	for range 3 {
		replicas = append(replicas, c.scheduled("0 0 * * *, catch up"))
	}
	look("11-22 08:00:00")
	c.wantFires("11-21 00:00 missed", "11-22 00:00 ran CAUGHT_UP +28800")
	c.wantRuns(1)
}

// forget makes main one that no server has ever used, at noon.
func (c clocked) forget() {
	c.T.Helper()
	c.Exec("main", `TRUNCATE maintenance.fires, maintenance.runs, maintenance.schedules, maintenance.leases`)
	c.at("11-20 12:00:30")
}

// runDueALedgerGoesOnFromWhereverItEnds: no more fires are accounted for than are kept, which is two days of them at least.
func runDueALedgerGoesOnFromWhereverItEnds(e *servicetest.Estate) {
	t, c := e.T, clocked{e}
	// A run that has ended prunes what is older than an hour while the test looks.
	c.Exec("main", `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER keep BEFORE DELETE ON maintenance.fires FOR EACH ROW EXECUTE FUNCTION keep()`)
	const none = "0"
	for value, want := range map[string]string{
		"2020-01-01": "2880 2879 2026-11-18 12:02:00", "infinity": none, "12026-01-02": none,
		"-infinity": "2880 2879 2026-11-18 12:02:00", "0044-03-15 BC": "2880 2879 2026-11-18 12:02:00",
	} {
		c.forget()
		s := c.scheduled("* * * * *, keep 1h")
		c.Exec("main", `UPDATE maintenance.schedules SET accounted_until = '`+value+`'`)
		c.at("11-20 12:01:00")
		c.due(s)
		got := c.Value("main", `SELECT concat_ws(' ', count(*), nullif(count(*) FILTER (WHERE outcome = 'missed'), 0), min(fire_time) AT TIME ZONE 'UTC')
			FROM maintenance.fires WHERE worker = '`+servicetest.LooseForeignKeys+`'`)
		assert.Equal(t, got, want, "accounted until "+value)
		c.Want("main", `SELECT accounted_until = '2026-11-20 12:01Z' FROM maintenance.schedules WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "true")
	}
}

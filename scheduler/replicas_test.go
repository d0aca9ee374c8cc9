package scheduler

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/service"
)

func TestScheduler_ReplicasOnOneDatabaseRunAFireOnce(t *testing.T) {
	l := newLab(t)
	start := time.Date(2026, 1, 1, 0, 0, 30, 0, time.UTC)
	var clocks []*clockwork.FakeClock
	var schedulers []*Scheduler
	for _, skew := range []time.Duration{0, time.Second, -time.Second} {
		_, main := l.another()
		s, err := service.New(service.Config{Databases: []*repo.Database{main}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Shutdown(context.Background()) })
		clock := clockwork.NewFakeClockAt(start.Add(skew))
		scheduler, err := newScheduler(s, slog.New(slog.DiscardHandler), clock)
		if err != nil {
			t.Fatal(err)
		}
		scheduler.Start()
		clocks, schedulers = append(clocks, clock), append(schedulers, scheduler)
	}
	const runs = `SELECT count(*) FROM maintenance.runs WHERE trigger = 'schedule' AND worker = 'loose_foreign_keys_cleanup'`
	for _, want := range []string{"1", "2", "3"} {
		for _, clock := range clocks {
			if err := clock.BlockUntilContext(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			clock.Advance(time.Minute)
		}
		l.until(runs, want)
	}
	for _, scheduler := range schedulers {
		if err := scheduler.Stop(); err != nil {
			t.Error(err)
		}
	}
	l.want(runs, "3")
	l.want(`SELECT string_agg(to_char(fire_time AT TIME ZONE 'UTC', 'HH24:MI:SS'), ' ' ORDER BY fire_time) FROM maintenance.fires
		WHERE worker = 'loose_foreign_keys_cleanup'`,
		"00:01:00 00:02:00 00:03:00")
}

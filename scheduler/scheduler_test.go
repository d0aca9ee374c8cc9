package scheduler

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/robfig/cron/v3"

	"github.com/caretaker-go/caretaker/service"
)

// fires is a runner with a table of claimed fires, as all replicas share it.
type fires struct {
	schedules []service.Schedule
	// run is called for the one replica that has the fire.
	run func(ctx context.Context, fire time.Time) error

	mu      sync.Mutex
	claimed map[string][]time.Time
	asked   int
	resumed []time.Time
	// refused is what looking for dead runs comes to.
	refused error
}

func (f *fires) Schedules() []service.Schedule { return f.schedules }

func (f *fires) RunScheduled(ctx context.Context, worker string, fire time.Time) (service.Run, bool, error) {
	f.mu.Lock()
	f.asked++
	taken := slices.Contains(f.claimed[worker], fire)
	if !taken {
		f.claimed[worker] = append(f.claimed[worker], fire)
	}
	f.mu.Unlock()
	if taken || f.run == nil {
		return service.Run{}, !taken, nil
	}
	return service.Run{}, true, f.run(ctx, fire)
}

func (f *fires) ResumeRuns(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resumed = append(f.resumed, time.Now())
	return f.refused
}

func (f *fires) of(worker string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.claimed[worker])
}

func every(crons ...string) *fires {
	f := &fires{claimed: map[string][]time.Time{}}
	for _, c := range crons {
		f.schedules = append(f.schedules, service.Schedule{Worker: c, Cron: c})
	}
	return f
}

// skewed is a clock that goes wrong by a constant.
type skewed struct {
	clockwork.Clock
	by time.Duration
}

func (s skewed) Now() time.Time { return s.Clock.Now().Add(s.by) }

// run runs one scheduler for each skew for some time, in a bubble, from five seconds past a full minute on.
func run(t *testing.T, f *fires, lasting time.Duration, log *bytes.Buffer, skews ...time.Duration) {
	t.Helper()
	time.Sleep(5 * time.Second)
	var schedulers []*Scheduler
	// One handler: it is what keeps their lines apart.
	logger := slog.New(slog.NewTextHandler(log, nil))
	for _, by := range skews {
		s, err := newScheduler(f, logger, skewed{clockwork.NewRealClock(), by})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		schedulers = append(schedulers, s)
	}
	time.Sleep(lasting)
	for _, s := range schedulers {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}
	synctest.Wait()
}

// minutes are the fires from the bubble's start, 2000-01-01 00:00 UTC, on.
func minutes(numbers ...int) (out []time.Time) {
	for _, n := range numbers {
		out = append(out, time.Date(2000, 1, 1, 0, n, 0, 0, time.UTC))
	}
	return out
}

func TestScheduler_FiresByTheExpression(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := every("* * * * *", "*/2 * * * *", "3 0 * * *", "0 12 * * *")
		run(t, f, 5*time.Minute+time.Second, new(bytes.Buffer), 0)
		for cron, want := range map[string][]time.Time{
			"* * * * *": minutes(1, 2, 3, 4, 5), "*/2 * * * *": minutes(2, 4), "3 0 * * *": minutes(3), "0 12 * * *": nil,
		} {
			if got := f.of(cron); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", cron, got, want)
			}
		}
	})
}

func TestScheduler_LooksForDeadRunsEveryHalfMinuteWhateverComesOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, log := every("0 12 * * *"), new(bytes.Buffer)
		f.refused = errors.New("not now")
		run(t, f, 95*time.Second, log, 0)
		if len(f.resumed) != 3 || f.resumed[2].Sub(f.resumed[0]) != time.Minute {
			t.Errorf("looked at %v", f.resumed)
		}
		if n := strings.Count(log.String(), "not now"); n != 3 {
			t.Errorf("%d warnings, want 3: %s", n, log)
		}
	})
}

func TestScheduler_ReplicasWithSkewedClocksClaimTheSameFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := every("* * * * *")
		run(t, f, 3*time.Minute+30*time.Second, new(bytes.Buffer), 0, time.Second, -time.Second, 700*time.Millisecond)
		if got := f.of("* * * * *"); !slices.Equal(got, minutes(1, 2, 3)) {
			t.Errorf("got %v", got)
		}
		if f.asked != 4*3 {
			t.Errorf("fires were asked for %d times, want 12", f.asked)
		}
	})
}

func TestScheduler_RunsMayOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := every("* * * * *")
		f.run = func(ctx context.Context, _ time.Time) error {
			select {
			case <-ctx.Done():
			case <-time.After(150 * time.Second):
			}
			return nil
		}
		run(t, f, 4*time.Minute+time.Second, new(bytes.Buffer), 0)
		if got := f.of("* * * * *"); !slices.Equal(got, minutes(1, 2, 3, 4)) {
			t.Errorf("got %v", got)
		}
	})
}

func TestScheduler_GoesOnAfterErrorsAndPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := every("* * * * *")
		f.run = func(_ context.Context, fire time.Time) error {
			if fire.Minute() == 2 {
				panic("broken")
			}
			return errors.New("database unreachable")
		}
		var log bytes.Buffer
		run(t, f, 3*time.Minute+time.Second, &log, 0)
		if got := f.of("* * * * *"); !slices.Equal(got, minutes(1, 2, 3)) {
			t.Errorf("got %v", got)
		}
		if n := strings.Count(log.String(), "did not start"); n != 2 || !strings.Contains(log.String(), "panicked") {
			t.Errorf("got the log %s", log.String())
		}
	})
}

func TestStop_EndsTheTicksAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := every("* * * * *")
		ended := make(chan error, 1)
		f.run = func(ctx context.Context, _ time.Time) error {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		}
		var log bytes.Buffer
		run(t, f, 90*time.Second, &log, 0)
		if err := <-ended; !errors.Is(err, errStopped) {
			t.Errorf("got %v", err)
		}
		if log.Len() > 0 {
			t.Errorf("got the log %s", log.String())
		}
	})
}

func TestStop_BeforeStartLeavesNothing(t *testing.T) {
	s, err := newScheduler(every("* * * * *"), slog.New(slog.DiscardHandler), clockwork.NewRealClock())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

func TestNew_RefusesWhatIsNoExpressionOfFiveFields(t *testing.T) {
	for _, cron := range []string{"", "* * * *", "* * * * * *", "@hourly", "@every 1s", "61 * * * *"} {
		f := every(cron)
		f.schedules[0].Worker = "w"
		s, err := newScheduler(f, slog.New(slog.DiscardHandler), clockwork.NewRealClock())
		if err == nil || !strings.Contains(err.Error(), "workers.w.schedule") {
			t.Errorf("%q: got %v, %v", cron, s, err)
		}
	}
}

func TestNominal_IsTheMinuteOfTheWakeUp(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, "2026-01-01T"+s+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct{ cron, now, fire string }{
		{"0 12 * * *", "12:00:00", "12:00:00"},
		{"0 12 * * *", "11:59:59.2", "12:00:00"},
		{"0 12 * * *", "12:00:58", "12:00:00"},
		{"0 12 * * *", "12:01:00", ""},
		{"0 12 * * *", "11:59:58", ""},
		{"*/5 * * * *", "12:04:59.999", "12:05:00"},
		{"*/5 * * * *", "12:06:00", ""},
	} {
		schedule, err := cron.ParseStandard(c.cron)
		if err != nil {
			t.Fatal(err)
		}
		fire, due := nominal(schedule, at(c.now))
		if due != (c.fire != "") || due && !fire.Equal(at(c.fire)) {
			t.Errorf("%s at %s: got %v %v, want %s", c.cron, c.now, fire, due, c.fire)
		}
	}
}

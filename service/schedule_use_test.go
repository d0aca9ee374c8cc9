package service_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/ghostuser"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

// hide makes the ghost migration one that is not configured, show undoes it.
func (c clocked) hide() { c.Exec("main", `ALTER TABLE ghost_user_migrations RENAME TO hidden`) }
func (c clocked) show() { c.Exec("main", `ALTER TABLE hidden RENAME TO ghost_user_migrations`) }

// watch lets a replica look at these times.
func (c clocked) watch(s *service.Service, times ...string) {
	c.T.Helper()
	for _, at := range times {
		c.at(at)
		c.due(s)
	}
}

// wantGhostFires fails the test unless the outcomes of the fires of the ghost migration are these.
func (c clocked) wantGhostFires(want string) {
	c.T.Helper()
	c.Want("main", `SELECT coalesce(string_agg(outcome, ' ' ORDER BY fire_time), '') FROM maintenance.fires WHERE worker = '`+servicetest.GhostUsers+`'`, want)
}

func ghostStatus(t *testing.T, s *service.Service) service.WorkerStatus {
	t.Helper()
	all := servicetest.Must(s.Status(context.Background(), servicetest.GhostUsers))(t)
	return all[0]
}

// wantNoSeries fails the test if any metric has a series of the worker.
func wantNoSeries(m *servicetest.Meter, worker string) {
	m.T.Helper()
	for _, name := range m.Names() {
		if values := m.Values(name, "worker="+worker); len(values) > 0 {
			m.T.Errorf("%s has %d series of %s", name, len(values), worker)
		}
	}
}

func TestUnused_AWorkerThatIsNotConfiguredHasNoFiresNoRunsAndNoSeries(t *testing.T) {
	m := servicetest.NewMeter(t)
	c := newClockedWith(t, "main")
	c.hide()
	var said bytes.Buffer
	s := c.Service(servicetest.OneChild, func(config *service.Config) { config.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	for _, at := range []string{"11-20 12:00:30", "11-20 12:02:00", "11-20 12:06:10", "11-21 12:00:00"} {
		c.at(at)
		c.due(s)
	}
	c.wantGhostFires("")
	c.Want("main", `SELECT count(*) FROM maintenance.runs WHERE worker = '`+servicetest.GhostUsers+`'`, "0")
	c.Want("main", `SELECT count(*) FROM maintenance.schedules WHERE worker = '`+servicetest.GhostUsers+`'`, "0")
	wantNoSeries(m, servicetest.GhostUsers)
	if n := strings.Count(said.String(), `msg="worker not used" worker=`+servicetest.GhostUsers); n != 1 {
		t.Errorf("said %d times that it is not used: %s", n, &said)
	}
	st := ghostStatus(t, s)
	if st.Condition != service.ConditionNotConfigured || !st.NextRunAt.IsZero() || !strings.Contains(st.NotUsed, "ghost_user_migrations") {
		t.Errorf("status %+v", st)
	}
	_, err := s.RunBatch(context.Background(), service.RunRequest{Worker: servicetest.GhostUsers})
	if _, ok := errors.AsType[*service.NotConfiguredError](err); !ok {
		t.Errorf("error %v, want that it is not configured", err)
	}
	if values := m.Values("maintenance.runs", "worker="+servicetest.LooseForeignKeys); len(values) != 4 {
		t.Errorf("%d series of runs of a worker that is used", len(values))
	}
}

func TestUnused_AWorkerThatIsNotEnabledAnywhereHasNoFires(t *testing.T) {
	m := servicetest.NewMeter(t)
	c := newClocked(t)
	s := c.scheduled("* * * * *, off, catch up")
	for _, at := range []string{"11-20 12:02:00", "11-20 13:00:00"} {
		c.at(at)
		c.due(s)
	}
	c.wantFires()
	wantNoSeries(m, servicetest.LooseForeignKeys)
	if st := servicetest.Status(t, s); st.NotUsed == "" || st.Condition != service.ConditionSchedulerOff {
		t.Errorf("status %+v", st)
	}
	// A request starts it all the same.
	servicetest.RunBatch(t, s, "main")
	// Enabled again it begins anew.
	on := c.scheduled("* * * * *, catch up")
	c.at("11-20 13:01:00")
	c.due(on)
	c.wantFires("11-20 13:01 ran +0")
	if st := servicetest.Status(t, on); st.NotUsed != "" {
		t.Errorf("not used: %s", st.NotUsed)
	}
}

func TestUnused_AWorkerThatIsConfiguredAgainHasMissedNothing(t *testing.T) {
	m := servicetest.NewMeter(t)
	c := newClockedWith(t, "main")
	s := c.Service(servicetest.OneChild, servicetest.With(func(c *ghostuser.Config) { c.CatchUp = new(true) }))
	c.due(s)
	c.at("11-20 12:07:10")
	c.Exec("main", `INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at)
		VALUES ('`+servicetest.GhostUsers+`', 'another', 1, now(), now(), now() + interval '1 year')`)
	c.due(s)
	c.wantGhostFires("missed missed skipped")
	unsuccessful := func() []float64 { return m.Values("maintenance.fires.unsuccessful", "worker="+servicetest.GhostUsers) }
	if got := unsuccessful(); len(got) != 1 || got[0] != 3 {
		t.Fatalf("unsuccessful: %v", got)
	}
	c.hide()
	c.watch(s, "11-20 12:09:10", "11-20 12:09:30", "11-20 12:09:50", "11-20 12:10:00")
	c.Want("main", `SELECT count(*) FROM maintenance.schedules WHERE worker = '`+servicetest.GhostUsers+`'`, "0")
	if st := ghostStatus(t, s); strings.Contains(st.ConditionDetail, "missed") {
		t.Errorf("status %s", st.ConditionDetail)
	}
	c.at("11-21 12:00:30")
	c.due(s)
	c.show()
	c.Exec("main", `DELETE FROM maintenance.leases`)
	again := c.Service(servicetest.OneChild, servicetest.With(func(c *ghostuser.Config) { c.CatchUp = new(true) }))
	c.due(again)
	c.due(again)
	c.wantGhostFires("missed missed skipped")
	if st := ghostStatus(t, again); st.NotUsed != "" || strings.Contains(st.ConditionDetail, "missed") {
		t.Errorf("status %+v", st)
	}
	servicetest.NoError(t, s.Shutdown(context.Background()))
	if got := unsuccessful(); len(got) != 1 || got[0] != 0 {
		t.Errorf("unsuccessful: %v", got)
	}
	c.at("11-21 12:02:00")
	c.due(again)
	c.wantGhostFires("missed missed skipped ran")
}

func TestFault_Unused_AConfiguredWorkerWhoseDatabaseIsDownIsUsed(t *testing.T) {
	own := servicetest.NewServer(t, "main")
	c := clocked{servicetest.New(t, "main")}
	c.Add("main", byTheClock(own.Cluster.URL("main")))
	c.Exec("main", clockSQL)
	s := c.scheduled("* * * * *")
	own.Stop()
	if err := s.RunDue(context.Background()); !errors.Is(err, service.ErrUnreachable) {
		t.Errorf("error %v, want that main is unreachable", err)
	}
	if st := ghostStatus(t, s); st.NotUsed != "" || st.Condition != service.ConditionFailing {
		t.Errorf("status %+v", st)
	}
	own.Start()
	c.SQL["main"] = c.Connect("main")
	c.at("11-20 12:05:10")
	devdb.Eventually(t, "main to answer", func() bool { return s.RunDue(context.Background()) == nil })
	c.settled()
	c.wantFires("11-20 12:01 missed", "11-20 12:02 missed", "11-20 12:03 missed", "11-20 12:04 missed", "11-20 12:05 ran +10")
}

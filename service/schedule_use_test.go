package service_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/gitlab/ghost"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// hide makes the ghost migration one that is not configured, show undoes it.
func (c clocked) hide() { c.Exec("main", `ALTER TABLE ghost_user_migrations RENAME TO hidden`) }
func (c clocked) show() { c.Exec("main", `ALTER TABLE hidden RENAME TO ghost_user_migrations`) }

// watch lets a replica check these times.
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

// wantNoSeries fails the test if any metric has a series of the worker.
func wantNoSeries(m *servicetest.Meter, worker string) {
	m.T.Helper()
	for _, name := range m.Names() {
		values := m.Values(name, "worker="+worker)
		assert.That(m.T, len(values) == 0, "%s has %d series of %s", name, len(values), worker)
	}
}

func TestUnused_AWorkerThatIsNotConfiguredHasNoFiresNoRunsAndNoSeries(t *testing.T) {
	m := servicetest.NewMeter(t)
	c := newClockedWith(t, "main")
	c.hide()
	var said servicetest.Buffer
	s := c.Service(servicetest.OneChild, func(config *service.Config) { config.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	c.watch(s, "11-20 12:00:30", "11-20 12:02:00", "11-20 12:06:10", "11-21 12:00:00")
	c.wantGhostFires("")
	c.Want("main", `SELECT count(*) FROM maintenance.runs WHERE worker = '`+servicetest.GhostUsers+`'`, "0")
	c.Want("main", `SELECT count(*) FROM maintenance.schedules WHERE worker = '`+servicetest.GhostUsers+`'`, "0")
	wantNoSeries(m, servicetest.GhostUsers)
	assert.Equal(t, strings.Count(said.String(), `msg="worker not used" worker=`+servicetest.GhostUsers), 1, "lines in "+said.String())
	st := servicetest.StatusOf(t, s, servicetest.GhostUsers)
	assert.That(t, st.Condition == status.ConditionNotConfigured && st.NextRunAt.IsZero() &&
		strings.Contains(st.NotUsed, "ghost_user_migrations"), "status %+v", st)
	_, err := s.RunBatch(context.Background(), run.Request{Worker: servicetest.GhostUsers})
	_, ok := errors.AsType[*fault.NotConfiguredError](err)
	assert.That(t, ok, "error %v, want that it is not configured", err)
	assert.Equal(t, len(m.Values("maintenance.runs", "worker="+servicetest.LooseForeignKeys)), 4, "series of runs of a worker that is used")
}

func TestUnused_AWorkerThatIsNotEnabledAnywhereHasNoFires(t *testing.T) {
	m := servicetest.NewMeter(t)
	c := newClocked(t)
	s := c.scheduled("* * * * *, off, catch up")
	c.watch(s, "11-20 12:02:00", "11-20 13:00:00")
	c.wantFires()
	wantNoSeries(m, servicetest.LooseForeignKeys)
	st := servicetest.Status(t, s)
	assert.That(t, st.NotUsed != "" && st.Condition == status.ConditionDisabled, "status %+v", st)
	// A request starts it all the same.
	servicetest.RunBatch(t, s, "main")
	// Enabled again it begins again.
	on := c.scheduled("* * * * *, catch up")
	c.watch(on, "11-20 13:01:00")
	c.wantFires("11-20 13:01 ran +0")
	assert.Equal(t, servicetest.Status(t, on).NotUsed, "", "why it is not used")
}

func TestUnused_AWorkerThatIsConfiguredAgainHasMissedNothing(t *testing.T) {
	m := servicetest.NewMeter(t)
	c := newClockedWith(t, "main")
	s := c.Service(servicetest.OneChild, servicetest.With(func(c *ghost.Config) { c.CatchUp = new(true) }))
	c.due(s)
	c.at("11-20 12:07:10")
	c.Exec("main", `INSERT INTO maintenance.leases (name, holder, epoch, acquired_at, renewed_at, expires_at)
		VALUES ('`+servicetest.GhostUsers+`', 'another', 1, now(), now(), now() + interval '1 year')`)
	c.due(s)
	c.wantGhostFires("missed missed skipped")
	const unsuccessful = "fires.unsuccessful worker=ghost_user_migration"
	wantSeries(m, map[string][2]float64{unsuccessful: {3, 3}})
	c.hide()
	c.watch(s, "11-20 12:09:10", "11-20 12:09:30", "11-20 12:09:50", "11-20 12:10:05")
	c.Want("main", `SELECT count(*) FROM maintenance.schedules WHERE worker = '`+servicetest.GhostUsers+`'`, "0")
	st := servicetest.StatusOf(t, s, servicetest.GhostUsers)
	assert.That(t, !strings.Contains(st.ConditionDetail, "missed"), "status %s", st.ConditionDetail)
	c.watch(s, "11-21 12:00:30")
	c.show()
	c.Exec("main", `DELETE FROM maintenance.leases`)
	again := c.Service(servicetest.OneChild, servicetest.With(func(c *ghost.Config) { c.CatchUp = new(true) }))
	c.due(again)
	c.due(again)
	c.wantGhostFires("missed missed skipped")
	st = servicetest.StatusOf(t, again, servicetest.GhostUsers)
	assert.That(t, st.NotUsed == "" && !strings.Contains(st.ConditionDetail, "missed"), "status %+v", st)
	assert.NoError(t, s.Shutdown(context.Background()))
	wantSeries(m, map[string][2]float64{unsuccessful: {0, 0}})
	c.watch(again, "11-21 12:02:00")
	c.wantGhostFires("missed missed skipped ran")
}

// breakOnce ends the backend of the first statement that does this to a table's row of the worker, in the middle of it.
func (c clocked) breakOnce(table, event string) {
	c.T.Helper()
	c.Exec("main", `CREATE SEQUENCE broken;
		CREATE FUNCTION break_once() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('public.broken') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(30); END IF;
			RETURN NEW;
		END $$`)
	c.Exec("main", `CREATE TRIGGER break_once BEFORE `+event+` ON `+table+` FOR EACH ROW
		WHEN (NEW::text LIKE '%`+servicetest.LooseForeignKeys+`%') EXECUTE FUNCTION break_once()`)
}

// TestRunDue_AFireWhoseRunCouldNotBeginIsRunByAnother: main goes away in the middle of the claim.
func TestRunDue_AFireWhoseRunCouldNotBeginIsRunByAnother(t *testing.T) {
	c := newClocked(servicetest.Parallel(t))
	for name, at := range map[string]struct{ table, event string }{
		"as its lease is taken":  {"maintenance.leases", "INSERT OR UPDATE"},
		"as the fire is claimed": {"maintenance.fires", "INSERT"},
		"as its run is recorded": {"maintenance.runs", "INSERT"},
	} {
		t.Run(name, func(t *testing.T) {
			c.InTurn(t)
			one, other := c.scheduled("0 0 * * *, catch up"), c.scheduled("0 0 * * *, catch up")
			c.breakOnce(at.table, at.event)
			c.at("11-21 00:00:05")
			isError(t, "main goes away", one.RunDue(context.Background()), fault.ErrUnreachable)
			c.wantFires()
			c.Want("main", `SELECT count(*) FROM maintenance.runs WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "0")
			c.Want("main", `SELECT count(*) FROM maintenance.leases`, "0")
			c.at("11-21 00:00:11")
			c.due(other)
			c.due(one)
			c.wantFires("11-21 00:00 ran +11")
			c.wantRuns(1)
		})
	}
}

func TestRunDue_Claims(t *testing.T) {
	servicetest.Cases(t, newClocked(servicetest.Parallel(t)).Estate, map[string]func(*servicetest.Estate){
		"RunDue_AClaimRecordsTheLeaseOfItsRun":          runDueAClaimRecordsTheLeaseOfItsRun,
		"ResumeRuns_DoesNotRepeatARunThatMayHaveWorked": resumeRunsDoesNotRepeatARunThatMayHaveWorked,
	})
}

// runDueAClaimRecordsTheLeaseOfItsRun: a server that dies after it leaves no run that no other
// closes.
func runDueAClaimRecordsTheLeaseOfItsRun(e *servicetest.Estate) {
	c := clocked{e}
	s := c.scheduled("* * * * *")
	c.Exec("main", `CREATE TABLE seen AS SELECT 0::bigint AS epoch, '' AS outcome LIMIT 0;
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO public.seen SELECT NEW.lease_epoch, outcome FROM maintenance.fires WHERE run_id = NEW.id;
			RETURN NULL;
		END $$`)
	c.Exec("main", `CREATE CONSTRAINT TRIGGER see AFTER INSERT ON maintenance.runs DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.worker = '`+servicetest.LooseForeignKeys+`') EXECUTE FUNCTION see()`)
	c.at("11-20 12:02:01")
	c.due(s)
	c.Want("main", `SELECT string_agg(epoch || ' ' || outcome, ', ') FROM public.seen`, "1 ran")
}

func resumeRunsDoesNotRepeatARunThatMayHaveWorked(e *servicetest.Estate) {
	t, c := e.T, clocked{e}
	c.scheduled("0 0 * * *, catch up")
	living := c.scheduled("0 0 * * *, catch up")
	c.at("11-21 00:00:05")
	c.Exec("main", `WITH run AS (
			INSERT INTO maintenance.runs (id, worker, database, trigger, state, replica, lease_epoch, heartbeat_ttl)
			VALUES (gen_random_uuid(), '`+servicetest.LooseForeignKeys+`', 'main', 'schedule', 'running', 'dead', 1, '40 s') RETURNING id, worker
		), fire AS (
			INSERT INTO maintenance.fires (worker, fire_time, claimed_by, run_id, started_at)
			SELECT worker, '2026-11-21Z', 'dead', id, clock_timestamp() FROM run RETURNING worker, fire_time
		)
		UPDATE maintenance.schedules s SET accounted_until = fire_time FROM fire WHERE s.worker = fire.worker`)
	c.at("11-21 08:00:00")
	assert.NoError(t, living.ResumeRuns(context.Background()))
	servicetest.Status(t, living)
	c.due(living)
	c.Want("main", `SELECT concat_ws(' ', f.outcome, r.state, r.reason) FROM maintenance.fires f JOIN maintenance.runs r ON r.id = f.run_id
		WHERE f.worker = '`+servicetest.LooseForeignKeys+`'`, "ran failed LEASE_LOST")
	c.wantRuns(0)
}

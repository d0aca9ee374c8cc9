package service_test

import (
	"context"
	"errors"
	"testing"

	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/servicetest"
)

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
	for name, at := range map[string]struct{ table, event string }{
		"as its lease is taken":  {"maintenance.leases", "INSERT OR UPDATE"},
		"as the fire is claimed": {"maintenance.fires", "INSERT"},
		"as its run is recorded": {"maintenance.runs", "INSERT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClocked(t)
			one, other := c.scheduled("0 0 * * *, catch up"), c.scheduled("0 0 * * *, catch up")
			c.breakOnce(at.table, at.event)
			c.at("11-21 00:00:05")
			if err := one.RunDue(context.Background()); !errors.Is(err, service.ErrUnreachable) {
				t.Errorf("error %v, want that main is unreachable", err)
			}
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

// TestRunDue_AClaimRecordsTheLeaseOfItsRun: whoever dies after it has left nothing that nobody closes.
func TestRunDue_AClaimRecordsTheLeaseOfItsRun(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
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

func TestResumeRuns_DoesNotRepeatARunThatMayHaveWorked(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
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
	if err := living.ResumeRuns(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := living.Status(context.Background(), servicetest.LooseForeignKeys); err != nil {
		t.Error(err)
	}
	c.due(living)
	c.Want("main", `SELECT concat_ws(' ', f.outcome, r.state, r.reason) FROM maintenance.fires f JOIN maintenance.runs r ON r.id = f.run_id
		WHERE f.worker = '`+servicetest.LooseForeignKeys+`'`, "ran failed LEASE_LOST")
	c.wantRuns(0)
}

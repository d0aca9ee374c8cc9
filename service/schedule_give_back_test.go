package service_test

import (
	"context"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/repo"
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

// TestRunDue_AFireWhoseRunCouldNotBeginIsRunByAnother: main goes away after the fire's run is on record.
func TestRunDue_AFireWhoseRunCouldNotBeginIsRunByAnother(t *testing.T) {
	for name, at := range map[string]struct{ table, event string }{
		"as its lease is taken":           {"maintenance.leases", "INSERT OR UPDATE"},
		"as its epoch is put on record":   {"maintenance.runs", "UPDATE OF lease_epoch"},
		"as it is to be recorded, before": {"maintenance.runs", "INSERT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClocked(t)
			one, other := c.replica("0 0 * * *", catchUp(true)), c.replica("0 0 * * *", catchUp(true))
			c.breakOnce(at.table, at.event)
			c.at("11-21 00:00:05")
			c.due(one)
			c.wantRuns(0)
			c.Eventually("main", `SELECT string_agg(concat_ws('/', outcome, claimed_by, run_id), ' ') FROM maintenance.fires WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "claimed/")
			c.Want("main", `SELECT count(*) FROM maintenance.runs WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "0")
			c.at("11-21 00:00:11")
			c.due(other)
			c.due(one)
			c.wantFires("11-21 00:00 ran TAKEN_OVER +11")
			c.wantRuns(1)
		})
	}
}

func TestResumeRuns_GivesBackTheFireOfAProcessThatDiedBeforeItsRunWorked(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	dying, living := c.replica("0 0 * * *", catchUp(true)), c.replica("0 0 * * *", catchUp(true))
	c.at("11-21 00:00:05")
	fire, id := c.claim(dying, "11-21 00:00")
	begun := repo.Run{ID: id, Worker: servicetest.LooseForeignKeys, Database: "main", Fire: fire, Replica: "dead"}
	if _, err := c.Open[0].StartFire(context.Background(), begun, 40*time.Second); err != nil {
		t.Fatal(err)
	}
	resume := func() {
		t.Helper()
		if err := living.ResumeRuns(context.Background()); err != nil {
			t.Error(err)
		}
	}
	// Its lease, if it has one, may be later than its record.
	c.at("11-21 00:00:49")
	resume()
	c.wantFires("11-21 00:00 ran +5")
	c.at("11-21 00:00:51")
	resume()
	c.wantFires("11-21 00:00 claimed")
	c.due(living)
	c.wantFires("11-21 00:00 ran TAKEN_OVER +51")
	c.wantRuns(1)
	// It was only asleep.
	if _, _, err := c.Open[0].FinishRun(context.Background(), begun); err == nil {
		t.Error("a run that was forgotten has ended")
	}
}

func TestResumeRuns_DoesNotRepeatARunThatMayHaveWorked(t *testing.T) {
	t.Parallel()
	c := newClocked(t)
	dying, living := c.replica("0 0 * * *", catchUp(true)), c.replica("0 0 * * *", catchUp(true))
	c.at("11-21 00:00:05")
	fire, id := c.claim(dying, "11-21 00:00")
	begun := repo.Run{ID: id, Worker: servicetest.LooseForeignKeys, Database: "main", Fire: fire, Replica: "dead", LeaseEpoch: 1}
	if _, err := c.Open[0].StartFire(context.Background(), begun, 40*time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Open[0].SaveProgress(context.Background(), begun); err != nil {
		t.Fatal(err)
	}
	c.at("11-21 08:00:00")
	if err := living.ResumeRuns(context.Background()); err != nil {
		t.Error(err)
	}
	servicetest.Status(t, living)
	c.due(living)
	c.Want("main", `SELECT concat_ws(' ', f.outcome, r.state, r.reason) FROM maintenance.fires f JOIN maintenance.runs r ON r.id = f.run_id
		WHERE f.worker = '`+servicetest.LooseForeignKeys+`'`, "ran failed LEASE_LOST")
	c.wantRuns(0)
}

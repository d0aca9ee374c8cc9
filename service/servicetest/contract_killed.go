package servicetest

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service/run"
)

// unsavedSQL keeps the counts of runs from being saved before their end.
const unsavedSQL = `CREATE FUNCTION contract.unsaved() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN NEW.counts := OLD.counts; NEW.tables := OLD.tables; RETURN NEW; END';
CREATE TRIGGER unsaved BEFORE UPDATE ON maintenance.runs FOR EACH ROW WHEN (NEW.state = 'running') EXECUTE FUNCTION contract.unsaved()`

// miscountedSQL compares the sums of the runs with the dry run. Orphans that a killed run has recorded are none for the next.
const miscountedSQL = `
SELECT string_agg(key || ': ' || wet || ' instead of ' || dry, ', ') FROM (
  SELECT key, coalesce(sum(n) FILTER (WHERE NOT dry_run), 0) AS wet, coalesce(sum(n) FILTER (WHERE dry_run), 0) AS dry
  FROM (
    SELECT dry_run, key, value::bigint AS n FROM maintenance.runs, jsonb_each_text(counts)
    UNION ALL
    SELECT dry_run, t ->> 'table', (t ->> 'deleted')::bigint + (t ->> 'updated')::bigint
    FROM maintenance.runs, jsonb_array_elements(tables) AS t) c GROUP BY key) sums
WHERE wet <> dry AND NOT starts_with(key, 'orphaned_')`

// killed kills two processes, one after the other, when some more things are done, anywhere. The counts of all runs are
// those of a run that does everything, although what was counted since the last commit is lost each time.
func (c *contract) killed() {
	c.begin(40)
	c.run(c.service(nil, ""), true)
	c.e.Exec("main", unsavedSQL)
	c.slow()
	file := c.configuration(nil, "")
	for range 2 {
		enough := c.done() + 1 + rand.IntN(8)
		c.t.Logf("killed after %d items were done", enough)
		p := c.e.Start("doomed", "", func(o *Order) {
			o.Worker, o.Database, o.Definitions, o.Configuration = c.Worker, "", "", file
		})
		c.e.Eventually("main", fmt.Sprintf(`SELECT count(*) >= %d FROM contract.done`, enough), "true")
		p.Kill()
		c.e.DoomedGone()
		c.free()
		c.e.Exec("main", `UPDATE maintenance.runs SET heartbeat_ttl = '0' WHERE replica = 'doomed'`)
	}
	c.wantUnfinished()
	s := c.service(nil, "")
	c.finish(s)
	if _, err := s.Runs(context.Background(), run.Filter{Limit: 1}); err != nil {
		c.t.Fatal(err)
	}
	c.e.Want("main", miscountedSQL, "NULL")
}

func (c *contract) stopped() {
	c.begin(40)
	c.slow()
	s := c.service(nil, "")
	begun, another := c.started(s), c.service(nil, "")
	if _, err := another.CancelRun(context.Background(), begun.ID, "somebody"); err != nil {
		c.t.Fatal(err)
	}
	r := Ended(c.t, another, begun.ID)
	WantState(c.t, r, control.RunCancelled)
	if r.Reason != "CANCELLED" || r.FinishedAt.IsZero() {
		c.t.Errorf("reason %q, finished at %s", r.Reason, r.FinishedAt)
	}
	c.wantUnfinished()
	c.finish(s)
}

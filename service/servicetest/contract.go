package servicetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/repo/control"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/run/fault"
	"github.com/caretaker-go/caretaker/service/status"
)

// Fixture is what [Contract] has to know of a worker.
type Fixture struct {
	// Worker is its name.
	Worker string
	// Schema is the part of the reference schema that main has: main or all.
	Schema string
	// Prepare makes what must be there for the worker to be configured, with nothing due. It may be
	// nil.
	Prepare func(e *Estate)
	// Due puts n things that are due into main, fewer than 100.
	Due func(e *Estate, n int)
	// Done is the change of a row that reports that a thing is done.
	Done Change
	// Settings of the worker that make it do one thing at a time, or a few, by key.
	Settings map[string]string
	// Limit are settings with which a run stops before ten things are done. nil means the worker has
	// no limit of its own.
	Limit map[string]string
	// Unseen: the backlog counts only things that a run has started. StayDue: things stay due until their jobs have ended.
	Unseen, StayDue bool
	// RolledBack is the table that a dry run writes to in a transaction that it rolls back, "" for
	// none.
	RolledBack string
}

// Change is what is done to one row of a table for each thing that a worker does.
type Change struct {
	// Event is INSERT, UPDATE or DELETE.
	Event, Table string
	// Thing is what was done, by an expression on the jsonb r of the row. NULL is no thing.
	Thing string
}

// Contract holds a worker to what all of them promise. It runs the suite on three estates in parallel. Each part
// starts from the same rows.
func Contract(t *testing.T, f Fixture) {
	t.Helper()
	if !slices.Contains(Workers(), f.Worker) {
		t.Fatalf("unknown worker %q: the workers are %q", f.Worker, Workers())
	}
	var estates sync.WaitGroup
	defer estates.Wait()
	for _, parts := range contractParts() {
		e := f.estate(t)
		estates.Go(func() {
			for _, p := range parts {
				t.Run(p.name, func(t *testing.T) { p.test(&contract{Fixture: f, t: t, e: e}) })
			}
		})
	}
}

// part is a part of the suite.
type part struct {
	name string
	test func(*contract)
}

// contractParts returns the parts of the suite by the databases they share. A part that makes triggers or kills
// processes is the last one on its databases.
func contractParts() [][]part {
	return [][]part{
		{
			{"resumes after load has ended a run", (*contract).load},
			{"runs never overlap", (*contract).twoAtOnce},
			{"writes a receipt for each change", (*contract).receipts},
		},
		{
			{"resumes after a run has lost its lease", (*contract).leaseLost},
			{"stops after the current statement", (*contract).stopped},
			{"resumes after its process was killed", (*contract).killed},
		},
		{
			{"finds nothing if nothing is due", (*contract).nothingDue},
			{"resumes after a limit has ended a run", (*contract).limit},
			{"does only what was planned", (*contract).planned},
			{"reports its backlog", (*contract).backlog},
			{"has a page and documented settings", (*contract).documented},
			{"writes and locks nothing in a dry run", (*contract).dryRun},
		},
	}
}

// estate returns a main with nothing due, which records what is done.
func (f Fixture) estate(t *testing.T) *Estate {
	t.Helper()
	e := New(t, f.Schema, "main")
	if f.Prepare != nil {
		f.Prepare(e)
	}
	e.Exec("main", strings.NewReplacer("{thing}", f.Done.Thing, "{event}", f.Done.Event, "{table}", f.Done.Table).
		Replace(contractSQL))
	return e
}

// contract is one running part of the suite.
type contract struct {
	Fixture
	t *testing.T
	e *Estate
	n int
}

// contractSQL notes what is done, in the transaction that does it, and lets it take its time while slow has a row.
const contractSQL = `
CREATE SCHEMA contract;
CREATE TABLE contract.done (thing text);
CREATE TABLE contract.slow (for_seconds float8);
CREATE FUNCTION contract.note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE r jsonb := to_jsonb(CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END);
BEGIN
  PERFORM pg_sleep(for_seconds) FROM contract.slow;
  INSERT INTO contract.done SELECT {thing} WHERE ({thing}) IS NOT NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER contract AFTER {event} ON {table} FOR EACH ROW EXECUTE FUNCTION contract.note()`

// begin lets the part have the databases, with n things that are due and nothing done.
func (c *contract) begin(n int) {
	c.t.Helper()
	c.e.InTurn(c.t)
	if c.n = n; n > 0 {
		c.Due(c.e, n)
	}
	c.e.Exec("main", `TRUNCATE contract.done`)
}

// service works one thing at a time, with more settings and limits of the load.
func (c *contract) service(more map[string]string, load string) *service.Service {
	c.t.Helper()
	return c.e.Service("", c.e.WithQueue, ConfiguredBy(c.t, c.configuration(more, load)))
}

func (c *contract) configuration(more map[string]string, load string) string {
	c.t.Helper()
	settings := maps.Clone(c.Settings)
	maps.Copy(settings, more)
	return Configuration(c.t, c.Worker, settings, load)
}

// slow lets each thing take a moment, so that a run lasts until fast, or some seconds.
func (c *contract) slow() { c.e.Exec("main", `INSERT INTO contract.slow VALUES (0.15)`) }
func (c *contract) fast() { c.e.Exec("main", `TRUNCATE contract.slow`) }

// run runs the worker on main. It must succeed.
func (c *contract) run(s *service.Service, dry bool) run.Run {
	c.t.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: c.Worker, DryRun: dry})
	if err != nil {
		c.t.Fatal(err)
	}
	WantState(c.t, r, control.RunSucceeded)
	return r
}

// started starts a run and waits until something is done.
func (c *contract) started(s *service.Service) run.Run {
	c.t.Helper()
	r, err := s.RunBatch(context.Background(), run.Request{Worker: c.Worker, Async: true})
	if err != nil {
		c.t.Fatal(err)
	}
	c.e.Eventually("main", `SELECT count(*) > 0 FROM contract.done`, "true")
	return r
}

// done is how many things are done. None must be done twice.
func (c *contract) done() (n int) {
	c.t.Helper()
	twice := ""
	err := c.e.SQL["main"].QueryRow(context.Background(), `SELECT count(*), coalesce(string_agg(thing, ', ') FILTER (WHERE times > 1), '')
		FROM (SELECT thing, count(*) AS times FROM contract.done GROUP BY 1) d`).Scan(&n, &twice)
	if err != nil {
		c.t.Fatal(err)
	}
	if twice != "" {
		c.t.Errorf("processed twice: %s", twice)
	}
	return n
}

// wantUnfinished fails the test unless something is done and something left, and no lease is held.
func (c *contract) wantUnfinished() {
	c.t.Helper()
	if n := c.done(); n == 0 || n >= c.n {
		c.t.Errorf("%d of %d items are done", n, c.n)
	}
	c.e.Want("main", `SELECT count(*) FROM maintenance.leases WHERE expires_at > clock_timestamp()`, "0")
}

// finish runs the worker until no limit stops it. All things must then be done.
func (c *contract) finish(s *service.Service) {
	c.t.Helper()
	c.fast()
	for runs := 0; c.run(s, false).OverLimit; runs++ {
		if runs > c.n {
			c.t.Fatalf("work remains after %d runs: %d of %d items are done", runs, c.done(), c.n)
		}
	}
	if n := c.done(); n != c.n {
		c.t.Errorf("%d of %d items are done", n, c.n)
	}
}

// free lets the lease of a dead process expire.
func (c *contract) free() {
	c.t.Helper()
	c.e.Exec("main", `UPDATE maintenance.leases SET expires_at = clock_timestamp() WHERE expires_at > clock_timestamp()`)
}

func (c *contract) nothingDue() {
	c.begin(0)
	r := c.run(c.service(nil, ""), false)
	for count, n := range r.Counts {
		if n != 0 {
			c.t.Errorf("%s = %d", count, n)
		}
	}
	if len(r.Counts) == 0 || len(r.Tables) > 0 || r.OverLimit {
		c.t.Errorf("got %+v", r)
	}
	c.finish(c.service(nil, ""))
}

func (c *contract) limit() {
	if c.Limit == nil {
		return
	}
	c.begin(10)
	s := c.service(c.Limit, "")
	r := c.run(s, false)
	if !r.OverLimit || r.Reason == "" {
		c.t.Errorf("over_limit %t, reason %q", r.OverLimit, r.Reason)
	}
	c.wantUnfinished()
	c.finish(s)
}

// load has a limit that every write to the log of the database exceeds.
func (c *contract) load() {
	c.begin(60)
	c.slow()
	ctx, stop := context.WithCancel(context.Background())
	writer, stopped := c.e.Connect("main"), make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			_, _ = writer.Exec(ctx, `SELECT pg_logical_emit_message(false, '', repeat('x', 10000)), pg_sleep(0.02)`)
		}
	}()
	r := c.run(c.service(nil, ", max_wal_rate: 1B, timeout: 300ms"), false)
	stop()
	<-stopped
	WantEarly(c.t, r, "THROTTLED")
	c.e.Want("main", `SELECT count(*) FROM maintenance.leases WHERE expires_at > clock_timestamp()`, "0")
	if n := c.done(); n >= c.n {
		c.t.Errorf("all %d items are done", n)
	}
	c.finish(c.service(nil, ""))
}

func (c *contract) twoAtOnce() {
	c.begin(40)
	c.slow()
	first, second := c.service(nil, ""), c.service(nil, "")
	begun := c.started(first)
	_, err := second.RunBatch(context.Background(), run.Request{Worker: c.Worker})
	if _, held := errors.AsType[*fault.LeaseHeldError](err); !held {
		c.t.Fatalf("got %v, want LEASE_HELD", err)
	}
	c.fast()
	WantState(c.t, Ended(c.t, first, begun.ID), control.RunSucceeded)
	c.finish(second)
}

func (c *contract) leaseLost() {
	c.begin(40)
	c.slow()
	s := c.service(nil, "")
	begun := c.started(s)
	// The run locks the row of the lease almost without a gap. A lock on the table queues. One on the
	// row would starve.
	c.e.Exec("main", `BEGIN; LOCK TABLE maintenance.leases IN EXCLUSIVE MODE;
		UPDATE maintenance.leases SET holder = 'somebody', epoch = epoch + 1,
		expires_at = clock_timestamp() + interval '1 hour' WHERE expires_at > clock_timestamp(); COMMIT`)
	WantLost(c.t, Ended(c.t, s, begun.ID))
	left := c.done()
	c.free()
	c.wantUnfinished()
	if n := c.done(); n != left {
		c.t.Errorf("%d items were processed without the lease", n-left)
	}
	c.finish(c.service(nil, ""))
}

// watchSQL notes which tables statements write to, even those that are rolled back. Runs, fires and leases are the engine's.
// Pruned tables have row triggers: a statement trigger fires even if nothing is pruned.
const watchSQL = `
CREATE SCHEMA written;
CREATE FUNCTION contract.watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM nextval(format('written.%I', TG_TABLE_NAME));
  RETURN NULL;
END $$;
DO $$
DECLARE t record;
BEGIN
  FOR t IN SELECT oid::regclass AS name, relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition
      AND relnamespace IN ('public'::regnamespace, 'maintenance'::regnamespace)
      AND oid <> ALL ('{maintenance.runs,maintenance.fires,maintenance.leases}'::regclass[]) LOOP
    EXECUTE format('CREATE SEQUENCE IF NOT EXISTS written.%I', t.relname);
    EXECUTE format('CREATE TRIGGER watch AFTER INSERT OR UPDATE OR DELETE ON %s %s EXECUTE FUNCTION contract.watch()', t.name,
      CASE WHEN t.relname IN ('receipts', 'receipt_head', 'run_counts', 'audit', 'job_cancellations', 'outside_paths', 'protected_targets') THEN 'FOR EACH ROW' ELSE '' END);
  END LOOP;
END $$`

func (c *contract) dryRun() {
	c.begin(10)
	c.e.Exec("main", watchSQL)
	s := c.service(nil, "")
	release := c.e.Hold(`SELECT FROM ` + c.Done.Table + ` FOR UPDATE`)
	// It needs no lease.
	for _, lease := range []string{c.Worker, c.Worker + "/main"} {
		c.e.ForeignLease("main", lease, "1 hour")
	}
	before := c.rows()
	dry := c.run(s, true)
	release()
	c.free()
	for table, rows := range c.rows() {
		if rows != before[table] {
			c.t.Errorf("%s has changed", table)
		}
	}
	c.e.Want("main", `SELECT string_agg(sequencename, ', ') FROM pg_sequences
		WHERE schemaname = 'written' AND last_value IS NOT NULL AND sequencename <> '`+c.RolledBack+`'`, "NULL")
	if dry.OverLimit {
		c.t.Errorf("over limit: %s", dry.Reason)
	}
	if wet := c.run(s, false); !maps.Equal(dry.Counts, wet.Counts) || !slices.Equal(dry.Tables, wet.Tables) {
		c.t.Errorf("the dry run counted %v %v, but the run counted %v %v", dry.Counts, dry.Tables, wet.Counts, wet.Tables)
	}
	c.finish(s)
}

// rows are the tables' contents, but the engine's records of the run.
func (c *contract) rows() map[string]string {
	c.t.Helper()
	return devdb.Content(c.t, c.e.SQL["main"], "maintenance.runs", "maintenance.fires", "maintenance.leases")
}

func (c *contract) backlog() {
	c.begin(10)
	due := int64(10)
	if c.Unseen {
		c.run(c.service(c.Limit, ""), false)
		due = 0
	}
	st := StatusOf(c.t, c.service(nil, ""), c.Worker)
	if st.Backlog.Due < due || st.Backlog.Pending == 0 || st.Backlog.Pending > 10 {
		c.t.Errorf("10 items are pending, but the backlog is %+v", st.Backlog)
	}
	c.finish(c.service(nil, ""))
	if !c.StayDue {
		due = 0
	}
	st = StatusOf(c.t, c.service(nil, ""), c.Worker)
	if st.Backlog.Due != due || st.Condition != status.ConditionIdle || st.LastRun == nil || st.LastSuccessAt.IsZero() {
		c.t.Errorf("all items are done, but the status is %+v", st)
	}
}

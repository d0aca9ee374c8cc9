package service_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/caretaker-go/caretaker/devdb"
	"github.com/caretaker-go/caretaker/internal/assert"
	"github.com/caretaker-go/caretaker/repo"
	"github.com/caretaker-go/caretaker/scheduler"
	"github.com/caretaker-go/caretaker/service"
	"github.com/caretaker-go/caretaker/service/lfk"
	"github.com/caretaker-go/caretaker/service/run"
	"github.com/caretaker-go/caretaker/service/servicetest"
	"github.com/caretaker-go/caretaker/service/status"
)

// clockSQL puts a clock that stands still in front of PostgreSQL's own, for connections whose
// search_path reports it.
const clockSQL = `
CREATE TABLE public.clock (at timestamptz NOT NULL);
INSERT INTO public.clock VALUES ('2026-11-20 12:00:30Z');
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM public.clock';
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM public.clock';
CREATE TABLE c (id bigserial PRIMARY KEY, p_id bigint);
CREATE INDEX ON c (p_id)`

// byTheClock is a URL by which the clock of the test is seen, in a session whose time zone is Berlin's.
func byTheClock(url string) string {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return url + separator + "search_path=public,pg_catalog&timezone=Europe/Berlin"
}

func withClock(schema string) devdb.Template {
	return devdb.Template{Name: "clock", Schema: schema, Version: clockSQL, Prepare: func(ctx context.Context, url string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, clockSQL)
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return err
		}
		d, err := repo.Open(ctx, "main", byTheClock(url))
		if err != nil {
			return err
		}
		defer d.Close()
		_, err = scheduler.Migrate(ctx, d)
		return err
	}}
}

// clocked is an estate whose main has the time that the test reports, and no worker's tables but
// those of loose_foreign_keys_cleanup.
type clocked struct{ *servicetest.Estate }

func newClocked(t *testing.T, others ...string) clocked {
	t.Helper()
	return newClockedWith(t, servicetest.Small, others...)
}

// newClockedWith is newClocked with another schema in main.
func newClockedWith(t *testing.T, schema string, others ...string) clocked {
	t.Helper()
	e := &servicetest.Estate{T: t, URLs: map[string]string{}, SQL: map[string]*pgx.Conn{}}
	e.Add("main", byTheClock(servicetest.Databases.Clone(t, withClock(schema))))
	for _, name := range others {
		e.Add(name, servicetest.Databases.Clone(t, servicetest.Migrated(servicetest.Small)))
	}
	return clocked{e}
}

// at sets the clock of main: "11-20 12:00:00" of 2026, UTC.
func (c clocked) at(at string) {
	c.T.Helper()
	c.Exec("main", `UPDATE public.clock SET at = ('2026-' || $1 || 'Z')::timestamptz`, at)
}

// due lets a replica check what is due, and waits for the runs.
func (c clocked) due(s *service.Service) {
	c.T.Helper()
	assert.NoError(c.T, s.RunDue(context.Background()))
	c.settled()
}

func (c clocked) settled() {
	c.T.Helper()
	c.Eventually("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'running'`, "0")
}

// wantFires fails the test unless the ledger of the worker is this, one fire a line. A line has
// month, day, time, outcome, code of the reason and delay.
func (c clocked) wantFires(want ...string) {
	c.T.Helper()
	got := c.Value("main", `SELECT coalesce(string_agg(concat_ws(' ', to_char(fire_time AT TIME ZONE 'UTC', 'MM-DD HH24:MI'), outcome, nullif(split_part(reason, ':', 1), ''),
		'+' || extract(epoch FROM started_at - fire_time)::int), E'\n' ORDER BY fire_time), '')
		FROM maintenance.fires WHERE worker = '`+servicetest.LooseForeignKeys+`'`)
	assert.Equal(c.T, got, strings.Join(want, "\n"), "ledger")
}

// wantRuns fails the test unless so many runs of the worker have worked.
func (c clocked) wantRuns(n int) {
	c.T.Helper()
	c.Want("main", `SELECT count(*) FROM maintenance.runs WHERE state = 'succeeded' AND worker = '`+servicetest.LooseForeignKeys+`'`, fmt.Sprint(n))
	c.Want("main", `SELECT count(*) FROM maintenance.fires f JOIN maintenance.runs r ON r.id = f.run_id AND r.worker = f.worker
		WHERE f.outcome = 'ran' AND r.state = 'succeeded' AND f.started_at = r.started_at AND f.worker = '`+servicetest.LooseForeignKeys+`'`, fmt.Sprint(n))
}

func rotateAll(c *service.Config) { service.Settings[lfk.Config](c).Rotation = lfk.RotationAll }

// newRounds is a server whose fires work all databases. Its first check is over. The clock
// continues from where it is set.
func newRounds(t *testing.T, others ...string) (clocked, *service.Service) {
	t.Helper()
	c := newClocked(t, others...)
	c.Exec("main", `ALTER TABLE public.clock ADD since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()`)
	c.Exec("main", `CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT at + (pg_catalog.clock_timestamp() - since) FROM public.clock'`)
	s := c.Service(servicetest.OneChild, rotateAll)
	c.due(s)
	return c, s
}

// dueIn records a deleted parent in databases, which is due by any clock.
func (c clocked) dueIn(names ...string) {
	c.T.Helper()
	for _, name := range names {
		c.Exec(name, `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, consume_after)
			VALUES ('public.p', 1, '2026-01-01')`)
	}
}

// restarted stops the server and returns another one. The round before has then ended: while it lasts, it works whatever
// becomes due in the databases that are still to come.
func (c clocked) restarted(s *service.Service) *service.Service {
	c.T.Helper()
	assert.NoError(c.T, s.Shutdown(context.Background()))
	s = c.Service(servicetest.OneChild, rotateAll)
	c.due(s)
	return s
}

// fire lets the server check a time of main, and waits until these runs are on record. They have
// database, state and reason, in the order in which they started. Each has started after the one
// before had ended.
func (c clocked) fire(s *service.Service, at string, runs ...string) {
	c.T.Helper()
	c.at(at)
	c.Exec("main", `UPDATE public.clock SET since = pg_catalog.clock_timestamp()`)
	assert.NoError(c.T, s.RunDue(context.Background()))
	c.Eventually("main", `SELECT coalesce(string_agg(concat_ws(' ', database, state, nullif(split_part(reason, ':', 1), '')), ', ' ORDER BY id), '')
		FROM maintenance.runs WHERE finished_at IS NOT NULL AND worker = '`+servicetest.LooseForeignKeys+`'`, strings.Join(runs, ", "))
	c.Want("main", `SELECT count(*) FROM maintenance.runs a JOIN maintenance.runs b ON b.worker = a.worker AND b.id > a.id AND b.started_at < a.finished_at
		WHERE a.worker = '`+servicetest.LooseForeignKeys+`'`, "0")
}

// wantOutcomes fails the test unless the fires had these outcomes, with their reasons.
func (c clocked) wantOutcomes(want string) {
	c.T.Helper()
	c.Want("main", `SELECT string_agg(concat_ws(' ', outcome, nullif(reason, '')), ', ' ORDER BY fire_time) FROM maintenance.fires
		WHERE worker = '`+servicetest.LooseForeignKeys+`'`, want)
}

func TestRound_AFireWorksEveryDatabaseThatHasRecordsDueOneAfterTheOther(t *testing.T) {
	c, s := newRounds(servicetest.Parallel(t), "ci", "sec")
	c.dueIn("ci", "sec")
	c.fire(s, "11-20 12:01:00", "ci succeeded", "sec succeeded")
	for _, name := range []string{"ci", "sec"} {
		c.WantQueue(name, "")
		c.Want(name, `SELECT string_agg(concat_ws(' ', name, epoch, expires_at > now()), ', ') FROM maintenance.leases`, servicetest.LooseForeignKeys+"/"+name+" 1 f")
	}
	c.wantOutcomes("ran")
	c.Want("main", `SELECT r.database FROM maintenance.fires f JOIN maintenance.runs r ON r.id = f.run_id WHERE f.worker = '`+servicetest.LooseForeignKeys+`'`, "ci")
	// Records of a parent without definition belong to no run.
	c.Exec("sec", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.unknown', 1)`)
	s = c.restarted(s)
	c.dueIn("main", "ci")
	c.fire(s, "11-20 12:02:00", "ci succeeded", "sec succeeded", "main succeeded", "ci succeeded")
	// A pause is one skipped fire.
	s = c.restarted(s)
	c.dueIn("main", "ci", "sec")
	servicetest.Pause(t, s, servicetest.LooseForeignKeys)
	c.fire(s, "11-20 12:04:00", "ci succeeded", "sec succeeded", "main succeeded", "ci succeeded", "main skipped WORKER_PAUSED")
	assert.NoError(t, s.Shutdown(context.Background()))
	c.Want("main", `SELECT count(*) FROM maintenance.runs WHERE worker = '`+servicetest.LooseForeignKeys+`'`, "5")
}

func TestRound_WhatCannotStartDoesNotKeepTheOthersFromIt(t *testing.T) {
	c, s := newRounds(servicetest.Parallel(t), "ci", "sec")
	c.dueIn("main", "ci", "sec")
	c.ForeignLease("ci", "loose_foreign_keys_cleanup/ci", "1 hour")
	c.fire(s, "11-20 12:01:00", "main succeeded", "ci skipped LEASE_HELD", "sec succeeded")
	c.wantOutcomes("ran")

	// The fire's own run, too.
	s = c.restarted(s)
	c.dueIn("sec")
	c.fire(s, "11-20 12:02:00", "main succeeded", "ci skipped LEASE_HELD", "sec succeeded", "ci skipped LEASE_HELD", "sec succeeded")
	c.wantOutcomes("ran, skipped LEASE_HELD")
	c.WantQueue("ci", "1")

	// A database that does not answer is a run that failed.
	s = c.restarted(s)
	c.dueIn("main", "sec")
	c.Open[1].Close()
	c.fire(s, "11-20 12:03:00", "main succeeded", "ci skipped LEASE_HELD", "sec succeeded", "ci skipped LEASE_HELD", "sec succeeded",
		"main succeeded", "ci failed", "sec succeeded")
}

func TestRound_AFireThatFindsNothingHasItsRunAndFixesAQueueWithoutItsPartition(t *testing.T) {
	c, s := newRounds(servicetest.Parallel(t), "ci")
	// The minutes are ci's and main's.
	c.fire(s, "11-20 12:01:00", "ci succeeded")
	c.fire(s, "11-20 12:02:00", "ci succeeded", "main succeeded")
	c.wantOutcomes("ran, ran")
	// Without its active partition a queue gets no records: nothing is due until a run has fixed it.
	s = c.restarted(s)
	c.dueIn("main")
	c.Exec("ci", `INSERT INTO maintenance.queue_partitions VALUES (1, now());
		ALTER TABLE loose_foreign_keys_deleted_records ALTER partition SET DEFAULT 2`)
	c.fire(s, "11-20 12:04:00", "ci succeeded", "main succeeded", "main succeeded", "ci succeeded")
	c.Exec("ci", `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value) VALUES ('public.p', 1)`)
}

// A request works one database all the same.
func TestRound_ARequestWorksTheDatabaseOfItsMinute(t *testing.T) {
	e := servicetest.NewOneChild(servicetest.Parallel(t))
	e.Add("ci", servicetest.Databases.Clone(t, servicetest.Migrated(servicetest.Small)))
	for _, name := range []string{"main", "ci"} {
		e.Deleted(name, "p", 1, 1)
	}
	var said servicetest.Buffer
	s := e.Service(servicetest.OneChild, rotateAll, func(c *service.Config) {
		service.Settings[lfk.Config](c).Schedule = "*/2 * * * *"
		c.Logger = slog.New(slog.NewTextHandler(&said, nil))
	})
	assert.That(t, !strings.Contains(said.String(), "turn"), "log %q, but no database is without a turn", said.String())
	servicetest.WantState(t, servicetest.RunBatch(t, s, ""), "succeeded")
	left := e.Value("main", queueLength) + e.Value("ci", queueLength)
	assert.That(t, left == "01" || left == "10", "%s records left", left)
}

const queueLength = `SELECT count(*) FROM loose_foreign_keys_deleted_records`

func TestManyDatabases_ARoundWorksADozenAndOneThatIsAwayKeepsNoOtherFromIt(t *testing.T) {
	m := servicetest.NewMeter(t)
	var shards []string
	for i := range 11 {
		shards = append(shards, fmt.Sprintf("shard_%02d", i+1))
	}
	c, s := newRounds(t, shards...)
	c.dueIn("main")
	c.dueIn(shards...)
	const away = "shard_07"
	// A run of another server has seen what is in it.
	c.Exec("main", `INSERT INTO maintenance.seen_children (database, children, asked) VALUES ($1, '{}', '{c}')`, away)
	c.Open[7].Close()
	want := []string{"main succeeded"}
	for _, shard := range shards {
		state := " succeeded"
		if shard == away {
			state = " failed"
		}
		want = append(want, shard+state)
	}
	c.fire(s, "11-20 12:01:00", want...)
	for _, shard := range shards {
		if shard != away {
			c.WantQueue(shard, "")
			c.Want(shard, `SELECT string_agg(name || ' ' || epoch, '') FROM maintenance.leases`, servicetest.LooseForeignKeys+"/"+shard+" 1")
		}
	}
	c.WantQueue(away, "1")

	st := servicetest.WantCondition(t, s, status.ConditionFailing, "database "+away+": unreachable")
	if n := len(st.Databases); n != 12 || st.Databases[0].Name != away || st.Databases[1].Name != "main" || st.Databases[11].Name != "shard_11" ||
		!strings.Contains(st.Databases[0].Problem, "unreachable") || st.Databases[0].Known || st.Databases[1].Problem != "" {
		t.Errorf("%d databases: %+v", n, st.Databases)
	}
	assert.Equal(t, len(st.Leases), 11, "leases")
	for _, series := range []string{"backlog.pending", "lease.held", "backlog.partitions"} {
		n := len(m.Values("maintenance."+series, "worker="+servicetest.LooseForeignKeys))
		assert.That(t, n <= 12, "%s has %d series", series, n)
	}
	reachable := m.Values("maintenance.database.reachable", "")
	slices.Sort(reachable)
	assert.That(t, len(reachable) == 12 && reachable[0] == 0 && reachable[1] == 1, "reachable are %v", reachable)

	t.Run("status tells the first problems and how many more there are", func(t *testing.T) {
		c.forget()
		for _, d := range c.Open[5:] {
			d.Close()
		}
		st := servicetest.WantCondition(t, c.Service(servicetest.OneChild), status.ConditionFailing,
			"database shard_09: unreachable", "; 2 more problems", "; 2 more databases with remarks")
		assert.That(t, !strings.Contains(st.ConditionDetail, "database shard_10: unreachable"), "detail %q", st.ConditionDetail)
		assert.That(t, st.Databases[0].Name == "shard_05" && st.Databases[11].Name == "shard_04", "%+v", st.Databases)
	})
}

func TestManyDatabases_GitLabsOwnWorkersLookIntoNoneThatIsNotGitLabs(t *testing.T) {
	e := servicetest.New(servicetest.Parallel(t), "main", "main", "ci", "shop")
	s := e.Service(servicetest.OneChild, e.WithQueue)
	e.Open[2].Close()
	for _, worker := range []string{"ghost_user_migration", "placeholder_user_cleanup"} {
		r := assert.Must(s.RunBatch(t.Context(), run.Request{Worker: worker}))(t)
		assert.That(t, r.State == "succeeded", "%s: %+v", worker, r)
		st := servicetest.StatusOf(t, s, worker)
		assert.That(t, st.Condition != status.ConditionFailing && len(st.Databases) == 0, "%s: %+v", worker, st)
	}
	e.Want("ci", `SELECT count(*) FROM maintenance.leases WHERE name = 'ghost_user_migration'`, "1")
	e.Open[1].Close()
	r, err := s.RunBatch(t.Context(), run.Request{Worker: "ghost_user_migration"})
	assert.That(t, err != nil || r.State != "succeeded", "ci is away, and nobody has noticed")
}
